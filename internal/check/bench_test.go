package check

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// BenchmarkFleet is one check of 1,000 live workers that answer at once, in one process with them.
func BenchmarkFleet(b *testing.B) {
	p, d := &fakeWorker{role: "prefill", pool: 681280, context: 600000}, &fakeWorker{role: "decode", pool: 2040000, context: 600000}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		r.URL.Path = "/" + rest
		if strings.HasPrefix(who, "p") {
			p.ServeHTTP(w, r)
		} else {
			d.ServeHTTP(w, r)
		}
	}))
	defer s.Close()
	var args []string
	for i := range 1000 {
		args = append(args, fmt.Sprintf("w%d=%s/%c-%d", i, s.URL, "pd"[i%2], i))
	}
	for b.Loop() {
		start := time.Now()
		var out bytes.Buffer
		if code := Run(context.Background(), Options{Args: args, Format: "json", NoPorts: true}, nil, &out, os.Stderr); code != 0 {
			b.Fatalf("exit %d", code)
		}
		b.ReportMetric(1000/time.Since(start).Seconds(), "workers/s")
	}
}
