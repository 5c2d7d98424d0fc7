package web

import (
	"bytes"
	"strconv"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// alike knows the chunk that was read last, so that those like it need no reading: all of it is the same bytes but for one piece of text
// and the counts. It is learned only from a chunk that was read strictly, and used only while a strict reading could say nothing else.
type alike struct {
	form   jsonedit.Form
	at     [3]jsonedit.Place // of the chunk in hand: the text, then the counts
	n      int               // of them
	count  int               // which of them is completion_tokens; 0: no usage
	prompt int
	// What clients get: the chunk without what lies between two points, each so far behind (or before) the place that it is next to.
	cut        bool
	behind     int // the place that the cut begins after
	from       int // bytes after its end
	fromTheEnd int
}

// learn takes a chunk that was read, the bytes that a client gets of it, and what was read: the text and the counts lie in it as they do in
// those to come.
func (a *alike) learn(doc *jsonedit.Doc, data, out []byte, s *summary) {
	*a = alike{}
	if s.over() || bytes.ContainsAny(data, "\r\n") {
		return
	}
	text, ok := textPlace(doc)
	if !ok {
		return
	}
	a.n, a.at[0], a.prompt = 1, text, s.prompt
	if u := doc.Get("usage"); u.Said() {
		base := doc.At("usage")
		u.EachAt(func(name []byte, v jsonedit.Value, at int) bool {
			n := string(name)
			if n != "total_tokens" && n != "completion_tokens" {
				return true
			}
			if c, is := v.Int(); !is || c < 0 || a.n == len(a.at) {
				ok = false
				return false
			}
			if n == "completion_tokens" {
				a.count = a.n
			}
			a.at[a.n] = jsonedit.Place{From: base + at, To: base + at + len(v.Raw())}
			a.n++
			return true
		})
		if !ok || !s.usage || a.count == 0 || base < text.To {
			return
		}
	}
	if !a.cutOf(data, out) {
		return
	}
	a.form = doc.Form(append([]jsonedit.Place(nil), a.at[:a.n]...)...)
}

// cutOf notes what a client does not get of a chunk.
func (a *alike) cutOf(data, out []byte) bool {
	inner, begun := bytes.CutPrefix(out, []byte("data: "))
	inner, ended := bytes.CutSuffix(inner, []byte("\n\n"))
	if !begun || !ended || len(inner) > len(data) {
		return false
	}
	if bytes.Equal(inner, data) {
		return true
	}
	from := 0
	for from < len(inner) && inner[from] == data[from] {
		from++
	}
	rest := len(inner) - from
	if !bytes.Equal(data[len(data)-rest:], inner[from:]) || from < a.at[0].To {
		return false
	}
	for i, p := range a.at[:a.n] {
		switch {
		case p.To <= from:
			a.behind = i
		case p.From < from || p.To > len(data)-rest:
			return false // a place lies across an end of the cut, or behind it
		}
	}
	a.cut, a.from, a.fromTheEnd = true, from-a.at[a.behind].To, rest
	return true
}

// textPlace is where the only text of a chunk of one choice lies; ok is false if it holds anything else that clients would show.
func textPlace(doc *jsonedit.Doc) (p jsonedit.Place, ok bool) {
	base, n, held := doc.At("choices"), 0, 0
	doc.Get("choices").EachAt(func(_ []byte, c jsonedit.Value, in int) bool {
		n++
		c.EachAt(func(name []byte, v jsonedit.Value, at int) bool {
			at += base + in
			switch string(name) {
			case "text":
				held++
				p, ok = jsonedit.Place{From: at, To: at + len(v.Raw()), Text: true}, v.Kind() == jsonedit.String
			case "delta":
				v.EachAt(func(name []byte, m jsonedit.Value, on int) bool {
					switch string(name) {
					case "role":
					case "content":
						held++
						p, ok = jsonedit.Place{From: at + on, To: at + on + len(m.Raw()), Text: true}, m.Kind() == jsonedit.String
					default:
						if says(m) {
							held += 2
						}
					}
					return true
				})
			case "finish_reason", "logprobs":
				if v.Said() {
					held += 2
				}
			}
			return true
		})
		return true
	})
	return p, ok && n == 1 && held == 1
}

// hear takes a chunk that is like the one before, and reports whether it was one.
func (a *alike) hear(r *Run, s *summary, data []byte) bool {
	if a.form.IsZero() || !a.form.Match(data, a.at[:a.n]) {
		return false
	}
	text := a.at[0]
	n := min(text.To-text.From-2, 1)
	s.content, s.usage, s.ending = n > 0, a.count > 0, false
	came := legs.LegBytes{Leg: legs.Decode, N: n}
	out := a.forClient(r, data)
	if a.count == 0 {
		r.tell(came, out)
		return true
	}
	c := a.at[a.count]
	s.completion, _ = strconv.Atoi(string(data[c.From:c.To]))
	s.prompt = a.prompt
	r.tellBoth(legs.LegUsage{Leg: legs.Decode, Prompt: s.prompt, Completion: s.completion}, came, out)
	return true
}

func (a *alike) forClient(r *Run, data []byte) []byte {
	out := append(r.room(len(data)+8), "data: "...)
	if a.cut {
		out = append(out, data[:a.at[a.behind].To+a.from]...)
		data = data[len(data)-a.fromTheEnd:]
	}
	return append(append(out, data...), "\n\n"...)
}

// over reports whether a choice has ended.
func (s *summary) over() bool {
	for _, c := range s.choices {
		if c.ended {
			return true
		}
	}
	return false
}
