package sglang

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Recorded from real legs that were asked as a gateway asks them: prefill's answer whole, decode's stream with its counts in every chunk.
func TestLegsOfAGatewayAreAsRecorded(t *testing.T) {
	files, _ := filepath.Glob("../../gateway/upstream/sglang/testdata/*.json")
	if len(files) == 0 {
		t.Fatal("nothing is recorded")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want struct {
				Bytes           int `json:"prompt_bytes"`
				Prefill, Decode struct {
					Status int
					Body   string
				}
			}
			b, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(b, &want)
			}
			if err != nil {
				t.Fatal(err)
			}
			version, most := "0.5.19", 64
			if strings.HasPrefix(name, "refused") {
				version = "0.5.20"
			}
			if strings.HasPrefix(name, "fits") {
				most = 12
			}
			r := newRig(t, version, nil)
			path, ask := "/v1/completions", fmt.Sprintf(`{"model":"recall","prompt":%q,"max_tokens":%d,"temperature":0}`, textOf(want.Bytes), most)
			if strings.Contains(name, "chat") {
				path, ask = "/v1/chat/completions", fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0}`, textOf(want.Bytes), most)
			}
			// Somebody was here before.
			r.send("/generate", fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":2,"temperature":0}}`, textOf(700)))
			prefill := r.meet(ask)
			decode := prefill
			if strings.Contains(name, "stream") {
				decode = member(member(prefill, "stream", "true"), "stream_options", `{"include_usage":true,"continuous_usage_stats":true}`)
			}
			var p, d reply
			var wg sync.WaitGroup
			wg.Go(func() { p = post(r.prefill.URL()+path, prefill) })
			wg.Go(func() { d = post(r.decode.URL()+path, decode) })
			wg.Wait()
			like(t, "prefill", p, want.Prefill.Status, want.Prefill.Body)
			like(t, "decode", d, want.Decode.Status, want.Decode.Body)
		})
	}
}
