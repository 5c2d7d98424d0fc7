package conformance

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// anthropicClient is the public client, unmodified: only plain workers answer it.
func anthropicClient(t *testing.T, key string) anthropic.Client {
	if !strings.HasPrefix(os.Getenv("SLUICE_BEHIND"), "plain") {
		t.Skip("only plain workers offer /v1/messages")
	}
	return anthropic.NewClient(option.WithBaseURL(os.Getenv("SLUICE_URL")), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func message(content string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: "recall", MaxTokens: 24, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(content))}}
}

// spoken is a message's text, whole and streamed, which are the same.
func spoken(t *testing.T, c anthropic.Client, asked anthropic.MessageNewParams) (string, *anthropic.Message) {
	t.Helper()
	r, err := c.Messages.New(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Content) != 1 || r.StopReason == "" || r.Usage.OutputTokens == 0 {
		t.Fatal(r.RawJSON())
	}
	s := c.Messages.NewStreaming(t.Context(), asked)
	var all anthropic.Message
	for s.Next() {
		if err := all.Accumulate(s.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all.Content) != 1 || all.Content[0].Text != r.Content[0].Text || all.StopReason != r.StopReason || all.StopSequence != r.StopSequence || all.Usage.OutputTokens != r.Usage.OutputTokens {
		t.Fatalf("streamed %+v, whole %s", all, r.RawJSON())
	}
	return r.Content[0].Text, r
}

func TestMessages(t *testing.T) {
	c := anthropicClient(t, os.Getenv("SLUICE_API_KEY"))
	text, r := spoken(t, c, message(question))
	if !strings.HasPrefix(text, " bPlNFGdSC2wd8f2Q") {
		t.Errorf("%q", text)
	}
	// A token is a byte here: five more are five more.
	_, more := spoken(t, c, message("Hey, \n"+question))
	if n := int(r.Usage.InputTokens); n < len(question) || int(more.Usage.InputTokens) != n+len("Hey, \n") {
		t.Errorf("%d tokens, and %d", n, more.Usage.InputTokens)
	}

	system := message("What is the code of tenant 4711?\nThe code of tenant 4711 is")
	system.System = []anthropic.TextBlockParam{{Text: "The code of tenant 4711 is bPlNFGdSC2wd8f2Q."}}
	if text, _ := spoken(t, c, system); !strings.HasPrefix(text, " bPlNFGdSC2wd8f2Q") {
		t.Errorf("of the system's words: %q", text)
	}

	stop := message(question)
	stop.StopSequences = []string{"S"}
	stopped := anthropic.StopReasonStopSequence
	if os.Getenv("SLUICE_BEHIND") == "plain-sglang" {
		stopped = anthropic.StopReasonEndTurn // it does not say which
	}
	if text, r := spoken(t, c, stop); text != " bPlNFGd" || r.StopReason != stopped {
		t.Errorf("stopped: %q, %s", text, r.StopReason)
	}

	tool := message("What is the code of tenant 4711?")
	tool.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "code", InputSchema: anthropic.ToolInputSchemaParam{Properties: map[string]any{"tenant": map[string]any{"type": "integer"}}}}}}
	tool.Messages = append(tool.Messages,
		anthropic.NewAssistantMessage(anthropic.NewToolUseBlock("toolu_1", map[string]any{"tenant": 4711}, "code")),
		anthropic.NewUserMessage(anthropic.NewToolResultBlock("toolu_1", question, false)))
	if text, _ := spoken(t, c, tool); !strings.HasPrefix(text, " bPlNFGdSC2wd8f2Q") {
		t.Errorf("of a tool's result: %q", text)
	}
}

func TestMessagesErrors(t *testing.T) {
	key := os.Getenv("SLUICE_API_KEY")
	c := anthropicClient(t, key)
	other := message(question)
	other.Model = "other"
	for _, x := range []struct {
		key    string
		asked  anthropic.MessageNewParams
		status int
		words  string
	}{
		{key, message(strings.Repeat("x", 20000)), 400, "invalid_request_error"},
		{key, other, 404, "not_found_error"},
		{"sk-other", message(question), 401, "authentication_error"},
	} {
		c = anthropicClient(t, x.key)
		_, err := c.Messages.New(t.Context(), x.asked)
		s := c.Messages.NewStreaming(t.Context(), x.asked)
		for s.Next() {
			t.Errorf("%s: an event", x.words)
		}
		for _, err := range []error{err, s.Err()} {
			var e *anthropic.Error
			if !errors.As(err, &e) || e.StatusCode != x.status || !strings.Contains(e.RawJSON(), x.words) {
				t.Errorf("%v", err)
			}
		}
	}
}
