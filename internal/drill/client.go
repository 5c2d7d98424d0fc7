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

// post sends a completion to the gateway as a client would.
func (d door) post(ctx context.Context, model, prompt string, tokens int, stream bool) (*http.Response, error) {
	b, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+string(d)+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// stream asks for a streamed reply, and calls first once its first text has come.
func (d door) stream(ctx context.Context, model, prompt string, tokens int, first func()) (reply, error) {
	resp, err := d.post(ctx, model, prompt, tokens, true)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, verdict: resp.Header.Get("X-Sluice-Verdict")}
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
		if len(v.Choices) > 0 && v.Choices[0].Text != "" {
			if r.text == "" {
				first()
			}
			r.text += v.Choices[0].Text
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

// answer is what a drill reads of a reply, or of an event of one.
type answer struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// ask asks for a whole reply.
func (d door) ask(ctx context.Context, model, prompt string, tokens int) (reply, error) {
	resp, err := d.post(ctx, model, prompt, tokens, false)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{status: resp.StatusCode, body: string(all), verdict: resp.Header.Get("X-Sluice-Verdict")}
	var v answer
	if err := json.Unmarshal(all, &v); err != nil {
		return r, fmt.Errorf("drill: the reply is not JSON: %w", err)
	}
	r.code, r.message = v.Error.Code, v.Error.Message
	if len(v.Choices) > 0 {
		r.text = v.Choices[0].Text
	}
	return r, nil
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
