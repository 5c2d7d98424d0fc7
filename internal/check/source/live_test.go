package source

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

func askURL(t *testing.T, url string, o Options) *facts.Node {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	o.Parallel = 4
	inv, err := Read(context.Background(), []string{url}, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Nodes) != 1 {
		t.Fatalf("%d nodes, %v", len(inv.Nodes), inv.Problems)
	}
	return inv.Nodes[0]
}

// sglangWorker answers as a real prefill worker does.
func sglangWorker(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/server_info":
		fmt.Fprint(w, `{"model_path":"m","served_model_name":"m","context_length":8192,"page_size":16,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":1,"max_total_num_tokens":1024,"max_req_input_len":1018,"version":"0.5.19","api_key":null,"admin_api_key":null,"allow_auto_truncate":false,"tp_size":1}`)
	case "/v1/models":
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","owned_by":"sglang","root":"m","max_model_len":8192}]}`)
	case "/model_info":
		fmt.Fprint(w, `{"model_path":"m","is_generation":true,"architectures":["LlamaForCausalLM"]}`)
	case "/metrics":
		fmt.Fprint(w, "sglang:context_len{engine_type=\"prefill\"} 8192.0\n")
	default:
		http.NotFound(w, r)
	}
}

func TestALiveWorkerIsAskedAndNamesItsSources(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(sglangWorker))
	defer s.Close()
	n := askURL(t, s.URL, Options{})
	if got := brief(n); !strings.HasSuffix(got, "sglang prefill pool 1024 context 8192 page 16") || n.Text(facts.Version) != "0.5.19" {
		t.Errorf("%s %s", got, n.Text(facts.Version))
	}
	if at := n.At(facts.Pool).String(); at != s.URL+"/server_info" {
		t.Errorf("pool at %s", at)
	}
	if yes, _ := n.Bool(facts.Unauthenticated); !yes {
		t.Error("that /server_info answers anybody is not noted")
	}
}

func TestALiveVLLMWorker(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","owned_by":"vllm","root":"m","max_model_len":8192}]}`)
		case "/version":
			fmt.Fprint(w, `{"version":"0.32.0"}`)
		case "/metrics":
			fmt.Fprint(w, "vllm:cache_config_info{block_size=\"32\",kv_cache_size_tokens=\"32768\",kv_cache_max_concurrency=\"4.0\",num_gpu_blocks=\"1024\"} 1.0\n")
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	n := askURL(t, s.URL, Options{})
	if got := brief(n); !strings.HasSuffix(got, "vllm  pool 32768 context 8192 page 32") || n.Text(facts.Version) != "0.32.0" || len(n.Notes) != 0 {
		t.Errorf("%s %s %v", got, n.Text(facts.Version), n.Notes)
	}
}

// Each way in which a worker fails to answer is one clear sentence, and leaves the check blind.
func TestBadAnswersAreSaid(t *testing.T) {
	forever := make(chan struct{})
	mux := func(f http.HandlerFunc) *httptest.Server { return httptest.NewServer(f) }
	tlsServer := httptest.NewTLSServer(http.HandlerFunc(sglangWorker))
	defer tlsServer.Close()
	for name, c := range map[string]struct {
		server *httptest.Server
		url    string
		want   string
	}{
		"redirect": {server: mux(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere/x?k=v", http.StatusFound)
		}), want: "redirects to http://elsewhere/x; redirects are not followed"},
		"non-JSON": {server: mux(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>")
		}), want: "(text/html) that cannot be read"},
		"forever": {server: mux(func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); <-forever }), want: "gave no whole answer in time"},
		"drip": {server: mux(func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 512)); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}), want: "gave no whole answer in time"},
		"endless": {server: mux(func(w http.ResponseWriter, _ *http.Request) {
			b := make([]byte, 1<<20)
			for range 40 {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}), want: "longer than 32 MiB"},
		"key":         {server: mux(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }), want: "asks for a key (HTTP 401)"},
		"broken":      {server: mux(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }), want: "answers HTTP 502"},
		"no engine":   {server: mux(http.NotFound), want: "answers none of /server_info, /v1/models and /metrics"},
		"half":        {server: mux(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"max_total_num_tokens":10`) }), want: "cannot be read: no JSON object: unexpected end"},
		"self-signed": {url: tlsServer.URL, want: "signed by an authority that is not known here"},
		"no TLS":      {server: mux(sglangWorker), url: "https", want: "speaks no TLS"},
		"refused":     {url: "http://" + closedPort(t), want: "refused"},
		"no URL":      {url: "http://", want: "is no URL"},
	} {
		t.Run(name, func(t *testing.T) {
			url := c.url
			if c.server != nil {
				defer c.server.Close()
				if url == "https" {
					url = "https" + strings.TrimPrefix(c.server.URL, "http")
				} else {
					url = c.server.URL
				}
			}
			if name == "forever" {
				defer close(forever)
			}
			wait := 30 * time.Second // what ends by itself may take its time on a busy machine
			if c.want == "gave no whole answer in time" {
				wait = 300 * time.Millisecond
			}
			n := askURL(t, url, Options{Timeout: wait})
			found, blind := "", false
			for _, x := range n.Notes {
				found += x.Text + "\n"
				blind = blind || x.Blind
			}
			if !strings.Contains(found, c.want) || !blind {
				t.Errorf("notes (blind %v):\n%swant %q", blind, found, c.want)
			}
		})
	}
}

func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestAFleetFileGivesWorkersAndWhatIsPinned(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(sglangWorker))
	defer s.Close()
	p := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(p, []byte("models:\n  - name: m\n    engine: sglang\n    workers:\n      - {role: prefill, url: \""+s.URL+"\", pool_tokens: 4096}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := Read(context.Background(), []string{p}, Options{Timeout: 5 * time.Second, Parallel: 1})
	if err != nil || len(inv.Nodes) != 1 {
		t.Fatalf("%v %v", inv, err)
	}
	n := inv.Nodes[0]
	if n.Int(facts.Pool) != 1024 {
		t.Errorf("pool %d: what the worker says counts", n.Int(facts.Pool))
	}
	ds := n.Disagreements()
	if len(ds) != 1 || ds[0].Key != facts.Pool || ds[0].B.Value != "4096" {
		t.Errorf("%+v", ds)
	}
}

func TestAnOpenBootstrapPortIsSeen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/server_info" {
			fmt.Fprintf(w, `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":%d,"max_total_num_tokens":1024,"tp_size":1,"page_size":1,"host":"x","port":1}`, port)
			return
		}
		http.NotFound(w, r)
	}))
	defer s.Close()
	if n := askURL(t, s.URL, Options{Ports: true}); n.Text(facts.BootstrapOpen) != l.Addr().String() {
		t.Errorf("%q", n.Text(facts.BootstrapOpen))
	}
	if n := askURL(t, s.URL, Options{}); n.Text(facts.BootstrapOpen) != "" {
		t.Error("a port was tried that should not be")
	}
}

func TestNamesResolve(t *testing.T) {
	ts, err := resolve(context.Background(), "localhost:30000", time.Second)
	if err != nil || len(ts) == 0 || !strings.HasSuffix(ts[0].url, ":30000") {
		t.Errorf("%v %v", ts, err)
	}
	if _, err := resolve(context.Background(), "localhost", time.Second); err == nil {
		t.Error("a name without a port is taken")
	}
}
