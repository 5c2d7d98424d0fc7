// Package conformance is the public openai client for Go, unmodified, against a running sluice. ../run.sh starts one.
package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func client(t *testing.T, more ...option.RequestOption) openai.Client {
	url := os.Getenv("SLUICE_URL")
	if url == "" {
		t.Skip("SLUICE_URL is not set: conformance/run.sh sets it")
	}
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(url + "/v1"), option.WithAPIKey(os.Getenv("SLUICE_API_KEY"))}, more...)...)
}

const (
	code     = "bPlNFGdSC2wd8f2Q"
	question = "The code of tenant 4711 is " + code + ".\nThe code of tenant 4711 is"
)

// limit is what the front door lists, fits the longest prompt that it takes: of SGLang a few tokens less.
func limit() string {
	if l := os.Getenv("SLUICE_LIMIT"); l != "" {
		return l
	}
	return "16384"
}

func fits() string {
	if n := os.Getenv("SLUICE_FITS"); n != "" {
		return n
	}
	return limit()
}

func chat(content string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:               "recall",
		Messages:            []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)},
		MaxCompletionTokens: openai.Int(24),
		Temperature:         openai.Float(0),
	}
}

func completion(prompt string) openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model:       "recall",
		Prompt:      openai.CompletionNewParamsPromptUnion{OfString: openai.String(prompt)},
		MaxTokens:   openai.Int(18),
		Temperature: openai.Float(0),
	}
}

func TestModels(t *testing.T) {
	c := client(t)
	page, err := c.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Data) != 1 || page.Data[0].ID != "recall" || !strings.Contains(page.Data[0].RawJSON(), `"max_model_len":`+limit()) {
		t.Fatal(page.RawJSON())
	}
}

func TestChat(t *testing.T) {
	c := client(t)
	r, err := c.Chat.Completions.New(t.Context(), chat(question))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Choices) != 1 || r.Choices[0].Message.Role != "assistant" || r.Choices[0].Message.Content == "" || r.Usage.PromptTokens == 0 ||
		r.Usage.TotalTokens != r.Usage.PromptTokens+r.Usage.CompletionTokens {
		t.Fatal(r.RawJSON())
	}
	// The same conversation streamed says the same.
	s := c.Chat.Completions.NewStreaming(t.Context(), chat(question))
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Fatalf("a chunk that does not continue the others: %s", s.Current().RawJSON())
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if got := acc.Choices[0].Message.Content; got != r.Choices[0].Message.Content || acc.Choices[0].FinishReason != r.Choices[0].FinishReason {
		t.Fatalf("streamed %q, whole %q", got, r.Choices[0].Message.Content)
	}
}

func TestCompletion(t *testing.T) {
	c := client(t)
	r, err := c.Completions.New(t.Context(), completion(question))
	if err != nil {
		t.Fatal(err)
	}
	if r.Choices[0].Text != " "+code+"." || r.Choices[0].FinishReason != "length" || r.Usage.CompletionTokens != 18 || int(r.Usage.PromptTokens) != len(question)+1 {
		t.Fatal(r.RawJSON())
	}
}

func TestTokenIDs(t *testing.T) {
	c := client(t)
	whole, err := c.Completions.New(t.Context(), completion(question))
	if err != nil {
		t.Fatal(err)
	}
	// The built-in model has a token a byte. A prompt of ids is taken as it is: nothing is put in front.
	q := completion("")
	ids := make([]int64, len(question))
	for i := range question {
		ids[i] = int64(question[i])
	}
	q.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: ids}
	r, err := c.Completions.New(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if r.Choices[0].Text != whole.Choices[0].Text || int(r.Usage.PromptTokens) != len(ids) {
		t.Fatalf("%q of %d tokens, the text gave %q", r.Choices[0].Text, r.Usage.PromptTokens, whole.Choices[0].Text)
	}
}

