package gateway

import (
	"net/http"
	"strings"

	"github.com/sluicekv/sluice/internal/openai"
)

// apiMux is every path that exists for clients. There is no other: nothing of a worker is reachable.
func (g *Gateway) apiMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/chat/completions", only("POST", g.serve(openai.Chat)))
	mux.HandleFunc("/v1/completions", only("POST", g.serve(openai.Completions)))
	mux.HandleFunc("/v1/models", only("GET", g.listModels))
	mux.HandleFunc("/v1/models/", only("GET", g.oneModel))
	mux.HandleFunc("/healthz", only("GET", healthz))
	mux.HandleFunc("/readyz", only("GET", g.readyz))
	mux.HandleFunc("/", notFound)
	return labelled(exact(mux))
}

// labelled marks every reply of an unsafe build.
func labelled(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := unsafeLabel(); s != "" {
			w.Header().Set("X-Sluice-Unsafe", s)
		}
		h.ServeHTTP(w, r)
	})
}

// exact refuses paths that the mux would answer with a redirect: a client that follows one loses its body.
func exact(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "//") || strings.Contains(r.URL.Path, "/.") {
			notFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// only answers other methods in the API's shape. HEAD goes where GET goes.
func only(method string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
			h(w, r)
			return
		}
		w.Header().Set("Allow", method)
		plainError(w, http.StatusMethodNotAllowed, "this path takes "+method, "method_not_allowed")
	}
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	plainError(w, http.StatusNotFound, "there is no such path", "unknown_url")
}

// plainError is an error outside of any attempt. The words are constants.
func plainError(w http.ResponseWriter, status int, message, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write([]byte(`{"error":{"message":"` + message + `","type":"invalid_request_error","param":null,"code":"` + code + `"}}`))
}

func writeJSON(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}

func (g *Gateway) described(m *model) openai.Model {
	return openai.Model{ID: m.name, Created: g.created, MaxModelLen: m.fleet.Limit().Tokens}
}

func (g *Gateway) listModels(w http.ResponseWriter, r *http.Request) {
	if !g.known(w, r) {
		return
	}
	var ms []openai.Model
	c := g.catalog()
	for m := range c.all {
		ms = append(ms, g.described(m))
	}
	writeJSON(w, openai.AppendModels(nil, ms))
}

func (g *Gateway) oneModel(w http.ResponseWriter, r *http.Request) {
	if !g.known(w, r) {
		return
	}
	m := g.catalog().find(strings.TrimPrefix(r.URL.Path, "/v1/models/"))
	if m == nil {
		plainError(w, http.StatusNotFound, "there is no such model; GET /v1/models lists them", "model_not_found")
		return
	}
	writeJSON(w, openai.AppendModel(nil, g.described(m)))
}

// known answers requests without a valid key.
func (g *Gateway) known(w http.ResponseWriter, r *http.Request) bool {
	_, v := g.tenants.Authenticate(r.Header)
	if v.IsZero() {
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(v.Status)
	w.Write(openai.AppendError(nil, v, ""))
	return false
}

// healthz: the process answers.
func healthz(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) }

// readyz: a pair of every model can serve, and the gateway is not shutting down.
func (g *Gateway) readyz(w http.ResponseWriter, _ *http.Request) {
	if g.Ready() {
		w.Write([]byte("ready\n"))
		return
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	if g.requests.closed() {
		w.Write([]byte("shutting down\n"))
		return
	}
	for m := range g.catalog().primaries {
		if !m.fleet.Ready() {
			w.Write([]byte(m.fleet.Unready().Reason + "\n"))
		}
	}
}
