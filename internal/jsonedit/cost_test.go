package jsonedit

import (
	"strconv"
	"strings"
	"testing"
)

// What keeping control fields out costs: a body read under an engine's policy, beside the same one read for its JSON alone.
func BenchmarkCostControl(b *testing.B) {
	p := NewPolicy(Config{Engine: VLLMNixl, Endpoint: Chat})
	for _, size := range []int{1 << 10, 100 << 10, 4 << 20} {
		body := []byte(`{"model":"m","temperature":0.5,"max_tokens":16,"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`)
		for name, policy := range map[string]*Policy{"json": nil, "policy": p} {
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, no := Read(body, policy); no != nil {
						b.Fatal(no)
					}
				}
			})
		}
	}
}
