package lyingtable

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// canary is what another tenant asked before: its key can only come out of its pages.
const (
	canary = "The vault code of Ada is 3QY9DPNCRFU8. "
	leaked = "3QY9DPNCRFU8"
)

// full runs every cell; else each row has a stream and a whole reply, one of a chat and one of a completion.
var full = flag.Bool("full", false, "every cell of the lying table")

// row of the lying table: one lie of one leg, in every kind of reply, enforced and observed.
type row struct {
	engine string
	leg    actor.Leg
	about  actor.About
	at     int // in the table
	cells  []cell
}

// cell is one request.
type cell struct {
	stream bool
	api    string
	mode   gateway.Mode
	status int
	text   string
	ended  bool // with a good end
	guards []string
	leaks  int // replies in which a worker said another's tokens
}

// The table of the issue: every lie of the catalogue, told by every leg of every engine that can tell it, in every kind of reply. With
// guards that enforce no byte of foreign text reaches the client, its status says whose fault it is, and the incident is named; with
// guards that observe the same incidents are counted and the bytes pass. The workers are fakes that are strict: nothing that the
// gateway sends breaks a rule of their wire. `make lying-table` prints it.
func TestLyingTable(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the table is of the release build")
	}
	t.Parallel()
	var rows []*row
	for _, engine := range fake.Engines() {
		for _, about := range actor.Catalogue() {
			for _, leg := range about.Legs {
				if as := asked(engine); (leg == actor.Both) == (as == foreign.Plain) && (about.Applies(as, leg, false) || about.Applies(as, leg, true)) {
					rows = append(rows, &row{engine: engine, leg: leg, about: about, at: len(rows)})
				}
			}
		}
	}
	// Most of them wait for something most of the time, the slow ones for seconds.
	var wg sync.WaitGroup
	quick, slow := newTurns(32), newTurns(256)
	for _, r := range rows {
		if testing.Short() && r.at%5 != 0 {
			continue
		}
		turns := quick
		if r.slow() {
			turns = slow
		}
		for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
			turns.run(&wg, func() {
				c := &inCell{T: t, name: fmt.Sprintf("%s, %s tells %s, %s", r.engine, r.leg, r.about.Kind, mode), client: &http.Client{Transport: &http.Transport{}}}
				defer c.client.CloseIdleConnections()
				defer c.clean()
				r.tell(c, mode)
			})
		}
	}
	natives := tellNatives(t, &wg)
	wg.Wait()
	for _, r := range rows {
		r.judge(t)
	}
	for _, r := range natives {
		r.judge(t)
	}
	if testing.Verbose() {
		t.Log("\n" + table(rows, natives))
	}
}

// turns bound how many run at a time.
type turns chan struct{}

func newTurns(n int) turns { return make(turns, n) }

// run runs f when it is its turn, and does not wait.
func (s turns) run(wg *sync.WaitGroup, f func()) {
	wg.Go(func() {
		s <- struct{}{}
		defer func() { <-s }()
		f()
	})
}

// slow reports whether the lie is that nothing comes, for longer than the gateway waits.
func (r *row) slow() bool { return r.about.Slow || r.about.Kind == actor.Endless }

// asked is the engine as a fleet's file names it.
func asked(engine string) string {
	if engine == fake.PlainSGLang {
		return foreign.Plain
	}
	return engine
}

var telling sync.Mutex // of cells

