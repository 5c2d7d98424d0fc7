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
	if os.Getenv("SLUICE_BEHIND") != "plain" {
		t.Skip("only plain workers offer /v1/messages")
	}
	return anthropic.NewClient(option.WithBaseURL(os.Getenv("SLUICE_URL")), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func message(content string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: "recall", MaxTokens: 24, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(content))}}
}

func TestMessages(t *testing.T) {
	c := anthropicClient(t, os.Getenv("SLUICE_API_KEY"))
	r, err := c.Messages.New(t.Context(), message(question))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Content) != 1 || r.Content[0].Text == "" || r.StopReason == "" || int(r.Usage.InputTokens) < len(question) || r.Usage.OutputTokens == 0 {
		t.Fatal(r.RawJSON())
	}
	s := c.Messages.NewStreaming(t.Context(), message(question))
	var acc anthropic.Message
	for s.Next() {
		if err := acc.Accumulate(s.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if len(acc.Content) != 1 || acc.Content[0].Text != r.Content[0].Text || acc.StopReason != r.StopReason || acc.Usage.OutputTokens != r.Usage.OutputTokens {
		t.Fatalf("streamed %+v, whole %s", acc, r.RawJSON())
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
		var e *anthropic.Error
		if !errors.As(err, &e) || e.StatusCode != x.status || !strings.Contains(e.RawJSON(), x.words) {
			t.Errorf("%v", err)
		}
	}
}
