package prompt

import (
	"strings"
	"testing"
)

func BenchmarkChat(b *testing.B) {
	e := chatEncoder(b, chatML)
	long := strings.Repeat("the quick brown fox jumps over the lazy dog. ", 1000)
	for name, msgs := range map[string][]Message{
		"one short": {{"user", "hello there"}},
		"1000 turns": func() (ms []Message) {
			for range 500 {
				ms = append(ms, Message{"user", "what is the fox?"}, Message{"assistant", "the quick brown one"})
			}
			return ms
		}(),
		"45 kB": {{"user", long}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for range b.N {
				ids, err := e.Chat(msgs, 0)
				if err != nil {
					b.Fatal(err)
				}
				n += len(ids)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}
