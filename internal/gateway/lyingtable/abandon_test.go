package lyingtable

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway"
)

// A refusal that decode never hears: the client has its 400 at once, and decode is told, by name, instead of waiting for minutes.
func TestDecodeIsToldThatNothingComes(t *testing.T) {
	p := workers(t, sg)
	p.lie.prefill = sends(400, `{"object":"error","message":"Input length (1500 tokens) exceeds the maximum allowed length","code":400}`)
	asked, told, left := make(chan string, 1), make(chan string, 1), make(chan struct{})
	p.decode.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			RID string `json:"rid"`
		}
		raw, _ := io.ReadAll(r.Body)
		json.Unmarshal(raw, &b)
		switch r.URL.Path {
		case "/abort_request":
			told <- b.RID
		case "/v1/chat/completions":
			asked <- b.RID
			<-r.Context().Done()
			close(left)
		default:
			http.NotFound(w, r)
		}
	})
	g := door(t, p, gateway.Enforce, nil)
	begun := time.Now()
	if a := ask(t, g, true, true, ""); a.status != 400 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if d := time.Since(begun); d > 3*time.Second {
		t.Errorf("the client waited %v", d)
	}
	if rid := <-asked; rid == "" || rid != <-told {
		t.Error("decode was not told about the request that it has")
	}
	<-left
}
