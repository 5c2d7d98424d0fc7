package guardmodes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
)

// A body is held until the legs have it, and not for as long as they answer: a thousand long streams of long prompts would not fit.
func TestAStreamHoldsNoBody(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.VLLMMooncake, fake.Plain} {
		t.Run(engine, func(t *testing.T) {
			o := fake.Options{Engine: engine, Light: true, Context: 4 << 20, TokenWait: time.Second, Prefill: fake.Leg{Pool: 4 << 20}, Decode: fake.Leg{Pool: 4 << 20}}
			r := newRig(t, o, nil)
			body := fmt.Sprintf(`{"model":"recall","max_tokens":64,"stream":true,"prompt":%q}`, strings.Repeat("harbour ", 1<<17))
			resp, err := http.Post("http://"+r.g.Addr()+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, 10)
			if n, err := resp.Body.Read(first); resp.StatusCode != 200 || n == 0 || err != nil {
				t.Fatalf("%d %q %v", resp.StatusCode, first[:n], err)
			}
			for end := time.Now().Add(20 * time.Second); r.metric("sluice_body_bytes") != 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%v bytes of bodies are held while a stream goes on", r.metric("sluice_body_bytes"))
				}
			}
			if r.metric("sluice_inflight_requests") != 1 {
				t.Error("the stream had ended: this shows nothing")
			}
		})
	}
}
