package trio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Request of a completion or, with Messages, of a chat.
type Request struct {
	Prompt    string
	IDs       []int32
	Messages  []Message
	MaxTokens int
	Seed      int
}

// Message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// body is greedy and streams.
func (r Request) body(model string) (path string, body []byte, err error) {
	m := map[string]any{
		"model": model, "max_tokens": r.MaxTokens, "temperature": 0, "seed": r.Seed,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	switch {
	case r.Messages != nil:
		path, m["messages"] = "/v1/chat/completions", r.Messages
	case r.IDs != nil:
		path, m["prompt"] = "/v1/completions", r.IDs
	default:
		path, m["prompt"] = "/v1/completions", r.Prompt
	}
	body, err = json.Marshal(m)
	return path, body, err
}

// Piece of a reply: an event with text.
type Piece struct {
	At   time.Time
	Text string
}

// Reply is a streamed reply.
type Reply struct {
	Sent       time.Time
	Pieces     []Piece
	End        time.Time
	Prompt     int // tokens, as the usage says
	Completion int
	Finish     string
	Done       bool // [DONE] came
}

// Text of the reply.
func (r *Reply) Text() string {
	var b strings.Builder
	for _, p := range r.Pieces {
		b.WriteString(p.Text)
	}
	return b.String()
}

// First is the time from the request to the first text.
func (r *Reply) First() time.Duration {
	if len(r.Pieces) == 0 {
		return 0
	}
	return r.Pieces[0].At.Sub(r.Sent)
}

// client keeps a connection for each stream that is open at once.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}

// arrival is an event as it came: it is parsed when the stream is over, so that the client takes little of the machine while it measures.
type arrival struct {
	at   time.Time
	data []byte
}

// Stream sends a request and reads its stream to the end. On each event it calls onEvent, which may be nil; when ctx is
// cancelled the reply so far is returned with ctx's error.
func (f *Fleet) Stream(ctx context.Context, q Request, onEvent func()) (*Reply, error) {
	path, body, err := q.body(f.name)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	r := &Reply{Sent: time.Now()}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	var events []arrival
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return r, errors.Join(err, r.parse(events))
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		events = append(events, arrival{time.Now(), bytes.Clone(bytes.TrimSpace(data))})
		if onEvent != nil && len(data) > 0 && data[0] == '{' {
			onEvent()
		}
	}
	r.End = time.Now()
	if err := r.parse(events); err != nil {
		return r, err
	}
	if !r.Done {
		return r, errors.New("the stream ended without [DONE]")
	}
	return r, nil
}

func (r *Reply) parse(events []arrival) error {
	for _, e := range events {
		if string(e.data) == "[DONE]" {
			r.Done = true
			continue
		}
		var c struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
				Why   *string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
			Error *struct{ Code, Message string }
		}
		if err := json.Unmarshal(e.data, &c); err != nil {
			return err
		}
		if c.Error != nil {
			return fmt.Errorf("the stream ended with %s: %s", c.Error.Code, c.Error.Message)
		}
		if c.Usage != nil {
			r.Prompt, r.Completion = c.Usage.Prompt, c.Usage.Completion
		}
		for _, x := range c.Choices {
			if t := x.Text + x.Delta.Content; t != "" {
				r.Pieces = append(r.Pieces, Piece{e.at, t})
			}
			if x.Why != nil {
				r.Finish = *x.Why
			}
		}
	}
	return nil
}
