package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// webhook posts incidents to the operator, one after the other, from a queue that nobody waits for. What it holds is ids and numbers.
type webhook struct {
	url    atomic.Pointer[string]
	queue  chan Incident
	client http.Client
	pause  time.Duration // before a second try; doubles
	log    *slog.Logger
	count  *prometheus.CounterVec // by result
	wg     sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

// Bounds of the webhook.
const (
	webhookQueue = 256 // incidents that wait; more are dropped, and counted
	webhookTries = 3
	webhookTime  = 5 * time.Second // for one try
	webhookPause = time.Second
)

func newWebhook(url string, log *slog.Logger, count *prometheus.CounterVec) *webhook {
	h := &webhook{queue: make(chan Incident, webhookQueue), pause: webhookPause, log: log, count: count}
	h.client = http.Client{Timeout: webhookTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.to(url)
	h.wg.Go(h.run)
	return h
}

// to sets where incidents go from now on; empty: nowhere.
func (h *webhook) to(url string) { h.url.Store(&url) }

// announce queues an incident, or drops it if too many wait.
func (h *webhook) announce(i Incident) {
	if *h.url.Load() == "" {
		return
	}
	select {
	case h.queue <- i:
	default:
		h.count.WithLabelValues("dropped").Inc()
	}
}

func (h *webhook) run() {
	for {
		select {
		case i := <-h.queue:
			h.post(i)
		case <-h.ctx.Done():
			return
		}
	}
}

// post tries to hand over one incident. What is answered is not read into anything.
func (h *webhook) post(i Incident) {
	url := *h.url.Load()
	body, err := json.Marshal(i)
	if err != nil || url == "" {
		return
	}
	pause := h.pause
	for try := 1; ; try++ {
		again, err := h.once(url, body)
		switch {
		case err == nil:
			h.count.WithLabelValues("sent").Inc()
			return
		case !again || try == webhookTries || h.ctx.Err() != nil:
			h.count.WithLabelValues("failed").Inc()
			h.log.Warn("the webhook did not take an incident", "id", i.ID, "tries", try, "error", err)
			return
		}
		select {
		case <-time.After(pause):
		case <-h.ctx.Done():
		}
		pause *= 2
	}
}

// refusedBy is the status of a webhook that takes no incident.
type refusedBy string

func (s refusedBy) Error() string { return "it answers " + string(s) }

// once reports whether another try may do better.
func (h *webhook) once(url string, body []byte) (again bool, err error) {
	r, err := http.NewRequestWithContext(h.ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "sluice")
	resp, err := h.client.Do(r)
	if err != nil {
		return true, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	return resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests, refusedBy(resp.Status)
}

// close drops what waits.
func (h *webhook) close() {
	h.cancel()
	h.wg.Wait()
}
