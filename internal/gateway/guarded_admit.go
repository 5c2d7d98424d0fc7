package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/verdict"
)

// measure is what is known of a prompt's length, in tokens.
type measure struct {
	least, most int // proven bounds; most is -1 if there is none
}

// template is what a chat template and its own words may add, in tokens.
const template = 512

// bounds of a prompt from its bytes. A token of text is at least a byte of it once the tokenizer has normalized it; what the template
// adds to a message is less than that message's own syntax in the body. Normalization (NFC, which Qwen's tokenizers do) makes a
// character up to three times as long, and none that is ASCII; one that is spelled as an escape has its bytes there.
func bounds(doc *jsonedit.Doc, e openai.Endpoint) measure {
	p := doc.Prompt()
	switch {
	case doc.Media().Parts > 0:
		return measure{0, -1} // only the engine knows what an image is
	case p.Shape == jsonedit.IDs || p.Shape == jsonedit.IDLists:
		return measure{p.IDs, p.IDs + 1}
	case p.Shape == jsonedit.Text:
		return measure{0, p.Bytes + 2*doc.NotASCII() + 2}
	}
	// Tools of Anthropic's API are wrapped in more words than they came in.
	if tools := doc.Get("tools"); e == openai.Messages && tools.Said() {
		return measure{0, doc.Size() + 2*doc.NotASCII() + template + 4*len(tools.Raw())}
	}
	return measure{0, doc.Size() + 2*doc.NotASCII() + template}
}

// local counts with the tokenizer that the file names, if there is one: exactly where the engine's count is the text's, else a closer
// bound, as the chat template is the engine's.
func (g *guarded) local(doc *jsonedit.Doc, e openai.Endpoint, m measure) (_ measure, exact bool) {
	c := g.cfg.Tokenizer
	if c == nil {
		return m, false
	}
	p := doc.Prompt()
	n, bytes := 0, 0
	for raw := range p.Raw() {
		text := jsonedit.Unquote(raw)
		bytes += len(raw)
		if e == openai.Completions && p.Shape == jsonedit.Text {
			special, said := doc.Get("add_special_tokens").Bool()
			n := c.Count(text, special || !said)
			return measure{n, n}, true
		}
		n += c.Most(text)
	}
	if p.Shape == jsonedit.Messages {
		m.most = min(m.most, m.most-bytes+n)
	}
	return m, false
}

// admit says whether a prompt fits, before any leg is asked: by its bytes if that decides, else by the engine's own count. It returns
// how many tokens to plan with.
func (x *walk) admitGuarded(ctx context.Context) (tokens int, v verdict.Verdict) {
	gm := x.model.guarded
	w := gm.fleet.Widest()
	if w.Limit.Tokens == 0 {
		return 0, gm.fleet.Unready()
	}
	m := bounds(x.guarded.doc, x.endpoint)
	output := int(x.asked.maxTokens)
	fits := func(n int) bool { return n <= w.Prompt && n+max(output, 1)-1 <= w.Sequence.Tokens }
	exact := m.least > 0
	if !exact && m.most >= 0 && !fits(m.most) {
		m, exact = gm.local(x.guarded.doc, x.endpoint, m)
	}
	if !exact && m.most >= 0 && !fits(m.most) {
		counted, known := gm.count.ask(ctx, x.model.served, w, x.guarded.doc, x.endpoint)
		switch {
		case known:
			m, exact = measure{counted, counted}, true
		case counted > 0: // of the contents alone
			m.least = counted
		}
	}
	switch {
	case exact:
		m.most = m.least
		tokens = m.least
	case m.most < 0:
		return max(m.least, 1), verdict.Verdict{}
	default:
		tokens = m.most
	}
	if guard.Off(guard.Admission) {
		return tokens, verdict.Verdict{}
	}
	limit := capacity.Limit{Tokens: w.Limit.Tokens, Setter: w.Limit.Setter}
	if w.Prompt < limit.Tokens && exact && m.least > w.Prompt {
		limit.Tokens = w.Prompt
	}
	switch {
	case exact && fits(m.least), !exact && fits(m.most):
		x.guarded.fits = m.most
	case exact && m.least > w.Prompt:
		v = verdict.TooLong(verdict.Admission, m.least, 0, false, limit.Tokens, limit.Setter)
	case exact:
		v = verdict.TooLong(verdict.Admission, m.least, output, false, w.Sequence.Tokens, w.Sequence.Setter)
	case m.least > w.Prompt:
		v = verdict.TooLong(verdict.Admission, m.least, 0, true, w.Prompt, limit.Setter)
	case m.least > 0 || gm.cfg.Uncounted || gm.row.Legs() == 1:
		// Its text fits and only the template's part is not known; or nobody counts, and one leg will.
	default:
		v = verdict.Of(verdict.ContextLength, verdict.Admission, "the prompt may have up to %d tokens, no worker counts it, and at most %d fit (set by %s)", m.most, w.Prompt, limit.Setter)
	}
	x.rec.Tokens.Planned = uint32(max(m.least, 0))
	return tokens, v
}

