package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The text of a greedy reply depends on the prompt alone: not on how many tokens a page or a chunk has, nor on who else is served. The same
// for a real model is `make chat-check`.
func TestOneTextForEveryPageChunkAndCrowd(t *testing.T) {
	const prompts = 8
	rng := rand.New(rand.NewPCG(6, 6))
	var asked, codes, texts [prompts]string
	for i := range asked {
		asked[i], codes[i] = needle(rng, 300+rng.IntN(900))
	}
	for _, page := range []int{16, 64} {
		for _, chunk := range []int{64, 512} {
			x := startTrio(t, []string{"--page-tokens", strconv.Itoa(page), "--prefill-chunk", strconv.Itoa(chunk), "--context", "8192"})
			for _, crowd := range []int{1, prompts} {
				way := fmt.Sprintf("page %d, chunk %d, %d at once", page, chunk, crowd)
				var got [prompts]answer
				var wg sync.WaitGroup
				turn := make(chan struct{}, crowd)
				for i := range asked {
					turn <- struct{}{}
					wg.Go(func() {
						defer func() { <-turn }()
						a, err := post(t.Context(), x.url, "/v1/completions", map[string]any{"model": "m", "prompt": asked[i], "max_tokens": 80, "temperature": 0})
						if err != nil {
							t.Errorf("%s: %v", way, err)
						}
						got[i] = a
					})
				}
				wg.Wait()
				for i, a := range got {
					if texts[i] == "" {
						texts[i] = a.text
					}
					if a.status != 200 || a.text != texts[i] || !strings.HasPrefix(a.text, " "+codes[i]) || a.usage.Completion != 80 {
						t.Errorf("%s: prompt %d: status %d, %q, elsewhere %q", way, i, a.status, a.text, texts[i])
					}
				}
			}
			x.settled()
		}
	}
}
