package guardmodes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// rig is a gateway before a pair of fakes.
type rig struct {
	*testing.T
	*fake.Pair
	g *gateway.Gateway
}

func newRig(t *testing.T, o fake.Options, guards map[string]gateway.Mode, change ...func(*gateway.Guarded)) *rig {
	t.Helper()
	p := fake.NewPair(t, o)
	m := &gateway.Guarded{Fleet: foreign.Config{Engine: p.Engine, Every: time.Hour, Patient: 5 * time.Second}}
	if p.Engine == fake.PlainSGLang {
		m.Fleet.Engine = foreign.Plain
	}
	for _, w := range p.Workers() {
		at, err := url.Parse(w.URL())
		if err != nil {
			t.Fatal(err)
		}
		c := w.Config()
		fw := foreign.Worker{Role: capacity.Role(c.Leg.String()), URL: at} // its facts are read
		if _, port := p.Bootstrap(); w == p.Prefill {
			fw.BootstrapPort = port
		}
		m.Fleet.Workers = append(m.Fleet.Workers, fw)
	}
	for _, f := range change {
		f(m)
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Modes: gateway.Modes{Each: guards},
		Models: []gateway.ModelConfig{{Name: p.Decode.Config().Model, Guarded: m}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return &rig{t, p, g}
}

// all guards in a mode, but those that can be off.
func all(mode gateway.Mode) map[string]gateway.Mode {
	m := map[string]gateway.Mode{}
	for _, g := range gateway.Guards() {
		if g != "first-token" && g != "plausibility" {
			m[g] = mode
		}
	}
	return m
}

type reply struct {
	status int
	body   string
	header http.Header
}

// post sends a body as it is.
func (r *rig) post(path, body string) reply {
	r.Helper()
	resp, err := http.Post("http://"+r.g.Addr()+path, "application/json", strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), resp.Header}
}

// ask sends a prompt as a chat or a completion; more is further members, each with a comma before it.
func (r *rig) ask(chat, stream bool, prompt, more string) reply {
	r.Helper()
	q, _ := json.Marshal(prompt)
	path, body := "/v1/completions", `{"model":"recall","max_tokens":24,"prompt":`+string(q)
	if chat {
		path, body = "/v1/chat/completions", `{"model":"recall","max_tokens":24,"messages":[{"role":"user","content":`+string(q)+`}]`
	}
	if stream {
		body += `,"stream":true`
	}
	return r.post(path, body+more+"}")
}

// text is what a client would show of a reply.
func (a reply) text() string {
	var out strings.Builder
	for line := range strings.SplitSeq(a.body, "\n") {
		var c struct {
			Choices []struct {
				Text           string
				Delta, Message struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &c) != nil {
			continue
		}
		for _, x := range c.Choices {
			out.WriteString(x.Text + x.Delta.Content + x.Message.Content)
		}
	}
	return out.String()
}

var volatile = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+`)

// same is a body without what differs between two runs.
func (a reply) same() string { return volatile.ReplaceAllString(a.body, "") }

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

// metric is the sum of the samples whose line has all parts in it.
func (r *rig) metric(parts ...string) (n float64) {
	r.Helper()
	for line := range strings.SplitSeq(r.admin("/metrics"), "\n") {
		all := !strings.HasPrefix(line, "#")
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		var v float64
		if i := strings.LastIndexByte(line, ' '); all && i > 0 {
			fmt.Sscan(line[i+1:], &v)
			n += v
		}
	}
	return n
}

// incident waits until one of a guard, in a mode, was counted.
func (r *rig) incident(guard string, mode gateway.Mode) bool {
	r.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if r.metric("sluice_incidents_total{", `guard="`+guard+`"`, `mode="`+mode.String()+`"`) > 0 {
			return true
		}
	}
	return false
}

// leaked waits until a worker said somebody else's tokens: it notes them when its reply is over, which nobody may be waiting for.
func (r *rig) leaked() bool {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if len(r.Leaks()) > 0 {
			return true
		}
	}
	return false
}

// kinds of replies.
func kinds(t *testing.T, f func(t *testing.T, chat, stream bool)) {
	for _, chat := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("chat=%v/stream=%v", chat, stream), func(t *testing.T) { f(t, chat, stream) })
		}
	}
}
