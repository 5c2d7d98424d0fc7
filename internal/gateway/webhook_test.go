package gateway

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
)

func hookFor(t *testing.T, url string) (*webhook, func(result string) float64) {
	t.Helper()
	count := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, []string{"result"})
	h := newWebhook(url, slog.New(slog.DiscardHandler), count)
	h.pause = time.Millisecond
	t.Cleanup(h.close)
	return h, func(result string) float64 {
		var m dto.Metric
		if err := count.WithLabelValues(result).Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetCounter().GetValue()
	}
}

// The webhook is asked again a few times where that may help, and not where it does not.
func TestTheWebhookIsTriedAFewTimes(t *testing.T) {
	for _, c := range []struct {
		statuses []int // one a try; then 200
		tries    int32
		result   string
	}{
		{nil, 1, "sent"}, {[]int{500}, 2, "sent"}, {[]int{503, 429}, 3, "sent"}, {[]int{500, 500, 500, 500}, 3, "failed"}, {[]int{400}, 1, "failed"}, {[]int{302}, 1, "failed"},
	} {
		var tries atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := int(tries.Add(1))
			var i Incident
			if b, _ := io.ReadAll(r.Body); json.Unmarshal(b, &i) != nil || i.ID != "inc-1" {
				t.Errorf("%s", b)
			}
			if n <= len(c.statuses) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.statuses[n-1])
			}
		}))
		h, got := hookFor(t, s.URL)
		h.announce(Incident{ID: "inc-1"})
		fleettest.Until(t, "the incident is "+c.result, func() bool { return got(c.result) == 1 })
		if n := tries.Load(); n != c.tries {
			t.Errorf("%v: %d tries, want %d", c.statuses, n, c.tries)
		}
		s.Close()
	}
}

// A webhook that hangs holds up nobody: what does not fit into the queue is dropped, and counted.
func TestAWebhookThatHangsHoldsUpNobody(t *testing.T) {
	hang := make(chan struct{})
	var once sync.Once
	asked := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { once.Do(func() { close(asked) }); <-hang }))
	defer s.Close()
	defer close(hang)
	h, got := hookFor(t, s.URL)
	h.announce(Incident{ID: "first"})
	<-asked
	for range webhookQueue + 100 {
		h.announce(Incident{ID: "more"}) // would never return if it waited
	}
	if n := got("dropped"); n != 100 {
		t.Errorf("%v were dropped", n)
	}
	h.close() // ends at once, too
}

// Nothing of a request's content can be in an incident: its members are ids, names and numbers.
func TestWhatAnIncidentHolds(t *testing.T) {
	b, err := json.Marshal(Incident{ID: "i", Guard: "prompt-agree", Detail: "5 and 7"})
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"prompt\"", "messages", "content", "text", "body", "tokens_ids"} {
		if strings.Contains(string(b), `"`+member) {
			t.Errorf("%s", b)
		}
	}
	h, got := hookFor(t, "")
	h.announce(Incident{})
	if got("dropped")+got("sent")+got("failed") != 0 || len(h.queue) != 0 {
		t.Error("without an address nothing is queued")
	}
}
