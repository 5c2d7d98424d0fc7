package gateway

import (
	"net/http"
	"strings"

	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/openai"
)

// apiMux is every path that exists for clients. There is no other: nothing of a worker is reachable.
func (g *Gateway) apiMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/chat/completions", only("POST", g.serve(openai.Chat)))
	mux.HandleFunc("/v1/completions", only("POST", g.serve(openai.Completions)))
	mux.HandleFunc("/v1/messages", messagesOnly(g.serve(openai.Messages)))
	mux.HandleFunc("/v1/messages/", messagesOnly(nil))
	mux.HandleFunc("/v1/models", only("GET", g.listModels))
	mux.HandleFunc("/v1/models/", only("GET", g.oneModel))
	mux.HandleFunc("/healthz", only("GET", healthz))
	mux.HandleFunc("/readyz", only("GET", g.doorReadyz))
	mux.HandleFunc("/health", only("GET", g.doorReadyz)) // engines' name for it: clients made for them ask here first
	mux.HandleFunc("/", notFound)
	return labelled(g.lastWords(exact(mux)))
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

// lastWords tells clients, while the gateway drains, to send nothing more on their connection.
func (g *Gateway) lastWords(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.requests.closed() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// exact refuses whatever is not one of the paths as it is spelled: what the mux would clean, decode or redirect. Another reader of the same
// request line, in front or behind, must not find another path in it. Models may have a slash in their names.
func exact(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.Path
		spelled := r.URL.EscapedPath() == p || strings.HasPrefix(r.URL.EscapedPath(), "/v1/models/")
		if !spelled || r.URL.Host != "" || strings.Contains(p, "//") || strings.Contains(p, "/.") || strings.ContainsAny(p, "\\;") {
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
	t, ok := g.known(w, r)
	if !ok {
		return
	}
	var ms []openai.Model
	c := g.catalog()
	for m := range c.all {
		if t.May(m.name) {
			ms = append(ms, g.described(m))
		}
	}
	writeJSON(w, openai.AppendModels(nil, ms))
}

func (g *Gateway) oneModel(w http.ResponseWriter, r *http.Request) {
	t, ok := g.known(w, r)
	if !ok {
		return
	}
	m := g.catalog().find(strings.TrimPrefix(r.URL.Path, "/v1/models/"))
	if m == nil || !t.May(m.name) {
		plainError(w, http.StatusNotFound, "there is no such model; GET /v1/models lists them", "model_not_found")
		return
	}
	writeJSON(w, openai.AppendModel(nil, g.described(m)))
}

// known finds out who asks, and answers those without a valid key.
func (g *Gateway) known(w http.ResponseWriter, r *http.Request) (tenant.Tenant, bool) {
	t, v := g.tenants.Authenticate(r.Header)
	if v.IsZero() {
		return t, true
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	challenge(h, v)
	w.WriteHeader(v.Status)
	w.Write(openai.AppendError(nil, v, ""))
	return t, false
}

// healthz: the process answers.
func healthz(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) }

// readyz: a pair of a model that is on can serve, and the gateway is not shutting down. One model's crash does not take the others out
// of a balancer; ?model=NAME asks for one. The door of tenants names no models: this path asks for no key.
func (g *Gateway) readyz(w http.ResponseWriter, r *http.Request) {
	ready, why := g.readiness(r.URL.Query().Get("model"))
	g.sayReady(w, ready, why)
}

func (g *Gateway) doorReadyz(w http.ResponseWriter, r *http.Request) {
	if g.tenants.Path() == "" {
		g.readyz(w, r)
		return
	}
	if ready, _ := g.readiness(""); ready {
		g.sayReady(w, true, "")
		return
	}
	g.sayReady(w, false, "no pair can serve, or the gateway is shutting down\n")
}

func (g *Gateway) sayReady(w http.ResponseWriter, ready bool, why string) {
	if ready {
		w.Write([]byte("ready\n" + why))
		return
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	w.Write([]byte(why))
}

// readiness of one model, or ("") of any; and a line about each that cannot serve, without addresses.
func (g *Gateway) readiness(name string) (ready bool, why string) {
	if g.requests.closed() {
		return false, "shutting down\n"
	}
	c := g.catalog()
	if name != "" && c.find(name) == nil {
		return false, "there is no such model\n"
	}
	for m := range c.primaries {
		if name != "" && c.find(name).fleet != m.fleet {
			continue
		}
		switch reason, off := m.isOff(); {
		case off:
			why += modelOff(m.name, reason).Reason + "\n"
		case m.fleet.Ready():
			ready = true
		default:
			why += m.fleet.Unready().Reason + "\n"
		}
	}
	return ready, why
}
