package jsonedit

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// corpora are what prompts are made of, as one JSON string's inside.
var corpora = map[string]string{
	"english": "the sun went down over the quiet harbour and a small boat came in with nets full of silver fish while children ran along ",
	"code":    `func (s *scanner) value(i, depth int) int {\n\tif i >= len(s.body) {\n\t\treturn s.fail(\"ends early\", i)\n\t}\n\tswitch c := s.body[i]; c {\n`,
	"chinese": "太阳落在宁静的港口上，一艘小船载着满网银鱼驶来，孩子们沿着墙奔跑，老人们修补船帆，直到冬天把每条路都变成泥泞。",
	"russian": "солнце село над тихой гаванью, и маленькая лодка пришла с сетями, полными серебряной рыбы, пока дети бежали вдоль стены ",
	"emoji":   "😀 ok 👍 then 🚀 go 🎉 ",
}

func chatOf(kind string, size int) []byte {
	text := corpora[kind]
	content := strings.Repeat(text, size/len(text)+1)
	for n := size; ; n-- {
		if cut := content[:n]; validInside(cut) {
			return []byte(`{"model":"recall","messages":[{"role":"system","content":"Be short."},{"role":"user","content":"` + cut +
				`"}],"max_tokens":128,"temperature":0.7,"stream":true,"stream_options":{"include_usage":true},"user":"u1"}`)
		}
	}
}

func validInside(s string) bool {
	b := []byte(`{"a":"` + s + `"}`)
	_, r := Read(b, nil)
	return r == nil
}

func BenchmarkRead(b *testing.B) {
	p := NewPolicy(Config{Engine: SGLang, Endpoint: Chat})
	for _, size := range []int{1 << 10, 100 << 10, 4 << 20} {
		for _, kind := range []string{"english", "code", "chinese", "russian", "emoji"} {
			body := chatOf(kind, size)
			b.Run(fmt.Sprintf("%s/%dKB", kind, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if _, r := Read(body, p); r != nil {
						b.Fatal(r)
					}
				}
			})
		}
	}
	ids := []byte(`{"model":"m","prompt":[` + strings.Repeat("151643,12,8899,", 280000) + `1]}`)
	b.Run("ids/4MB", func(b *testing.B) {
		b.SetBytes(int64(len(ids)))
		for b.Loop() {
			if _, r := Read(ids, NewPolicy(Config{Engine: SGLang, Endpoint: Completions})); r != nil {
				b.Fatal(r)
			}
		}
	})
	tools := []byte(`{"model":"m","messages":[],"tools":[` + strings.TrimSuffix(strings.Repeat(`{"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}}}}},`, 30000), ",") + `]}`)
	b.Run("tools/4MB", func(b *testing.B) {
		b.SetBytes(int64(len(tools)))
		for b.Loop() {
			if _, r := Read(tools, p); r != nil {
				b.Fatal(r)
			}
		}
	})
}

// Read, two edits, and both bodies written: what a gateway pays per request, without sockets.
func BenchmarkTwoLegs(b *testing.B) {
	p := NewPolicy(Config{Engine: SGLang, Endpoint: Chat})
	for _, size := range []int{1 << 10, 100 << 10, 4 << 20} {
		body := chatOf("english", size)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				d, r := Read(body, p)
				if r != nil {
					b.Fatal(r)
				}
				for leg := range 2 {
					e := d.Edit().SetText("bootstrap_host", "10.0.0.1").SetInt("bootstrap_port", 8998).SetInt("bootstrap_room", 5923847592384759)
					if leg == 0 {
						e.SetBool("stream", false).Delete("stream_options")
					}
					if _, err := e.Body().NewReader().WriteTo(io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// The floor: how fast these bytes can be gone over at all.
func BenchmarkIndexByte(b *testing.B) {
	body := bytes.Repeat([]byte{'a'}, 4<<20)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if bytes.IndexByte(body, '"') >= 0 {
			b.Fatal()
		}
	}
}

// A chunk of a stream whose usage is looked at and taken out: what each token costs a gateway that asked for usage by itself.
func BenchmarkChunk(b *testing.B) {
	chunk := []byte(`{"id":"chatcmpl-attempt-0002","object":"chat.completion.chunk","created":1796046883,"model":"recall","choices":[{"index":0,"delta":{"content":"A"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":91,"total_tokens":106,"completion_tokens":15,"completion_tokens_details":null}}`)
	b.ReportAllocs()
	out := make([]byte, 0, 512)
	for b.Loop() {
		d, r := Read(chunk, nil)
		if r != nil {
			b.Fatal(r)
		}
		if n, ok := d.Get("usage").Get("prompt_tokens").Int(); n != 91 || !ok {
			b.Fatal(n)
		}
		out = d.Edit().Delete("usage").Body().AppendTo(out[:0])
	}
}
