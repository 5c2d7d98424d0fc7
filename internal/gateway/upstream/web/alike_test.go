package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/sse"
)

// heard is what a run says of a stream: with each chunk read strictly, or with those alike taken as such. quick is how many were.
func heard(stream string, p Plan, strict bool) (es []legs.Event, out []byte, rep Report, quick int) {
	p.Stream, p.Hold, p.Whole = true, 1<<30, 1<<20
	r := &Run{plan: p, wake: make(chan struct{}, 1)}
	r.space.L = &r.mu
	var s summary
	var like alike
	for in := sse.NewReader(strings.NewReader(stream), maxEvent); ; {
		e, err := in.Next()
		if err != nil {
			break
		}
		if strict {
			like = alike{}
		}
		if like.hear(r, &s, e.Data) {
			quick++
			continue
		}
		r.hearChunk(&s, &like, e.Data)
	}
	r.sayEnd(&s)
	for {
		e, err := r.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		es = append(es, e)
	}
	return es, bytes.Join(r.Take(nil), nil), r.report, quick
}

func chunks(form string, n int) string {
	var all []string
	for i := range n {
		all = append(all, strings.NewReplacer("%T", fmt.Sprintf(" word%d", i%3), "%N", fmt.Sprint(i+1), "%S", fmt.Sprint(i+8)).Replace(form))
	}
	return events(all...)
}

var forms = map[string]string{
	"completion, no usage": `{"id":"a","object":"text_completion","choices":[{"index":0,"text":"%T","logprobs":null,"finish_reason":null}]}`,
	"completion":           `{"id":"a","choices":[{"index":0,"text":"%T","finish_reason":null}],"usage":{"prompt_tokens":7,"total_tokens":%S,"completion_tokens":%N}}`,
	"chat":                 `{"id":"a","choices":[{"index":0,"delta":{"content":"%T"},"finish_reason":null}],"usage":{"prompt_tokens":7,"completion_tokens":%N}}`,
	"chat, usage null":     `{"id":"a","choices":[{"index":0,"delta":{"role":null,"content":"%T","tool_calls":null},"finish_reason":null}],"usage":null}`,
	"usage in between":     `{"id":"a","choices":[{"index":0,"delta":{"content":"%T"}}],"usage":{"prompt_tokens":7,"completion_tokens":%N},"us":1}`,
	"white space":          `{ "id": "a", "choices": [{"index": 0, "delta": {"content": "%T"}}], "usage": {"prompt_tokens": 7, "completion_tokens": %N} }`,
	"a secret beside":      `{"id":"a","choices":[{"index":0,"text":"%T"}],"usage":{"prompt_tokens":7,"completion_tokens":%N},"kv_transfer_params":{"a":1}}`,
}

func TestChunksThatAreAlikeAreHeardAsIfTheyWereRead(t *testing.T) {
	for name, form := range forms {
		for _, p := range []Plan{{}, {Usage: true}, {Usage: true, Every: true}} {
			stream := chunks(form, 9) + events(strings.NewReplacer("%T", "end", "%N", "10", "%S", "17", `"finish_reason":null`, `"finish_reason":"stop"`).Replace(form))
			e1, o1, r1, _ := heard(stream, p, true)
			e2, o2, r2, quick := heard(stream, p, false)
			if !reflect.DeepEqual(e1, e2) || !bytes.Equal(o1, o2) || r1 != r2 {
				t.Errorf("%s, %+v:\n%v\n%v\n%s\n%s", name, p, e1, e2, o1, o2)
			}
			// An edit does not keep the white space before the first member: what it changes is read.
			if quick < 8 && (name != "white space" || p.Every) {
				t.Errorf("%s, %+v: %d of 9 chunks were taken as alike", name, p, quick)
			}
		}
	}
}

// Nothing that a strict reading objects to passes as alike.
func TestWhatIsNotAlikeIsRead(t *testing.T) {
	good := chunks(forms["chat"], 3)
	one := strings.NewReplacer("%T", "x", "%N", "4").Replace(forms["chat"])
	for name, bad := range map[string]string{
		"another id":       strings.Replace(one, `"a"`, `"b"`, 1),
		"another count":    strings.Replace(one, `"prompt_tokens":7`, `"prompt_tokens":8`, 1),
		"an error":         strings.Replace(one, `{"id"`, `{"error":{"message":"no"},"id"`, 1),
		"a finish":         strings.Replace(one, `"finish_reason":null`, `"finish_reason":"stop"`, 1),
		"another choice":   strings.Replace(one, `"index":0`, `"index":1`, 1),
		"a name twice":     strings.Replace(one, `"x"`, `"x","content":"y"`, 1),
		"a member more":    strings.Replace(one, `"x"`, `"x","refusal":"y"`, 1),
		"no text":          strings.Replace(one, `"x"`, `7`, 1),
		"a count of text":  strings.Replace(one, `:4}`, `:"4"}`, 1),
		"a negative count": strings.Replace(one, `:4}`, `:-4}`, 1),
		"half":             one[:len(one)-1],
		"more":             one + "1",
	} {
		stream := good + events(bad)
		e1, o1, r1, q1 := heard(stream, Plan{}, true)
		e2, o2, r2, q2 := heard(stream, Plan{}, false)
		if q1 != 0 || q2 != 2 || !reflect.DeepEqual(e1, e2) || !bytes.Equal(o1, o2) || r1 != r2 {
			t.Errorf("%s: %d and %d alike\n%v\n%v\n%s\n%s", name, q1, q2, e1, e2, o1, o2)
		}
	}
	// After a finish reason nothing is taken unread.
	stream := good + events(strings.Replace(one, `"finish_reason":null`, `"finish_reason":"stop"`, 1)) + good
	e1, o1, _, _ := heard(stream, Plan{}, true)
	e2, o2, _, _ := heard(stream, Plan{}, false)
	if !reflect.DeepEqual(e1, e2) || !bytes.Equal(o1, o2) {
		t.Errorf("after the finish:\n%v\n%v", e1, e2)
	}
}

// Whatever two chunks are: taken as alike or read, they say the same.
func FuzzAlike(f *testing.F) {
	for _, form := range forms {
		f.Add(strings.NewReplacer("%T", "a", "%N", "1", "%S", "8").Replace(form), strings.NewReplacer("%T", "bc", "%N", "2", "%S", "9").Replace(form), true)
	}
	f.Fuzz(func(t *testing.T, first, second string, usage bool) {
		stream := events(first, second, second, first)
		p := Plan{Usage: usage}
		e1, o1, r1, _ := heard(stream, p, true)
		e2, o2, r2, _ := heard(stream, p, false)
		if !reflect.DeepEqual(e1, e2) || !bytes.Equal(o1, o2) || r1 != r2 {
			t.Errorf("%q:\n%v\n%v\n%s\n%s", stream, e1, e2, o1, o2)
		}
	})
}

// What a stream of 64 chunks costs from its bytes to the events, without sockets.
func BenchmarkStream(b *testing.B) {
	stream := chunks(forms["completion"], 64) + "data: [DONE]\n\n"
	for _, usage := range []bool{false, true} {
		b.Run(fmt.Sprintf("usage=%v", usage), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hear(stream, Plan{Usage: usage, Every: usage})
			}
		})
	}
}