// tell has the lie told to a gateway of its own.
func (r *row) tell(c *inCell, mode gateway.Mode) {
	for _, stream := range []bool{false, true} {
		if !r.about.Applies(asked(r.engine), r.leg, stream) {
			continue
		}
		p := fake.NewPair(c, fake.Options{Engine: r.engine, Patience: 3 * time.Second, Decode: fake.Leg{Pool: 2048}, Prefill: fake.Leg{Pool: 2048}})
		g := front(c, p, mode, r.about)
		for _, api := range r.apis(stream) {
			p.Honest()
			for range 2 {
				a := say(c, g, api, false, strings.Repeat(canary, 20))
				for n := 0; a.status != 200 && n < 20; n++ { // the deadline is short where a lie is slow
					a = say(c, g, api, false, strings.Repeat(canary, 20))
				}
				if a.status != 200 {
					c.Fatalf("the first tenant got %d %s", a.status, a.body)
				}
			}
			// What shows at the end of a stream alone comes too late for what is streamed: there the text is honest.
			stale := r.about.Kind != actor.LongLine && (!stream || !r.late())
			p.Tell(fake.Lie{Kind: r.about.Kind, Leg: r.leg, Stale: stale, Wait: 2500 * time.Millisecond})
			old := len(p.Leaks())
			before := seen(c, g)
			a := say(c, g, api, stream, strings.Repeat("harbour ", 30))
			x := cell{stream: stream, api: api, mode: mode, status: a.status, text: clean(a.body), ended: !stream || strings.Contains(a.body, "[DONE]") || strings.Contains(a.body, "event: message_stop")}
			if a.status == 200 && !stream {
				x.ended = json.Valid([]byte(a.body)) && !strings.Contains(a.body, `"error"`)
			}
			x.guards = named(c, g, before, r.quiet(x))
			x.leaks = len(p.Leaks()) - old
			telling.Lock()
			r.cells = append(r.cells, x)
			telling.Unlock()
			p.Honest()
		}
	}
}

// The ways to ask. Plain workers answer the third by themselves.
const (
	completions = "completions"
	chats       = "chats"
	messages    = "messages"
)

// apis are those that the lie is told in.
func (r *row) apis(stream bool) (as []string) {
	for _, a := range []string{completions, chats, messages} {
		switch k := r.about.Kind; {
		case a == messages:
			// A message has one id, at its start, and a whole one has no index.
			if asked(r.engine) != foreign.Plain || k == actor.IDChanges || k == actor.OtherIndex && !stream {
				continue
			}
			if one := r.about.Stream || r.about.Whole; !*full && !one && (r.at%2 == 0) == stream {
				continue
			}
		case !*full && (a == chats) != (r.at%2 == 0 == stream):
			continue
		}
		as = append(as, a)
	}
	return as
}

// quiet reports whether the cell has no incident, since nothing is wrong but that a worker is busy.
func (r *row) quiet(x cell) bool {
	return r.about.Kind == actor.Unavailable && (r.leg != actor.Prefill || r.engine == fake.VLLMNixl) || r.unseen(x)
}

// late reports whether the lie shows, at best, when a stream ends.
func (r *row) late() bool {
	switch r.about.Kind {
	case actor.AbortFinish, actor.NotUTF8, actor.Garbage, actor.LongLine: // a stream's first event is well: it may have left by then
		return r.leg != actor.Prefill
	}
	return r.leg != actor.Prefill && (r.about.Seen == actor.AtEnd || r.leg == actor.Both)
}

// unseen is the residual: no word on the wire says it.
func (r *row) unseen(x cell) bool {
	vllm := r.engine == fake.VLLMNixl || r.engine == fake.VLLMMooncake
	switch r.about.Kind {
	case actor.StalePages:
		return !vllm
	case actor.CountZero, actor.CountMissing, actor.CountText:
		return r.leg == actor.Both && x.api != messages // one leg: there is nothing to compare it with; a message has to have counts
	case actor.OtherModel:
		return r.leg == actor.Both
	case actor.LongLine:
		return true // one field of megabytes is a reply, if it is no event of a stream
	}
	return false
}

func (r *row) judge(t *testing.T) {
	fail := func(x cell, format string, args ...any) {
		t.Helper()
		t.Errorf("%s, %s tells %s, %s, stream %v, %s: %s\n%+v", r.engine, r.leg, r.about.Kind, x.mode, x.stream, x.api, fmt.Sprintf(format, args...), x)
	}
	for _, x := range r.cells {
		if r.unseen(x) {
			continue
		}
		late := x.stream && r.late()
		if x.mode == gateway.Enforce {
			if strings.Contains(x.text, leaked[:4]) {
				fail(x, "foreign text")
			}
			if want := r.status(); x.status != want && (x.status != 502 || r.about.Kind != actor.Endless) && !(late && r.leg != actor.Prefill && x.status == 200) {
				fail(x, "want %d", want)
			}
			if x.ended && x.status == 200 && r.about.Kind != actor.AfterDone { // what follows the end never leaves
				fail(x, "a good end")
			}
		}
		if len(x.guards) == 0 && !r.quiet(x) {
			fail(x, "no incident")
		}
		if x.mode == gateway.Observe {
			for _, y := range r.cells {
				if y.mode == gateway.Enforce && y.stream == x.stream && y.api == x.api && !late {
					r.compare(fail, x, y)
				}
			}
		}
	}
}