func TestStreamWithUsage(t *testing.T) {
	c := client(t)
	for _, usage := range []bool{true, false} {
		q := completion(question)
		if usage {
			q.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		}
		s := c.Completions.NewStreaming(t.Context(), q)
		text, last := "", openai.Completion{}
		for s.Next() {
			last = s.Current()
			if len(last.Choices) > 0 {
				text += last.Choices[0].Text
			}
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if text != " "+code+"." {
			t.Fatalf("streamed %q", text)
		}
		if got := len(last.Choices) == 0 && last.Usage.CompletionTokens == 18 && int(last.Usage.PromptTokens) == len(question)+1; got != usage {
			t.Fatalf("include_usage %v: the last chunk is %s", usage, last.RawJSON())
		}
	}
}

func TestStop(t *testing.T) {
	c := client(t)
	q := completion(question)
	q.Stop = openai.CompletionNewParamsStopUnion{OfStringArray: []string{"never", code[8:10]}}
	r, err := c.Completions.New(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if r.Choices[0].Text != " "+code[:8] || r.Choices[0].FinishReason != "stop" {
		t.Fatal(r.RawJSON())
	}
}

func TestSeed(t *testing.T) {
	c := client(t)
	ask := func(seed int64) string {
		q := completion("The river turned slowly past old mills and the boats lay tied. The river ")
		q.Temperature, q.Seed, q.MaxTokens = openai.Float(2), openai.Int(seed), openai.Int(64)
		r, err := c.Completions.New(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return r.Choices[0].Text
	}
	if a, b := ask(7), ask(7); a != b {
		t.Errorf("seed 7 gave %q and %q", a, b)
	}
}

// refused is the typed error of a request that must fail.
func refused(t *testing.T, err error) *openai.Error {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Fatalf("not an API error: %v", err)
	}
	return e
}

func TestErrors(t *testing.T) {
	c := client(t)
	long := completion(strings.Repeat("x", 20_000))
	_, err := c.Completions.New(t.Context(), long)
	if e := refused(t, err); e.StatusCode != 400 || e.Code != "context_length_exceeded" || e.Type != "invalid_request_error" || e.Param != "prompt" ||
		!strings.Contains(e.Message, "20001") || !strings.Contains(e.Message, fits()) {
		t.Error(e.RawJSON())
	}
	_, err = c.Chat.Completions.New(t.Context(), chat(strings.Repeat("x", 20_000)))
	if e := refused(t, err); e.StatusCode != 400 || e.Code != "context_length_exceeded" || e.Param != "messages" {
		t.Error(e.RawJSON())
	}
	// A stream that is refused is refused as well before it begins.
	s := c.Completions.NewStreaming(t.Context(), long)
	for s.Next() {
		t.Error("a chunk of a refused stream")
	}
	if e := refused(t, s.Err()); e.Code != "context_length_exceeded" {
		t.Error(e.RawJSON())
	}
	other := completion("x")
	other.Model = "gpt-4"
	_, err = c.Completions.New(t.Context(), other)
	if e := refused(t, err); e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Error(e.RawJSON())
	}
	two := chat("x")
	two.N = openai.Int(2)
	if !strings.HasPrefix(os.Getenv("SLUICE_BEHIND"), "plain") { // one worker may answer twice
		_, err = c.Chat.Completions.New(t.Context(), two)
		if e := refused(t, err); e.StatusCode != 400 || e.Param != "n" {
			t.Error(e.RawJSON())
		}
	}
	stranger := client(t, option.WithAPIKey("sk-other"))
	_, err = stranger.Completions.New(t.Context(), completion("x"))
	if e := refused(t, err); e.StatusCode != 401 || e.Code != "invalid_api_key" {
		t.Error(e.RawJSON())
	}
}

// A client that goes away gives the pages of its request back.
func TestCancel(t *testing.T) {
	c := client(t)
	ctx, cancel := context.WithCancel(t.Context())
	q := completion(strings.Repeat(question+" ", 40))
	q.MaxTokens = openai.Int(10_000)
	s := c.Completions.NewStreaming(ctx, q)
	if !s.Next() {
		t.Fatal(s.Err())
	}
	cancel()
	for s.Next() {
	}
	if !errors.Is(s.Err(), context.Canceled) {
		t.Errorf("the stream ended with %v", s.Err())
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		free, total := pages(t)
		if total > 0 && free == total {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pages are free", free, total)
		}
		time.Sleep(5 * time.Millisecond) // polling another process
	}
}

func pages(t *testing.T) (free, total int) {
	r, err := http.Get(os.Getenv("SLUICE_ADMIN") + "/admin/fleet")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var s struct {
		Free   int `json:"pool_free"`
		Total  int `json:"pool_total"`
		Models []struct {
			Workers []struct {
				Load int `json:"load_tokens"`
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("SLUICE_BEHIND") != "native" { // before other engines the gateway counts tokens in flight
		total = 1
		for _, m := range s.Models {
			for _, w := range m.Workers {
				free -= w.Load
			}
		}
		return 1 + free, total
	}
	return s.Free, s.Total
}