// counter asks engines how many tokens a prompt has.
type counter struct {
	mu   sync.Mutex
	dumb map[string]time.Time // workers that do not count this kind of prompt, until when
}

// notAgain is how long a worker that does not count is not asked.
const notAgain = time.Minute

// countTime is how long an engine may take to count.
const countTime = 10 * time.Second

// keep are the fields that decide about a prompt's length.
var keep = []string{"model", "prompt", "messages", "tools", "tool_choice", "chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message", "add_special_tokens",
	"system", "thinking", "output_config"}

// ask returns the engine's count of the prompt. known is false where only the texts of a chat could be counted: then n is what they
// have together, at least; or 0 if nothing could be.
func (c *counter) ask(ctx context.Context, model string, p foreign.Pair, doc *jsonedit.Doc, e openai.Endpoint) (n int, known bool) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	n1 := p.Prefill
	if n1 == nil {
		n1 = p.Decode
	}
	for _, worker := range []*foreign.Node{n1, p.Decode} {
		if n, ok := c.one(ctx, worker, doc.Edit().Keep(keep...), model, e.String()); ok {
			return n, true
		}
		if worker == p.Decode {
			break
		}
	}
	if e != openai.Chat {
		return 0, false // of Anthropic's dialect engines leave texts out
	}
	// An engine that counts only plain text counts a chat's contents: their insides, as they are spelled, make one string.
	text := []byte{'"'}
	for raw := range doc.Prompt().Raw() {
		text = append(text, raw...)
	}
	text = append(text, '"')
	if n, ok := c.one(ctx, n1, doc.Edit().Keep("model").Set("prompt", text), model, "text"); ok {
		return n, false
	}
	return 0, false
}

func (c *counter) one(ctx context.Context, w *foreign.Node, e *jsonedit.Edit, model, kind string) (int, bool) {
	key := w.Name + "\x00" + kind
	c.mu.Lock()
	until := c.dumb[key]
	c.mu.Unlock()
	if time.Now().Before(until) {
		return 0, false
	}
	if model != "" {
		e.SetText("model", model)
	}
	path, member := "/tokenize", "count"
	if kind == openai.Messages.String() {
		path, member = "/v1/messages/count_tokens", "input_tokens"
	}
	n, err := tokenize(ctx, w, e.Body(), path, member)
	if err == nil {
		return n, true
	}
	if errors.Is(err, errCannotCount) {
		c.mu.Lock()
		if c.dumb == nil {
			c.dumb = map[string]time.Time{}
		}
		c.dumb[key] = time.Now().Add(notAgain)
		c.mu.Unlock()
	}
	return 0, false
}

var errCannotCount = errors.New("the worker does not count prompts")

// tokenize asks one worker, on the path where it counts; the count is a member of its answer.
func tokenize(ctx context.Context, w *foreign.Node, body jsonedit.Body, path, member string) (int, error) {
	r := &http.Request{
		Method: http.MethodPost, URL: w.At(path), Header: w.Header, Host: w.URL.Host, ContentLength: body.Len(), Body: body.NewReader(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	resp, err := w.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusUnauthorized {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		return 0, errCannotCount
	}
	// The answer lists the tokens after their count, or before it: all of it is read, some ten bytes a token.
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New("not counted")
	}
	doc, bad := jsonedit.Read(b, nil)
	if bad != nil {
		return 0, errCannotCount
	}
	n, ok := doc.Get(member).Int()
	if !ok || n < 0 || n > 1<<31-1 {
		return 0, errCannotCount
	}
	return int(n), nil
}
