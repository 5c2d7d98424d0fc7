package web

import (
	"bytes"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// summary is what the bodies of one reply said so far.
type summary struct {
	ours               string // the id that the engines were given for this attempt
	most               int    // choices that were asked for; 0: not known
	first              bool   // of prefill: it makes one token, and ends in no other way than by having made it
	id, model          string
	begun              bool
	prompt, completion int // -1: not said
	choices            []choice
	here               []int // places of the last body's choices
	content            bool  // the last body held text, or something else that a client would show
	usage              bool  // the last body had a usage that says something
	ending             bool  // the last body said how a choice ended
}

type choice struct {
	index  int64
	reason legs.Finish
	ended  bool
}

// minted begins the ids that the gateway gives requests at engines (Asked.ID), which make their own ids from them.
const minted = "slc-"

// NewID is the id of an attempt's request at the engines.
func NewID(attempt string) string { return minted + attempt }

// OfAnother reports whether a name that an engine gave holds an id that was minted here, and not the one that it should. A name without
// any says nothing.
func OfAnother(name, ours string) bool {
	i := strings.Index(name, minted)
	return i >= 0 && ours != "" && !strings.HasPrefix(name[i:], ours)
}

// OfThis reports whether a name that an engine gave holds the id that it was given.
func OfThis(name, ours string) bool { return ours != "" && strings.Contains(name, ours) }

// maxChoices of one reply.
const maxChoices = 1 << 10

// add takes a body. It returns what is wrong with it, "" if nothing. Chunk tells a stream's from a whole reply's.
func (s *summary) add(doc *jsonedit.Doc, chunk bool) string {
	if !s.begun {
		s.begun, s.prompt, s.completion = true, -1, -1
		id, _ := doc.Get("id").Text()
		s.id = string(id)
		model, _ := doc.Get("model").Text()
		s.model = string(model)
		if OfAnother(s.id, s.ours) {
			return "is to another attempt's request"
		}
	} else if id, _ := doc.Get("id").Text(); string(id) != s.id {
		return "has another id than the reply's before"
	} else if model, _ := doc.Get("model").Text(); len(model) > 0 && s.model != "" && string(model) != s.model {
		return "names another model than the reply's before"
	}
	s.content, s.usage, s.ending = false, false, false
	if why := s.counts(doc.Get("usage")); why != "" {
		return why
	}
	if why := s.meta(doc.Get("meta_info")); why != "" {
		return why
	}
	why, any, here := "", false, s.here[:0]
	choices := doc.Get("choices")
	if choices.Kind() != jsonedit.Array {
		return "has no choices"
	}
	choices.Each(func(_ []byte, c jsonedit.Value) bool {
		any = true
		var at int
		if at, why = s.choice(c); why == "" && slices.Contains(here, at) {
			why = "has a choice twice"
		}
		here = append(here, at)
		return why == ""
	})
	s.here = here[:0]
	if why == "" && !any && !chunk {
		why = "has no choices"
	}
	return why
}

// counts takes a usage. A count may be left out or null; what is no count in its place is a breach, and not the same as silence.
func (s *summary) counts(u jsonedit.Value) (why string) {
	if !u.Said() {
		return ""
	}
	if u.Kind() != jsonedit.Object {
		return "has a usage that is no object"
	}
	u.Each(func(name []byte, v jsonedit.Value) bool {
		prompt := string(name) == "prompt_tokens"
		if !prompt && string(name) != "completion_tokens" || !v.Said() {
			return true
		}
		n, ok := v.Int()
		switch {
		case !ok || n < 0 || n > 1<<40:
			why = "counts tokens with what is no count"
		case prompt:
			s.prompt, s.usage = int(n), true
		default:
			s.completion = int(n)
		}
		return why == ""
	})
	return why
}

// meta takes what SGLang says of a request in its own words. Its chats and completions do not say it; where it is said beside a usage and a
// finish reason it must not take them back.
func (s *summary) meta(m jsonedit.Value) string {
	if m.Kind() != jsonedit.Object {
		return ""
	}
	reason := m.Get("finish_reason")
	if reason.Kind() == jsonedit.Object {
		reason = reason.Get("type")
	}
	if text, ok := reason.Text(); reason.Said() && (!ok || s.finishOf(text) == legs.Other) {
		return "takes back in its meta_info that it succeeded"
	}
	if n, ok := m.Get("prompt_tokens").Int(); ok && s.prompt >= 0 && n != int64(s.prompt) {
		return "has two counts of its prompt"
	}
	return ""
}

// choice takes one choice. It returns its place among the reply's, and what is wrong with it.
func (s *summary) choice(c jsonedit.Value) (place int, why string) {
	var at int64
	var reason jsonedit.Value
	bad, content := "", false
	c.Each(func(name []byte, v jsonedit.Value) bool {
		switch string(name) {
		case "index":
			n, ok := v.Int()
			if !ok || n < 0 {
				bad = "has a choice without a number"
			}
			at = n
		case "finish_reason":
			reason = v
		case "error":
			if v.Said() {
				bad = "has an error in a choice"
			}
		case "meta_info":
			if why := s.meta(v); why != "" {
				bad = why
			}
		case "text":
			content = content || says(v)
		case "delta", "message":
			v.Each(func(name []byte, m jsonedit.Value) bool {
				if n := string(name); n != "role" && says(m) {
					content = true
				}
				return true
			})
		}
		return true
	})
	if bad != "" {
		return 0, bad
	}
	if s.most > 0 && at >= int64(s.most) {
		return 0, "has a choice that nobody asked for"
	}
	s.content = s.content || content
	i := 0
	for i < len(s.choices) && s.choices[i].index != at {
		i++
	}
	if i == len(s.choices) {
		if i == maxChoices {
			return 0, "has too many choices"
		}
		s.choices = append(s.choices, choice{index: at})
	}
	ch := &s.choices[i]
	if ch.ended && content {
		return i, "goes on after its finish reason"
	}
	if reason.Said() {
		text, ok := reason.Text()
		if !ok {
			return i, "has a finish reason that is no text"
		}
		ch.ended, ch.reason, s.ending = true, s.finishOf(text), true
	}
	return i, ""
}

// says reports whether a value holds anything.
func says(v jsonedit.Value) bool {
	if !v.Said() {
		return false
	}
	raw := v.Raw()
	return !bytes.Equal(raw, []byte(`""`)) && !bytes.Equal(raw, []byte(`[]`)) && !bytes.Equal(raw, []byte(`{}`))
}

// finishOf reads a finish reason of the public API or of an engine.
func (s *summary) finishOf(text []byte) legs.Finish {
	switch string(text) {
	case "stop", "tool_calls", "function_call":
		return legs.Stop
	case "content_filter", "repetition":
		if !s.first {
			return legs.Stop
		}
	case "length":
		return legs.Length
	}
	return legs.Other
}

// failed reports whether a choice ended in no way of a reply's.
func (s *summary) failed() bool {
	return slices.ContainsFunc(s.choices, func(c choice) bool { return c.reason == legs.Other })
}

// finish is the reply's: none until every choice has one, and the worst of them.
func (s *summary) finish() (f legs.Finish) {
	for _, c := range s.choices {
		if !c.ended {
			return legs.NoFinish
		}
		f = max(f, c.reason)
	}
	return f
}
