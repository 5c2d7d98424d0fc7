package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeWorker is an SGLang worker as far as the check asks it, also about prompts over the limit.
type fakeWorker struct {
	role          string
	pool, context int
	leaks         bool // answers an over-limit prompt as the release of the incident does
	asked         atomic.Int64
	prompts       sync.Map
	aborts        atomic.Int64
	bootTime      atomic.Int64
	peer          chan struct{} // closed when decode has its half; a leaking prefill waits for it, as for a handshake
}

func (f *fakeWorker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked.Add(1)
	switch r.URL.Path {
	case "/server_info":
		fmt.Fprintf(w, `{"model_path":"m","served_model_name":"m","context_length":%d,"page_size":16,"disaggregation_mode":%q,"disaggregation_bootstrap_port":1,"max_total_num_tokens":%d,"version":"0.5.19","allow_auto_truncate":false,"tp_size":1,"dp_size":1,"host":"x","enable_metrics":true,"disaggregation_transfer_backend":"mooncake"%s}`,
			f.context, f.role, f.pool, strings.Repeat(`,"unused_argument_with_a_long_name":null`, 200))
	case "/v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[{"id":"m","owned_by":"sglang","root":"m","max_model_len":%d}]}`, f.context)
	case "/model_info":
		fmt.Fprint(w, `{"model_path":"m","is_generation":true,"architectures":["LlamaForCausalLM"],"has_image_understanding":false}`)
	case "/metrics":
		fmt.Fprintf(w, "sglang:context_len{engine_type=%q} %d\nprocess_start_time_seconds %d\n", f.role, f.context, f.bootTime.Load())
	case "/abort_request":
		f.aborts.Add(1)
	case "/generate":
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var q struct {
			IDs    []int  `json:"input_ids"`
			Room   uint64 `json:"bootstrap_room"`
			Stream bool   `json:"stream"`
			Params struct {
				Max int `json:"max_new_tokens"`
			} `json:"sampling_params"`
		}
		if json.Unmarshal(b, &q) != nil || q.Params.Max != 1 || q.Stream || q.Room == 0 || q.Room > 1<<63-1 {
			http.Error(w, "bad", http.StatusUnprocessableEntity)
			return
		}
		f.prompts.Store(len(q.IDs), q.Room)
		if f.role == "decode" && f.peer != nil {
			close(f.peer)
		}
		if len(q.IDs) >= min(f.pool, f.context)-6 {
			if f.leaks {
				select {
				case <-f.peer:
				case <-r.Context().Done():
				}
				fmt.Fprint(w, `{"text":"","meta_info":{"prompt_tokens":1,"completion_tokens":1,"finish_reason":{"type":"length","length":0}}}`)
				return
			}
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"Input length exceeds the maximum allowed length"}}`)
			return
		}
		if f.role == "decode" { // waits for KV that never comes
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"text":"","meta_info":{"prompt_tokens":%d}}`, len(q.IDs))
	default:
		http.NotFound(w, r)
	}
}

func TestTheProbeAsksOneRequestAndReadsTheRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		leaks bool
		exit  int
		id    string
		kv01  bool
	}{"refused": {false, 1, "", false}, "leaks": {true, 1, "probe-affected", true}} {
		t.Run(name, func(t *testing.T) {
			handshake := make(chan struct{})
			p, d := &fakeWorker{role: "prefill", pool: 1024, context: 8192, leaks: c.leaks, peer: handshake}, &fakeWorker{role: "decode", pool: 100000, context: 8192, peer: handshake}
			ps, ds := httptest.NewServer(p), httptest.NewServer(d)
			defer ps.Close()
			defer ds.Close()
			r, code := runJSON(t, Options{Probe: true, NoPorts: true}, ps.URL, ds.URL)
			ids := r.ids()
			if code != c.exit || (ids["SGL-KV-01"] != "") != c.kv01 || c.id != "" && ids[c.id] != "high" || !c.leaks && ids["probe-safe"] != "info" {
				t.Errorf("exit %d, %v", code, ids)
			}
			// One request to each leg, with one room, and decode is told that it is over.
			pr, _ := p.prompts.Load(1024)
			dr, _ := d.prompts.Load(1024)
			if pr == nil || dr != nil && pr != dr || c.leaks && dr == nil { // a refusal may come before decode has its half
				t.Errorf("rooms %v and %v", pr, dr)
			}
			if d.aborts.Load() != 1 {
				t.Errorf("%d aborts at decode", d.aborts.Load())
			}
			// Without --probe-live nothing of the kind is sent, and the release decides.
			p.prompts.Clear()
			r, _ = runJSON(t, Options{NoPorts: true}, ps.URL, ds.URL)
			if _, sent := p.prompts.Load(1024); sent || r.ids()["SGL-KV-01"] != "high" {
				t.Errorf("sent %v, %v", sent, r.ids())
			}
		})
	}
}

