package sglang

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Worker is a fake SGLang process.
type Worker struct {
	*actor.Worker
	fleet *Fleet
	mux   *http.ServeMux

	mu        sync.Mutex
	bootstrap *http.Server // of a prefill
	bootAddr  string
	running   map[string]*flight // by rid
	versioned release
}

// flight is a request under way, for aborts.
type flight struct {
	abort chan struct{}
	room  *room
	once  sync.Once
}

// New makes a worker of a fleet and starts it. A prefill's bootstrap address is any port of loopback unless one is given.
func New(f *Fleet, cfg actor.Config, bootstrap string) (*Worker, error) {
	cfg.Engine = "sglang"
	if cfg.Version == "" {
		cfg.Version = "0.5.19"
	}
	v, ok := parseRelease(cfg.Version)
	if !ok || v.before(release{0, 5, 19}) || (release{0, 5, 24}).before(v) {
		return nil, fmt.Errorf("a fake SGLang is 0.5.19 to 0.5.23, not %q", cfg.Version)
	}
	w := &Worker{Worker: actor.NewWorker(f.Stage, cfg), fleet: f, running: map[string]*flight{}, versioned: v}
	w.routes()
	w.Handler = w.mux
	if err := w.Start(); err != nil {
		return nil, err
	}
	if cfg.Leg == actor.Prefill {
		if err := w.listenBootstrap(bootstrap); err != nil {
			w.Kill()
			return nil, err
		}
	}
	return w, nil
}

// Bootstrap is the host and port of a prefill's bootstrap server.
func (w *Worker) Bootstrap() (host string, port int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host, p, _ := net.SplitHostPort(w.bootAddr)
	port, _ = strconv.Atoi(p)
	return host, port
}

func (w *Worker) listenBootstrap(addr string) error {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "OK") })
	mux.HandleFunc("GET /route", w.route)
	w.mu.Lock()
	w.bootstrap, w.bootAddr = &http.Server{Handler: mux}, ln.Addr().String()
	w.mu.Unlock()
	go w.bootstrap.Serve(ln)
	w.fleet.mu.Lock()
	w.fleet.prefills[ln.Addr().String()] = w
	w.fleet.mu.Unlock()
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
	w.mux.HandleFunc("POST /generate", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Generate) })
	w.mux.HandleFunc("POST /v1/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Completions) })
	w.mux.HandleFunc("POST /v1/chat/completions", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Chat) })
	if w.Config().Leg == actor.Both {
		w.mux.HandleFunc("POST /v1/messages", func(rw http.ResponseWriter, r *http.Request) { w.serve(rw, r, actor.Messages) })
		w.mux.HandleFunc("POST /v1/messages/count_tokens", w.countTokens)
	}
	for _, path := range []string{"/tokenize", "/v1/tokenize"} {
		w.mux.HandleFunc("POST "+path, w.tokenize)
	}
	w.mux.HandleFunc("POST /abort_request", w.abortRequest)
	for _, path := range []string{"/server_info", "/get_server_info"} {
		w.mux.HandleFunc("GET "+path, w.facts(w.serverInfo))
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		w.mux.HandleFunc("GET "+path, w.facts(w.modelInfo))
	}
	w.mux.HandleFunc("GET /v1/models", w.facts(w.models))
	w.mux.HandleFunc("GET /v1/loads", w.facts(w.loads))
	w.mux.HandleFunc("GET /metrics", w.facts(w.metrics))
	for _, path := range []string{"/health", "/health_generate", "/ping"} {
		w.mux.HandleFunc("GET "+path, func(rw http.ResponseWriter, _ *http.Request) {})
	}
	if w.atLeast(0, 5, 20) {
		w.mux.HandleFunc("GET /ready", func(rw http.ResponseWriter, _ *http.Request) {})
	}
	w.mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || isAdmin(r.URL.Path) {
			w.Violate(actor.RulePath, "%s %s", r.Method, r.URL.Path)
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusNotFound)
		fmt.Fprint(rw, `{"detail":"Not Found"}`)
	})
}

// isAdmin reports paths that change a worker.
func isAdmin(path string) bool {
	for _, p := range []string{"/flush_cache", "/update_weights", "/release_memory", "/resume_memory", "/start_profile", "/stop_profile", "/set_internal_state",
		"/pause_generation", "/continue_generation", "/open_session", "/close_session", "/load_lora", "/unload_lora", "/pd_role_switch", "/freeze_gc", "/hicache"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

func (w *Worker) atLeast(v ...int) bool {
	return !w.versioned.before(release{v[0], v[1], v[2]})
}

type release [3]int

func parseRelease(s string) (r release, ok bool) {
	n, _ := fmt.Sscanf(s, "%d.%d.%d", &r[0], &r[1], &r[2])
	return r, n == 3
}

func (r release) before(o release) bool {
	for i := range r {
		if r[i] != o[i] {
			return r[i] < o[i]
		}
	}
	return false
}

// abortRequest ends a request by its id, as the engine's admin path does.
func (w *Worker) abortRequest(rw http.ResponseWriter, r *http.Request) {
	body, err := actor.ReadBody(r)
	if err != nil {
		return
	}
	w.Aborts.Add(1)
	if key := w.Config().AdminKey; key != "" && r.Header.Get("Authorization") != "Bearer "+key {
		rw.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(rw, `{"error":"Unauthorized"}`)
		return
	}
	d, err := w.ReadDoc(body)
	if err != nil {
		return
	}
	rid, _ := d.Get("rid").Text()
	if all, _ := d.Get("abort_all").Bool(); all {
		w.Violate(actor.RulePath, "abort_all ends other people's requests")
	}
	w.mu.Lock()
	f := w.running[string(rid)]
	w.mu.Unlock()
	if f == nil {
		return // 200 with an empty body
	}
	if f.room != nil && f.room.abandon() {
		w.Violate(actor.RuleAbort, "%s was aborted while its pages were being written", rid)
	}
	f.once.Do(func() { close(f.abort) })
}