// passes are the guards that let the bytes of a reply pass while they observe.
var passes = []string{"prefill-verdict", "prefill-finish", "prefill-handle", "prompt-agree", "finish", "wire", "first-token"}

func (r *row) compare(fail func(cell, string, ...any), observed, enforced cell) {
	through := false
	for _, g := range enforced.guards {
		if !slices.Contains(observed.guards, g) {
			fail(observed, "enforced, %v are named", enforced.guards)
		}
		through = through || slices.Contains(passes, g)
	}
	if through && observed.status != 200 {
		fail(observed, "the bytes did not pass")
	}
}

// status of the client's error.
func (r *row) status() int {
	switch k := r.about.Kind; {
	case k == actor.Refused:
		return 400
	case k == actor.RefusedAside && r.engine != fake.Plain && r.engine != fake.VLLMNixl && r.engine != fake.VLLMMooncake:
		return 400 // SGLang's says so
	case k == actor.Unavailable:
		return 503
	case r.about.Slow, k == actor.Endless:
		return 504
	}
	return 502
}

func table(rows []*row, natives []*nativeRow) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ENGINE\tLEG\tLIE\tREPLIES\tCLIENT GOT\tFOREIGN BYTES\tINCIDENT\tOBSERVED\tLEAKED AT THE WORKER")
	leaks := 0
	for _, r := range rows {
		status, incident, observed := map[string]bool{}, map[string]bool{}, map[string]bool{}
		foreignText, workers, replies := 0, 0, map[string]bool{}
		for _, x := range r.cells {
			replies[map[bool]string{false: "whole", true: "stream"}[x.stream]], replies[x.api] = true, true
			for _, g := range x.guards {
				if x.mode == gateway.Enforce {
					incident[g] = true
				} else {
					observed[g] = true
				}
			}
			workers += x.leaks
			if x.mode == gateway.Enforce {
				status[fmt.Sprint(x.status)] = true
				if strings.Contains(x.text, leaked[:4]) {
					foreignText += len(x.text)
				}
			}
		}
		leaks += workers
		note := fmt.Sprint(foreignText)
		if slices.ContainsFunc(r.cells, r.unseen) {
			note += " (residual: not on the wire)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", r.engine, r.leg, r.about.Kind, list(replies), list(status), note, list(incident), list(observed), workers)
	}
	for _, r := range natives {
		fmt.Fprintln(w, r.line())
	}
	w.Flush()
	fmt.Fprintf(&b, "%d rows; workers said another tenant's text in %d replies\n", len(rows)+len(natives), leaks)
	fmt.Fprintln(&b, "Native guards always enforce: a reply is computed from its own request's pages, or it is an error. A lie that is none of the request's business is turned away, and the reply is its own.")
	return b.String()
}

func list(set map[string]bool) string {
	var out []string
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, " ")
}

