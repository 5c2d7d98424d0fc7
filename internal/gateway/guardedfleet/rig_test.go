package guardedfleet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/wire"
)

// rig is a gateway before pairs of fakes that know of each other.
type rig struct {
	*testing.T
	g     *gateway.Gateway
	fleet *fake.Fleet
	pairs []*fake.Pair
	model *gateway.Guarded
}

// newFakes starts pairs of one engine, each with workers named p0, d0, p1, …
func newFakes(t *testing.T, pairs int, o fake.Options) *rig {
	t.Helper()
	r := &rig{T: t, fleet: fake.NewFleet(t)}
	r.model = &gateway.Guarded{Fleet: foreign.Config{Engine: o.Engine, Every: time.Hour, Patient: 5 * time.Second, SlowStart: -1}}
	if o.Engine == fake.PlainSGLang {
		r.model.Fleet.Engine = foreign.Plain
	}
	for i := range pairs {
		o.Prefill.Name, o.Decode.Name = fmt.Sprint("p", i), fmt.Sprint("d", i)
		p, err := r.fleet.Pair(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		r.pairs = append(r.pairs, p)
		for _, w := range p.Workers() {
			r.model.Fleet.Workers = append(r.model.Fleet.Workers, workerOf(p, w))
		}
	}
	return r
}

// workerOf is a fake as a configuration names it; its facts are read.
func workerOf(p *fake.Pair, w *actor.Worker) foreign.Worker {
	at, _ := url.Parse(w.URL())
	c := w.Config()
	fw := foreign.Worker{Name: c.Name, Role: capacity.Role(c.Leg.String()), URL: at}
	if _, port := p.Bootstrap(); w == p.Prefill {
		fw.BootstrapPort = port
	}
	return fw
}

// open starts the gateway and waits until all that is not down is usable.
func (r *rig) open(change ...func(*gateway.Config)) *rig {
	r.Helper()
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	cfg := gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Models: []gateway.ModelConfig{{Name: "recall", Guarded: r.model}}}
	for _, f := range change {
		f(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	if err := g.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { g.Close() })
	r.g = g
	r.until("every worker is up", func() bool {
		for _, w := range r.status().Workers {
			if w.State != "up" {
				return false
			}
		}
		return true
	})
	return r
}

func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not in time: %s\n%s", what, r.admin("/admin/fleet"))
		}
	}
}

func (r *rig) admin(path string) string {
	r.Helper()
	resp, err := http.Get("http://" + r.g.AdminAddr() + path)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// status is the first model's.
func (r *rig) status() fleet.Status {
	r.Helper()
	var st struct{ Models []fleet.Status }
	if err := json.Unmarshal([]byte(r.admin("/admin/fleet")), &st); err != nil {
		r.Fatal(err)
	}
	return st.Models[0]
}

func (r *rig) records() []record.Record {
	r.Helper()
	var rs struct{ Records []record.Record }
	if err := json.Unmarshal([]byte(r.admin("/admin/records?n=1000")), &rs); err != nil {
		r.Fatal(err)
	}
	return rs.Records
}

type reply struct {
	status int
	body   string
	header http.Header
}

// complete sends a prompt; headers come in pairs.
func (r *rig) complete(model, prompt string, stream bool, headers ...string) reply {
	r.Helper()
	q, _ := json.Marshal(prompt)
	body := fmt.Sprintf(`{"model":%q,"max_tokens":8,"stream":%v,"prompt":%s}`, model, stream, q)
	req, _ := http.NewRequest(http.MethodPost, "http://"+r.g.Addr()+"/v1/completions", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), resp.Header}
}

// requests that each worker saw, by its name.
func (r *rig) requests() map[string]int64 {
	out := map[string]int64{}
	for _, p := range r.pairs {
		for _, w := range p.Workers() {
			out[w.Config().Name] = w.Requests.Load()
		}
	}
	return out
}

const prompt = "My name is Alice. My name is"
