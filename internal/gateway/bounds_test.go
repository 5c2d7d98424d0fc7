package gateway

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
)

// The bound by bytes holds for tokenizers that normalize: NFC makes some characters three times as long, and a token may be one byte.
func TestBoundsHoldUnderNormalization(t *testing.T) {
	for _, c := range []struct {
		text string
		most int // tokens at most, one in front
	}{
		{strings.Repeat("a", 100), 101},
		{strings.Repeat("\U0001D160", 100), 1201}, // four bytes, twelve when normalized
		{strings.Repeat("\u0958", 100), 601},      // three, and six
		{strings.Repeat(`\u0958`, 100), 601},      // an escape
		{strings.Repeat(`\ud834\udd60`, 100), 1201},
	} {
		for _, body := range []string{`{"model":"m","prompt":"` + c.text + `"}`, `{"model":"m","messages":[{"role":"user","content":"` + c.text + `"}]}`} {
			doc, no := jsonedit.Read([]byte(body), nil)
			if no != nil {
				t.Fatal(no)
			}
			if m := bounds(doc, openai.Chat); m.most < c.most {
				t.Errorf("%.30s: at most %d, and it may have %d", body, m.most, c.most)
			}
		}
	}
}

// Tools of Anthropic's API reach the template in another shape, with more words than they came in.
func TestBoundsHoldForToolsOfMessages(t *testing.T) {
	const came, rendered = `{"name":"a","input_schema":{}}`, `{"type": "function", "function": {"name": "a", "description": null, "parameters": {"type": "object"}, "strict": null, "defer_loading": null}}`
	const n = 1000
	doc, no := jsonedit.Read([]byte(`{"tools":[`+strings.Repeat(came+",", n-1)+came+`],"messages":[{"role":"user","content":"a"}]}`), nil)
	if no != nil {
		t.Fatal(no)
	}
	if m := bounds(doc, openai.Messages); m.most < n*len(rendered) {
		t.Errorf("at most %d, and it may have %d", m.most, n*len(rendered))
	}
}
