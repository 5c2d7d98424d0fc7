package gateway

import (
	"strconv"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Headers in which a client, or a proxy before it, says how long it will wait for all of a reply. What SDKs send of their own
// (X-Stainless-Timeout, X-Stainless-Read-Timeout) is how long they wait for the next bytes, which is no deadline of a stream.
const (
	timeoutHeader = "X-Request-Timeout"              // seconds, or a duration: 30, 1.5, 500ms
	proxyTimeout  = "X-Envoy-Expected-Rq-Timeout-Ms" // milliseconds; a proxy's word, not the client's: one that makes no sense is left
)

// timeLimit is the deadline of the request: the gateway's, or the client's if that is sooner.
func (x *walk) timeLimit() (time.Time, verdict.Verdict) {
	limit := x.g.deadline()
	sooner := func(d time.Duration) {
		x.asked.short = x.asked.short || d < limit
		limit = min(limit, d)
	}
	if s := x.r.Header.Get(proxyTimeout); s != "" {
		if ms, err := strconv.ParseUint(s, 10, 31); err == nil && ms > 0 {
			sooner(time.Duration(ms) * time.Millisecond)
		}
	}
	if s := x.r.Header.Get(timeoutHeader); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			var seconds float64
			seconds, err = strconv.ParseFloat(s, 64)
			d = time.Duration(min(seconds, limit.Seconds()) * float64(time.Second))
		}
		if err != nil || d <= 0 {
			return time.Time{}, verdict.Of(verdict.BadRequest, verdict.Parser, "X-Request-Timeout must be seconds or a duration, more than 0")
		}
		sooner(d)
	}
	return x.start.Add(limit), verdict.Verdict{}
}
