package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/handoff/model/validate"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/wire"
)

// The legs of foreign attempts run on goroutines that wait for the next one.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/sluicekv/sluice/internal/gateway/upstream/web.await"),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")) // half a second, so that a client sees the answer before the end
}

// encoder is the built-in model's: a token a byte.
var encoder = sync.OnceValue(func() *prompt.Encoder {
	f, err := gguf.Parse(recall.Build(recall.Config{}))
	if err != nil {
		panic(err)
	}
	e, err := prompt.New(f)
	if err != nil {
		panic(err)
	}
	return e
})

// door is a gateway in front of one fake pair.
type door struct {
	t       *testing.T
	g       *Gateway
	pair    *fleettest.Pair
	keys    fleettest.Fleet
	client  *http.Client
	records bytes.Buffer // read after Close
	trace   *trace.Ring  // replayed through the model after Close; nil: not
}

// open starts a pair with a script and a gateway that is ready. change may alter the config, and the pair before it starts.
func open(t *testing.T, s fleettest.Script, change func(*Config, *fleettest.Pair)) *door {
	t.Helper()
	d := &door{t: t, keys: fleettest.Keys("p0", "d0", "p1", "d1"), client: newClient(), trace: trace.NewRing(1 << 16)}
	d.pair = fleettest.NewPair(t, d.keys, "p0", "d0", s)
	cfg := Config{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: d.keys.IDs[fleettest.Gateway], Records: &d.records, Trace: d.trace, Version: "test",
		Models: []ModelConfig{{Name: "m", Encoder: encoder(), Fingerprint: fleettest.Model}},
		Timing: fleet.Timing{PauseMin: time.Millisecond, PauseMax: 5 * time.Millisecond},
		Rests:  fleet.Rests{Last: time.Millisecond},
		Limits: Limits{PairWait: -1},
	}
	if change != nil {
		change(&cfg, d.pair)
	}
	d.pair.Start()
	cfg.Models[0].Workers = append(cfg.Models[0].Workers, d.pair.Prefill.At(), d.pair.Decode.At())
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d.g = g
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	d.waitReady()
	return d
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// postContext posts a completion until ctx ends.
func (d *door) postContext(ctx context.Context, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", d.url("/v1/completions"), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := d.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func (d *door) waitReady() {
	d.t.Helper()
	fleettest.Until(d.t, "a pair that can serve", d.g.catalog().find("m").fleet.Ready)
}

func (d *door) close() {
	d.client.CloseIdleConnections()
	if err := d.g.Close(); err != nil {
		d.t.Error(err)
	}
	d.replay()
}

// replay walks the trace of all that happened through the model.
func (d *door) replay() {
	d.t.Helper()
	if d.trace == nil {
		return
	}
	events, dropped := d.trace.Events()
	if dropped > 0 {
		d.t.Errorf("the trace is longer than the ring by %d events", dropped)
		return
	}
	if err := validate.All(events, validate.Options{Without: validate.Guards(guardsOff())}); err != nil {
		d.t.Errorf("%d events: %v", len(events), err)
	}
}

// answer is a reply as a client saw it.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of reading the body
}

func (d *door) url(path string) string { return "http://" + d.g.Addr() + path }

func (d *door) do(r *http.Request) answer {
	d.t.Helper()
	resp, err := d.client.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(b), err}
}

func (d *door) post(path, body string, headers ...string) answer {
	d.t.Helper()
	r, err := http.NewRequest("POST", d.url(path), strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return d.do(r)
}

// stream posts a completion and calls then, once, when what came satisfies when; it reads on to the end.
func (d *door) stream(body string, when func(string) bool, then func()) answer {
	d.t.Helper()
	resp, err := d.client.Post(d.url("/v1/completions"), "application/json", strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got bytes.Buffer
	buf, done := make([]byte, 4096), false
	for {
		n, err := resp.Body.Read(buf)
		got.Write(buf[:n])
		if !done && when(got.String()) {
			done = true
			then()
		}
		if err == io.EOF {
			err = nil
		} else if err == nil {
			continue
		}
		return answer{resp.StatusCode, resp.Header, resp.Trailer, got.String(), err}
	}
}

func (d *door) get(url string) answer {
	d.t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.do(r)
}

func (d *door) admin(path string) string { return "http://" + d.g.AdminAddr() + path }

// chat and complete are the two requests most tests make.
const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hello"}],"temperature":0}`
	streamBody = `{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}`
)

func complete(prompt string, extra string) string {
	b, _ := json.Marshal(prompt)
	return `{"model":"m","prompt":` + string(b) + extra + `}`
}

// last returns the newest record once it is settled or never will be: of attempts on a pair, the record changes when the legs are quiet.
func (d *door) last() record.Record {
	d.t.Helper()
	rs := d.g.ring.Last(1, nil)
	if len(rs) == 0 {
		d.t.Fatal("no record")
	}
	return rs[0]
}

// text makes ids of a reply.
func text(s string) []int32 { return recall.Encode(s)[1:] }

// events splits a stream into the data of its events.
func events(body string) (out []string) {
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		out = append(out, strings.TrimPrefix(e, "data: "))
	}
	return out
}

var varying = regexp.MustCompile(`"id":"[a-z]+-[0-9a-f]{32}"|"created":[0-9]+`)

// fixed takes the parts out of a body that differ each time.
func fixed(body string) string {
	return varying.ReplaceAllStringFunc(body, func(s string) string {
		if strings.HasPrefix(s, `"id"`) {
			return s[:strings.IndexByte(s, '-')+1] + `ID"`
		}
		return `"created":T`
	})
}

// quiet waits until the pair has no attempt in flight and all records are final.
func (d *door) quiet() {
	d.t.Helper()
	fleettest.Until(d.t, "quiet", func() bool {
		st := d.g.catalog().find("m").fleet.Status(context.Background(), false)
		for _, w := range st.Workers {
			if w.Load != 0 {
				return false
			}
		}
		return true
	})
}

var (
	prefill = wire.RolePrefill
	decode  = wire.RoleDecode
)
