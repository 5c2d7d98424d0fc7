package foreign

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
)

// Decode cannot be told where to read without the id of Mooncake's engine: a prefill worker whose bootstrap server is not up yet is asked again
// soon, however well the rest of it was read, and no sooner than usual once it answered.
func TestTheBootstrapServerIsAskedAgain(t *testing.T) {
	var up atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","max_model_len":4096}]}`)
		case r.URL.Path == "/version":
			io.WriteString(w, `{"version":"0.32.0"}`)
		case r.URL.Path == "/query" && up.Load():
			io.WriteString(w, `{"0":{"engine_id":"e-1"}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(u.Port())
	f := pinnedFleet(t, Config{Engine: VLLMMooncake, Patient: 20 * time.Second, Workers: []Worker{
		{Name: "p", Role: capacity.Prefill, URL: u, BootstrapPort: port, PoolTokens: 4096},
		{Name: "d", Role: capacity.Decode, URL: u},
	}})
	n := f.byName["p"]
	if f.readOnce(n) || n.last == nil {
		t.Errorf("no id, and it is not asked again soon; facts read: %v", n.last != nil)
	}
	up.Store(true)
	if !f.readOnce(n) || n.engineID != "e-1" {
		t.Errorf("the id is %q, or it is asked for again", n.engineID)
	}
}