// front is a gateway before a pair of fakes, pinned by hand.
func front(c *inCell, p *fake.Pair, mode gateway.Mode, about actor.About) *gateway.Gateway {
	m := &gateway.Guarded{Messages: asked(p.Engine) == foreign.Plain, Fleet: foreign.Config{Engine: asked(p.Engine), Every: time.Hour, Patient: 20 * time.Second}}
	for _, w := range p.Workers() {
		at, _ := url.Parse(w.URL())
		cfg := w.Config()
		fw := foreign.Worker{Role: capacity.Role(cfg.Leg.String()), URL: at, PoolTokens: cfg.Pool, Context: cfg.Context, PageSize: cfg.PageSize, Version: cfg.Version, KVPort: 5600}
		if _, port := p.Bootstrap(); w == p.Prefill {
			fw.BootstrapPort = port
		}
		m.Fleet.Workers = append(m.Fleet.Workers, fw)
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	modes, patience := gateway.Modes{All: mode}, 20*time.Second
	if about.Slow || about.Kind == actor.Endless {
		patience = time.Second
	}
	if about.Seen == actor.Never || about.Kind == actor.Early {
		modes.Each = map[string]gateway.Mode{"first-token": mode}
	}
	g, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Modes: modes,
		Limits: gateway.Limits{Deadline: patience},
		Models: []gateway.ModelConfig{{Name: "recall", Guarded: m}}})
	if err == nil {
		err = g.Start()
	}
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { g.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g.WaitReady(ctx); err != nil {
		c.Fatal(err)
	}
	// What is pinned is used at once; what is read as well stands from here on.
	for n := 0; n < len(p.Workers()); time.Sleep(2 * time.Millisecond) {
		if n = bytes.Count(fleetOf(c, g), []byte(`"boots": 1`)); ctx.Err() != nil {
			c.Fatal("the workers' facts are not read")
		}
	}
	return g
}

func say(c *inCell, g *gateway.Gateway, api string, stream bool, prompt string) got {
	q, _ := json.Marshal(prompt)
	path, body := "/v1/completions", `{"model":"recall","max_tokens":40,"prompt":`+string(q)
	if api != completions {
		path, body = "/v1/chat/completions", `{"model":"recall","max_tokens":40,"messages":[{"role":"user","content":`+string(q)+`}]`
	}
	if api == messages {
		path = "/v1/messages"
	}
	if stream {
		body += `,"stream":true`
	}
	req, _ := http.NewRequest(http.MethodPost, "http://"+g.Addr()+path, strings.NewReader(body+"}"))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return got{resp.StatusCode, string(b), resp.Header}
}

// seen is the incidents so far, by id.
func seen(c *inCell, g *gateway.Gateway) map[string]string {
	resp, err := c.client.Get("http://" + g.AdminAddr() + "/admin/incidents")
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	var all struct {
		Incidents []struct{ ID, Guard string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		c.Fatal(err)
	}
	out := map[string]string{}
	for _, i := range all.Incidents {
		out[i.ID] = i.Guard
	}
	return out
}

// named is the guards of the incidents since before; it waits for one, and for the attempt to be quiet, unless none is to come.
func named(c *inCell, g *gateway.Gateway, before map[string]string, none bool) (guards []string) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		guards = nil
		for id, name := range seen(c, g) {
			if _, old := before[id]; !old && !slices.Contains(guards, name) {
				guards = append(guards, name)
			}
		}
		if quiet(c, g) && (none || len(guards) > 0) {
			break
		}
	}
	slices.Sort(guards)
	return guards
}

var busy = regexp.MustCompile(`"load_tokens": [1-9]`)

// quiet reports whether nothing is under way at the workers.
func quiet(c *inCell, g *gateway.Gateway) bool { return !busy.Match(fleetOf(c, g)) }

func fleetOf(c *inCell, g *gateway.Gateway) []byte {
	resp, err := c.client.Get("http://" + g.AdminAddr() + "/admin/fleet")
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return b
}

// inCell is a test's case that runs beside others.
type inCell struct {
	*testing.T
	name   string
	client *http.Client // of its own: a port that one case gave up is another's soon, and its idle connections are reset
	after  []func()
}

func (c *inCell) Errorf(format string, args ...any) {
	c.T.Helper()
	if text := fmt.Sprintf(format, args...); strings.Contains(text, "no-handle: ") && strings.HasSuffix(c.name, "observe") {
		return // a handle that is not ours is given to nobody, in any mode: decode computes the prompt by itself
	}
	c.T.Errorf(c.name+": "+format, args...)
}

func (c *inCell) Fatal(args ...any) {
	c.Errorf("%v", args)
	runtime.Goexit()
}

func (c *inCell) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}

func (c *inCell) Cleanup(f func()) { c.after = append(c.after, f) }

func (c *inCell) clean() {
	for _, f := range slices.Backward(c.after) {
		f()
	}
}
