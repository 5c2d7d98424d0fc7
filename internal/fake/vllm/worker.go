package vllm

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Connector of a worker.
type Connector string

const (
	Nixl     Connector = "nixl"
	Mooncake Connector = "mooncake"
	None     Connector = "" // plain
)

// Options of a worker beside what all have.
type Options struct {
	Connector Connector
	SideHost  string        // that handles name; default 127.0.0.1
	SidePort  int           // default 5600
	Lease     time.Duration // of a handle; default 30 s
	Cached    bool          // say prompt_tokens_details, as with the prefix cache on
	Salted    bool          // every request must carry a cache_salt
	AnyID     bool          // the legs' request ids may be missing or differ, as engines have it
	Bootstrap string        // Mooncake: where a prefill's bootstrap server listens; "" is any port of loopback
}

// Worker is a fake vLLM process.
type Worker struct {
	*actor.Worker
	fleet *Fleet
	opt   Options
	mux   *http.ServeMux

	mu        sync.Mutex
	boot      int // of the engine id
	engineID  string
	last      *grant // that this prefill gave out, its handle, and what was in its pages: for lies
	lastRaw   []byte
	lastKept  *actor.Pages
	bootstrap *http.Server
	bootAddr  string
	expired   atomic.Int64 // leases that ran out
	tooLate   atomic.Int64 // pages read after that
	serial    atomic.Int64
}

// New makes a worker of a fleet and starts it.
func New(f *Fleet, cfg actor.Config, opt Options) (*Worker, error) {
	if cfg.Version == "" {
		cfg.Version = "0.32.0"
	}
	cfg.Engine = "plain"
	if opt.Connector != None {
		cfg.Engine = "vllm-" + string(opt.Connector)
	}
	cfg.Block0 = true
	if opt.SideHost == "" {
		opt.SideHost = "127.0.0.1"
	}
	if opt.SidePort == 0 {
		opt.SidePort = 5600
	}
	if opt.Lease == 0 {
		opt.Lease = 30 * time.Second
	}
	w := &Worker{Worker: actor.NewWorker(f.Stage, cfg), fleet: f, opt: opt}
	w.routes()
	w.Handler = w.mux
	if err := w.Start(); err != nil {
		return nil, err
	}
	if opt.Connector == Mooncake && cfg.Leg == actor.Prefill {
		if err := w.listenBootstrap(); err != nil {
			w.Kill()
			return nil, err
		}
	}
	w.EngineID()
	return w, nil
}

// EngineID names the process: another one after each restart.
func (w *Worker) EngineID() string {
	_, boots := w.Boot()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boot != boots {
		w.boot = boots
		_, port, _ := net.SplitHostPort(w.Addr())
		n, _ := strconv.Atoi(port)
		w.engineID = fmt.Sprintf("8a911c63-5675-42bc-%04x-%012x", boots, n)
		w.fleet.mu.Lock()
		w.fleet.engines[w.engineID] = w
		w.fleet.mu.Unlock()
	}
	return w.engineID
}

// Bootstrap is where Mooncake decodes ask for a prefill.
func (w *Worker) Bootstrap() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return "http://" + w.bootAddr
}

func (w *Worker) listenBootstrap() error {
	addr := w.opt.Bootstrap
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /query", func(rw http.ResponseWriter, _ *http.Request) {
		send(rw, http.StatusOK, fmt.Appendf(nil, `{"0":{"engine_id":"%s","worker_addr":{"0":{"0":"tcp://%s:%d"}}}}`, w.EngineID(), w.opt.SideHost, w.opt.SidePort))
	})
	srv := &http.Server{Handler: mux}
	w.mu.Lock()
	w.bootstrap, w.bootAddr = srv, ln.Addr().String()
	w.mu.Unlock()
	go srv.Serve(ln)
	return nil
}

// Close ends the worker for good.
func (w *Worker) Close() {
	w.Kill()
	w.mu.Lock()
	b := w.bootstrap
	w.mu.Unlock()
	if b != nil {
		b.Close()
	}
}

func (w *Worker) routes() {
	w.mux = http.NewServeMux()
	w.mux.HandleFunc("POST /v1/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Completions) })
	w.mux.HandleFunc("POST /v1/chat/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Chat) })
	if w.opt.Connector == None {
		w.mux.HandleFunc("POST /v1/messages", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Messages) })
		w.mux.HandleFunc("POST /v1/messages/count_tokens", w.countTokens)
	}
	w.mux.HandleFunc("POST /tokenize", w.tokenize)
	w.mux.HandleFunc("GET /v1/models", w.facts(w.models))
	w.mux.HandleFunc("GET /metrics", w.facts(w.metrics))
	w.mux.HandleFunc("GET /version", w.facts(func(rw http.ResponseWriter, _ *http.Request) {
		send(rw, http.StatusOK, fmt.Appendf(nil, `{"version":"%s"}`, w.said().Version))
	}))
	for _, path := range []string{"/health", "/ping", "/load"} {
		w.mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, _ *http.Request) {})
	}
	w.mux.HandleFunc("POST /v1/chat/completions/render", func(rw http.ResponseWriter, _ *http.Request) {
		send(rw, http.StatusForbidden, errorBody("Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", "PermissionDeniedError", "null", 403))
	})
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize"} {
		w.mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Allow", "POST")
			send(rw, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		})
	}
	w.mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Violate(actor.RulePath, "%s %s", r.Method, r.URL.Path)
		}
		send(rw, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	})
}

func send(rw http.ResponseWriter, status int, b []byte) {
	h := rw.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	rw.WriteHeader(status)
	rw.Write(b)
}