func TestAProbeOfOneLegSaysThatItNeedsBoth(t *testing.T) {
	s := httptest.NewServer(&fakeWorker{role: "prefill", pool: 1024, context: 8192})
	defer s.Close()
	if r, _ := runJSON(t, Options{Probe: true, NoPorts: true}, s.URL); r.ids()["probe-unclear"] != "low" {
		t.Errorf("%v", r.ids())
	}
}

// A thousand workers are asked in well under ten seconds, never more than --parallel at once, and one that hangs costs
// its own time-out only.
func TestAThousandWorkers(t *testing.T) {
	var at, most atomic.Int64
	count := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for n := at.Add(1); ; {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			defer at.Add(-1)
			h.ServeHTTP(w, r)
		})
	}
	p, d := &fakeWorker{role: "prefill", pool: 681280, context: 600000}, &fakeWorker{role: "decode", pool: 2040000, context: 600000}
	hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	// One server a role: a worker is told by its path, so that a thousand need no thousand ports.
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "-")
		r.URL.Path = "/" + rest
		switch kind {
		case "p":
			p.ServeHTTP(w, r)
		case "d":
			d.ServeHTTP(w, r)
		default:
			hang.ServeHTTP(w, r)
		}
	})
	s := httptest.NewServer(count(mux))
	defer s.Close()
	var args []string
	for i := range 1000 {
		kind := "p"
		if i%2 == 1 {
			kind = "d"
		}
		if i%200 == 199 {
			kind = "x"
		}
		args = append(args, fmt.Sprintf("w%d=%s/%s-%d", i, s.URL, kind, i))
	}
	start := time.Now()
	r, code := runJSON(t, Options{NoPorts: true, Timeout: 3 * time.Second, Parallel: 48}, args...)
	took := time.Since(start)
	t.Logf("%d workers in %s, at most %d requests at once", len(args), took, most.Load())
	if limit := 10 * time.Second; took > limit && !raceDetector { // which makes everything several times slower
		t.Errorf("took %s", took)
	}
	if most.Load() > 48 {
		t.Errorf("%d requests at once", most.Load())
	}
	unread := 0
	for _, f := range r.Findings {
		if f.ID == "source-unreadable" {
			unread++
		}
	}
	if code != 2 || len(r.Nodes) != 1000 || unread != 5 {
		t.Errorf("exit %d, %d nodes, %d unreadable", code, len(r.Nodes), unread)
	}
}

// buffer is written by the watcher and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestWatchSeesARestartAndExportsMetrics(t *testing.T) {
	p := &fakeWorker{role: "prefill", pool: 681280, context: 600000}
	s := httptest.NewServer(p)
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out, errs buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, Options{Args: []string{"p0=" + s.URL}, Watch: time.Second, Listen: addr, NoPorts: true}, nil, &out, &errs)
	}()
	metrics := func() string {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return ""
		}
		return string(b)
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !f(); {
			if time.Now().After(end) {
				t.Fatalf("%s was not seen\n%s\n%s\n%s", what, out.String(), errs.String(), metrics())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	until("the first run", func() bool { return strings.Contains(metrics(), "sluice_check_runs_total 1") })
	m := metrics()
	for _, want := range []string{`sluice_check_pool_tokens{node="p0",role="prefill"} 681280`, `sluice_check_limit_tokens{node="p0",role="prefill"} 600000`, `sluice_check_exit_code 0`,
		`sluice_check_findings{id="SGL-KV-02",severity="medium"} 1`} {
		if !strings.Contains(m, want) {
			t.Errorf("%s is not in the metrics:\n%s", want, m)
		}
	}
	p.bootTime.Store(1796040000)
	until("the restart", func() bool { return strings.Contains(out.String(), "p0 has restarted") })
	until("the counter", func() bool { return strings.Contains(metrics(), `sluice_check_restarts_total{node="p0"} 1`) })
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
	if n := strings.Count(out.String(), "exit 0"); n != 1 {
		t.Errorf("the unchanged report was written %d times", n)
	}
}
