package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// adminWorker keeps new attempts from a worker, or lets it serve again: POST /admin/workers/NAME/drain and /undrain, of every model that
// has a worker of that name, or of ?model= alone. NAME is as /admin/fleet shows it, escaped as in any URL. What is in flight ends;
// /admin/fleet says when (load_tokens 0).
func (g *Gateway) adminWorker(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/admin/workers/")
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		notFound(w, r)
		return
	}
	name, err := url.PathUnescape(path[:i])
	action := path[i+1:]
	if err != nil || action != "drain" && action != "undrain" {
		notFound(w, r)
		return
	}
	only, did := r.URL.Query().Get("model"), []string{}
	native := false
	for m := range g.catalog().primaries {
		if only != "" && m.name != only {
			continue
		}
		if m.guarded == nil {
			native = true
			continue
		}
		if m.guarded.fleet.Drain(name, action == "drain") {
			did = append(did, m.name)
		}
	}
	if len(did) == 0 {
		why := "there is no such worker; GET /admin/fleet lists them"
		if native {
			why += " (a native worker is drained by its own process: SIGTERM)"
		}
		plainError(w, http.StatusNotFound, why, "worker_not_found")
		return
	}
	g.log.Warn("worker "+action, "worker", name, "models", did)
	b, _ := json.Marshal(struct {
		Worker string   `json:"worker"`
		State  string   `json:"state"`
		Models []string `json:"models"`
	}{name, map[string]string{"drain": "draining", "undrain": "serving"}[action], did})
	writeJSON(w, append(b, '\n'))
}
