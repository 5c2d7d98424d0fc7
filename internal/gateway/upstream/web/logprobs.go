package web

import (
	"bytes"
	"hash/maphash"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Logprobs is what a plan does with the logprobs of the legs' first token.
type Logprobs struct {
	Read bool // both legs were asked for them, or decode was by its client
	// Hide takes them out of decode's reply: the gateway asked, not the client.
	Hide bool
	// Empty keeps chunks that hold nothing but logprobs: the engine sends them all the same.
	Empty bool
}

var tokenSeed = maphash.MakeSeed()

// byID begins the names of tokens where an engine was asked for ids.
var byID = []byte("token_id:")

// named is a token's name as legs compare it. Text with a replacement character stands for several tokens: it names none.
func named(name []byte) (key uint64, id, ok bool) {
	if bytes.ContainsRune(name, utf8.RuneError) {
		return 0, false, false
	}
	return maphash.Bytes(tokenSeed, name), bytes.HasPrefix(name, byID), true
}

// topOf reads what a choice says of its first token: of a chat's logprobs {"content":[{"token","logprob","top_logprobs":[…]}]}, of a
// completion's {"tokens":[…],"token_logprobs":[…],"top_logprobs":[{…}]}. listed is how many tokens it says something of.
func topOf(choice jsonedit.Value) (top legs.Top, listed int) {
	l := choice.Get("logprobs")
	if l.Kind() != jsonedit.Object {
		return top, 0
	}
	add := func(name, logprob jsonedit.Value) {
		text, ok := name.Text()
		x, is := logprob.Float()
		if !ok || !is {
			return
		}
		key, id, ok := named(text)
		if ok && !has(&top, key) {
			top.ByID = id
			top.Add(key, float32(x))
		}
	}
	if content := l.Get("content"); content.Kind() == jsonedit.Array {
		content.Each(func(_ []byte, c jsonedit.Value) bool {
			if listed++; listed > 1 {
				return true
			}
			add(c.Get("token"), c.Get("logprob"))
			c.Get("top_logprobs").Each(func(_ []byte, t jsonedit.Value) bool {
				add(t.Get("token"), t.Get("logprob"))
				return true
			})
			return true
		})
		return top, listed
	}
	chosen := first(l.Get("tokens"))
	l.Get("tokens").Each(func([]byte, jsonedit.Value) bool { listed++; return true })
	add(chosen, first(l.Get("token_logprobs")))
	first(l.Get("top_logprobs")).Each(func(name []byte, x jsonedit.Value) bool {
		f, is := x.Float()
		if key, id, ok := named(name); ok && is && !has(&top, key) {
			top.ByID = id
			top.Add(key, float32(f))
		}
		return true
	})
	return top, listed
}

func has(t *legs.Top, key uint64) bool {
	for i := range t.N {
		if t.Token[i] == key {
			return true
		}
	}
	return false
}

func first(v jsonedit.Value) (f jsonedit.Value) {
	if v.Kind() == jsonedit.Array {
		v.Each(func(_ []byte, x jsonedit.Value) bool { f = x; return false })
	}
	return f
}

// hearTop says what a body tells of the token after the prompt. completion is how many tokens the reply has with this body, -1 if it
// does not say: of a stream only the chunk that holds the first token counts, and a chunk that the engine kept back may have held it.
func (r *Run) hearTop(l legs.Leg, doc *jsonedit.Doc, chunk bool, completion int) {
	if !r.plan.Logprobs.Read || l == legs.Decode && r.topped {
		return
	}
	top, listed := topOf(first(doc.Get("choices")))
	if l == legs.Decode {
		r.topped = listed > 0 // what comes later is of later tokens
	}
	if listed == 0 || top.N == 0 || chunk && completion != listed {
		return
	}
	r.tell(legs.LegTop{Leg: l, Top: top}, nil)
}

// hidden is choices as the engine would have written them without logprobs. keep is false for a chunk that it would not have sent: one
// that says nothing, for a token that its parsers keep back.
func (p *Plan) hidden(choices jsonedit.Value) (out []byte, keep bool) {
	raw := choices.Raw()
	from, keep := 0, false
	choices.EachAt(func(_ []byte, c jsonedit.Value, at int) bool {
		said, mute := false, false
		c.EachAt(func(name []byte, v jsonedit.Value, in int) bool {
			switch string(name) {
			case "logprobs":
				if v.Said() {
					said = true
					out = append(append(out, raw[from:at+in]...), "null"...)
					from = at + in + len(v.Raw())
				}
			case "delta":
				mute = bytes.Equal(v.Raw(), []byte("{}"))
			case "finish_reason":
				keep = keep || v.Said()
			}
			return true
		})
		keep = keep || !said || !mute || p.Logprobs.Empty
		return true
	})
	return append(out, raw[from:]...), keep || from == 0
}
