package fake

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a fake costs by itself, client and server in one process: whatever stands between them comes on top.
func BenchmarkLight(b *testing.B) {
	p, err := NewFleet(nil).Pair(Options{Engine: Plain, Light: true, Context: 8 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for _, size := range []int{1 << 10, 100 << 10, 4 << 20} {
		for _, stream := range []bool{false, true} {
			body := fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%q}],"max_tokens":64,"stream":%v}`, strings.Repeat("harbour ", size/8), stream)
			b.Run(fmt.Sprintf("%dKB/stream=%v", size>>10, stream), func(b *testing.B) {
				for b.Loop() {
					resp, err := client.Post(p.Decode.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err != nil || resp.StatusCode != 200 || n < 500 {
						b.Fatal(resp.StatusCode, n, err)
					}
				}
			})
		}
	}
}

// A thousand streams at once, with both legs of each pair.
func TestAThousandStreams(t *testing.T) {
	for _, engine := range []string{SGLang, VLLMNixl, VLLMMooncake} {
		p, err := NewFleet(t).Pair(Options{Engine: engine, Light: true, Patience: time.Hour, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		n := newNaive(p)
		n.patience = time.Hour
		var wg sync.WaitGroup
		var mu sync.Mutex
		good := 0
		for range 1000 {
			wg.Go(func() {
				m := *n
				_, d := m.ask(paths[0], bodyOf(paths[0], "hello"), true, 8)
				mu.Lock()
				defer mu.Unlock()
				if d.status == 200 && done(d) && textOf(d) == "abcdefgh" {
					good++
				} else if good >= 0 {
					t.Errorf("%s: %d %v %.200s", engine, d.status, d.err, d.body)
					good = -1 << 20
				}
			})
		}
		wg.Wait()
		if good != 1000 {
			t.Errorf("%s: %d of 1000", engine, good)
		}
		p.Close()
	}
}
