package actor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"slices"

	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Endpoint that a request came to.
type Endpoint uint8

const (
	Chat Endpoint = iota
	Completions
	Generate // SGLang's own
	Messages // of Anthropic's API
)

// Request is a body as an engine understands it.
type Request struct {
	Endpoint   Endpoint
	Doc        *jsonedit.Doc
	Model      string
	IDs        []int32 // of the prompt; nil on a light worker
	Prompt     int     // tokens
	Digest     uint64  // of the prompt, to compare legs by
	Stream     bool
	Usage      bool // stream_options.include_usage
	Continuous bool // stream_options.continuous_usage_stats
	MaxTokens  int
	Stop       []string
	IgnoreEOS  bool
	ReturnIDs  bool
	Logprobs   bool
	RID        string
	Text       string // of the prompt, if echo was asked for
}

// Unsaid is MaxTokens where the request says nothing.
const Unsaid = -1 << 31

// DefaultMaxTokens is the reply's length where a completion does not say one.
const DefaultMaxTokens = 16

// ReadBody reads a request's body.
func ReadBody(r *http.Request) ([]byte, error) {
	if n := r.ContentLength; n >= 0 && n <= 1<<30 {
		body := make([]byte, n)
		_, err := io.ReadFull(r.Body, body)
		return body, err
	}
	return io.ReadAll(r.Body)
}

// twiceBytes is the size up to which a body is read by a second parser too.
const twiceBytes = 64 << 10

// ReadDoc reads a body strictly. What is not strict would be read in some way by an engine, so it is a violation, and an error.
func (w *Worker) ReadDoc(body []byte) (*jsonedit.Doc, error) {
	d, no := jsonedit.Read(body, nil)
	if no != nil {
		w.Violate(RuleBody, "%v", no)
		return nil, no
	}
	if len(body) <= twiceBytes {
		if err := sameToOthers(d, body); err != nil {
			w.Violate(RuleBody, "%v", err)
		}
	}
	return d, nil
}

// sameToOthers compares what was read with what encoding/json reads, which has nothing in common with the gateway's reader.
func sameToOthers(d *jsonedit.Doc, body []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("encoding/json: %w", err)
	}
	n := 0
	var err error
	d.Each(func(name string, v jsonedit.Value, _ bool) bool {
		n++
		if !bytes.Equal(m[name], v.Raw()) {
			err = fmt.Errorf("encoding/json reads another %q", name)
		}
		return err == nil
	})
	if err == nil && n != len(m) {
		err = fmt.Errorf("encoding/json reads %d members, not %d", len(m), n)
	}
	return err
}

// Understand makes a Request of a body. The error is what an engine would say about a field; its text is an engine's.
func (w *Worker) Understand(ep Endpoint, d *jsonedit.Doc) (*Request, error) {
	q := &Request{Endpoint: ep, Doc: d, MaxTokens: Unsaid}
	if text, ok := d.Get("model").Text(); ok {
		q.Model = string(text)
	}
	q.Stream, _ = d.Get("stream").Bool()
	if o := d.Get("stream_options"); o.Said() {
		q.Usage, _ = o.Get("include_usage").Bool()
		q.Continuous, _ = o.Get("continuous_usage_stats").Bool()
	}
	params := d.Get("sampling_params")
	field := func(name string) jsonedit.Value {
		if ep == Generate {
			return params.Get(name)
		}
		return d.Get(name)
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_new_tokens"} {
		if v := field(name); v.Said() && (name != "max_completion_tokens" || ep == Chat) {
			n, ok := v.Int()
			if !ok {
				return nil, fmt.Errorf("Input should be a valid integer (%s)", name)
			}
			q.MaxTokens = int(n)
		}
	}
	stop := "stop"
	if ep == Messages {
		stop = "stop_sequences"
	}
	if v := field(stop); v.Said() {
		if text, ok := v.Text(); ok {
			q.Stop = []string{string(text)}
		}
		if v.Kind() == jsonedit.Array {
			v.Each(func(_ []byte, s jsonedit.Value) bool {
				if text, ok := s.Text(); ok {
					q.Stop = append(q.Stop, string(text))
				}
				return true
			})
		}
	}
	q.IgnoreEOS, _ = field("ignore_eos").Bool()
	q.ReturnIDs, _ = d.Get("return_token_ids").Bool()
	q.Logprobs = d.Get("logprobs").Said() && string(d.Get("logprobs").Raw()) != "false"
	if v := d.Get("return_logprob"); ep == Generate {
		q.Logprobs, _ = v.Bool()
	}
	if text, ok := d.Get("rid").Text(); ok {
		q.RID = string(text)
	}
	if err := w.encode(q); err != nil {
		return nil, err
	}
	if echo, _ := d.Get("echo").Bool(); echo && ep == Completions {
		q.Text = Text(q.IDs)
	}
	return q, nil
}

