package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// reply is what a client got.
type reply struct {
	status  int
	body    string
	text    string
	code    string // error.code
	message string // error.message
	verdict string // X-Sluice-Verdict
}

// door is a gateway's address.
type door string

// Reply is the kind of reply that a client asks for. The zero value is a whole completion.
type Reply struct {
	Chat   bool `json:"chat"`
	Stream bool `json:"stream"`
}

// Replies are all kinds.
func Replies() []Reply { return []Reply{{}, {Stream: true}, {Chat: true}, {Chat: true, Stream: true}} }

func (k Reply) String() string {
	name := "completion"
	if k.Chat {
		name = "chat"
	}
	if k.Stream {
		name += ", streamed"
	}
	return name
}

// post sends a request to the gateway as a client would.
func (d door) post(ctx context.Context, k Reply, model, prompt string, tokens int) (*http.Response, error) {
	path := "/v1/completions"
	asked := map[string]any{"model": model, "max_tokens": tokens, "temperature": 0, "stream": k.Stream}
	if k.Chat {
		path = "/v1/chat/completions"
		asked["messages"] = []map[string]any{{"role": "user", "content": prompt}}
	} else {
		asked["prompt"] = prompt
	}
	b, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+string(d)+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// say asks for a reply of some kind. first is called once its first text has come, of one that is streamed; nil is nobody.
func (d door) say(ctx context.Context, k Reply, model, prompt string, tokens int, first func()) (reply, error) {
	resp, err := d.post(ctx, k, model, prompt, tokens)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, verdict: resp.Header.Get("X-Sluice-Verdict")}
	if !k.Stream || r.status != http.StatusOK {
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			return reply{}, err
		}
		r.body = string(all)
		var v answer
		if err := json.Unmarshal(all, &v); err != nil {
			return r, fmt.Errorf("drill: the reply is not JSON: %w", err)
		}
		r.code, r.message, r.text = v.Error.Code, v.Error.Message, v.text()
		return r, nil
	}
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		r.body = data
		var v answer
		if json.Unmarshal([]byte(data), &v) != nil {
			continue
		}
		if t := v.text(); t != "" {
			if r.text == "" && first != nil {
				first()
			}
			r.text += t
		}
		if v.Error.Code != "" {
			r.code, r.message, r.status = v.Error.Code, v.Error.Message, 500
		}
	}
	if v := resp.Trailer.Get("X-Sluice-Verdict"); v != "" {
		r.verdict = v
	}
	return r, s.Err()
}

// stream asks for a streamed completion, and calls first once its first text has come.
func (d door) stream(ctx context.Context, model, prompt string, tokens int, first func()) (reply, error) {
	return d.say(ctx, Reply{Stream: true}, model, prompt, tokens, first)
}

// ask asks for a whole completion.
func (d door) ask(ctx context.Context, model, prompt string, tokens int) (reply, error) {
	return d.say(ctx, Reply{}, model, prompt, tokens, nil)
}

// answer is what a drill reads of a reply, or of an event of one.
type answer struct {
	Choices []struct {
		Text           string
		Delta, Message struct{ Content string }
	}
	Error struct {
		Code    string
		Message string
	}
}

func (a answer) text() string {
	if len(a.Choices) == 0 {
		return ""
	}
	c := a.Choices[0]
	return c.Text + c.Delta.Content + c.Message.Content
}

// shared is how many consecutive bytes count as another's text: less can be chance.
const shared = 8

// foreign counts the bytes of a reply that lie in a run of at least 8 which the other prompt has and the own one has not.
func foreign(text, own, other string) int {
	hit := make([]bool, len(text))
	for i := 0; i+shared <= len(text); i++ {
		s := text[i : i+shared]
		if strings.Contains(other, s) && !strings.Contains(own, s) {
			for j := i; j < i+shared; j++ {
				hit[j] = true
			}
		}
	}
	n := 0
	for _, h := range hit {
		if h {
			n++
		}
	}
	return n
}