var digestSeed = maphash.MakeSeed()

// encode makes the prompt's tokens, or on a light worker only their number.
func (w *Worker) encode(q *Request) error {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	d, light := q.Doc, w.Config().Light
	if p := d.Prompt(); light && (p.Shape == jsonedit.Messages || p.Shape == jsonedit.Text) && q.Endpoint != Generate {
		// Bytes as they are spelled: nobody compares these counts with anything but each other. Of a long text its ends stand for it.
		for raw := range p.Raw() {
			if len(raw) > 8<<10 {
				h.Write(raw[:4<<10])
				raw = raw[len(raw)-4<<10:]
			}
			h.Write(raw)
		}
		q.Prompt = p.Bytes + 1
		if p.Shape == jsonedit.Messages {
			q.Prompt = p.Bytes + 2*p.N
		}
		q.Digest = h.Sum64()
		return nil
	}
	switch p := d.Prompt(); {
	case q.Endpoint == Chat || q.Endpoint == Messages:
		if p.Shape != jsonedit.Messages {
			return fmt.Errorf("Field required (messages)")
		}
		messages := chatOf(d)
		if system := d.Get("system"); q.Endpoint == Messages && system.Said() {
			messages = append([]Message{{Role: "system", Text: contentOf(system)}}, messages...)
		}
		for _, m := range messages {
			h.WriteString(m.Role)
			h.WriteByte(0)
			h.Write(m.Text)
			h.WriteByte(0)
			q.Prompt += len(m.Text) + 2
		}
		q.IDs = EncodeChat(messages)
	case q.Endpoint == Generate && d.Get("input_ids").Said():
		q.IDs = ids(d.Get("input_ids"))
		q.Prompt = len(q.IDs)
		fmt.Fprint(&h, q.IDs)
	case q.Endpoint == Generate:
		text, ok := d.Get("text").Text()
		if !ok {
			return fmt.Errorf("Either text, input_ids or input_embeds should be provided.")
		}
		q.setText(text, light, &h)
	case p.Shape == jsonedit.Text || p.Shape == jsonedit.Texts && p.N == 1:
		v := d.Get("prompt")
		if v.Kind() == jsonedit.Array {
			v.Each(func(_ []byte, one jsonedit.Value) bool { v = one; return false })
		}
		text, _ := v.Text()
		q.setText(text, light, &h)
	case p.Shape == jsonedit.IDs || p.Shape == jsonedit.IDLists && p.N == 1:
		v := d.Get("prompt")
		if p.Shape == jsonedit.IDLists {
			v.Each(func(_ []byte, one jsonedit.Value) bool { v = one; return false })
		}
		h.Write(v.Raw())
		q.Prompt = p.IDs
		if !light {
			q.IDs = ids(v)
		}
		if q.Prompt == 0 {
			return fmt.Errorf("You must pass at least one prompt")
		}
	default:
		return fmt.Errorf("Either prompt or prompt_embeds must be provided and non-empty.")
	}
	q.Digest = h.Sum64()
	return nil
}

func (q *Request) setText(text []byte, light bool, h *maphash.Hash) {
	h.Write(text)
	q.Prompt = len(text) + 1
	if !light {
		q.IDs = EncodeText(text)
	}
}

// chatOf reads the messages of a body. Content parts that are text are joined.
func chatOf(d *jsonedit.Doc) (messages []Message) {
	d.Get("messages").Each(func(_ []byte, m jsonedit.Value) bool {
		role, _ := m.Get("role").Text()
		messages = append(messages, Message{Role: string(role), Text: contentOf(m.Get("content"))})
		return true
	})
	return messages
}

func contentOf(content jsonedit.Value) (text []byte) {
	switch content.Kind() {
	case jsonedit.String:
		text, _ = content.Text()
	case jsonedit.Array:
		content.Each(func(_ []byte, part jsonedit.Value) bool {
			more, ok := part.Get("text").Text()
			if !ok {
				more = contentOf(part.Get("content")) // a tool's result
			}
			text = append(slices.Clip(text), more...)
			return true
		})
	}
	return text
}

func ids(v jsonedit.Value) (out []int32) {
	v.Each(func(_ []byte, id jsonedit.Value) bool {
		n, _ := id.Int()
		out = append(out, int32(n))
		return true
	})
	return out
}

// Forged reports a value that only a client would have sent, anywhere in a top-level member of the body.
func (w *Worker) Forged(d *jsonedit.Doc) {
	text, number := []byte(ForgedText), fmt.Append(nil, ForgedInt)
	d.Each(func(name string, v jsonedit.Value, _ bool) bool {
		if name == "messages" || name == "prompt" || name == "text" {
			return true
		}
		if raw := v.Raw(); bytes.Contains(raw, text) || bytes.Contains(raw, number) {
			w.Violate(RuleForged, "%s holds what a client sent", name)
		}
		return true
	})
}
