// Command peers puts gateways in front of the same lying workers and prints what their clients got: docs/peers.md has what it printed.
//
//	bench/peers/install.sh .cache/e2e-peers
//	go run ./bench/peers [-engine sglang,vllm-nixl,vllm-mooncake] [-all]
//
// For each row a pair of fake workers (internal/fake) first serves one tenant's prompt, with a secret in it; then a worker tells the lie,
// and another tenant asks something else. The other gateways are asked the rows that are public knowledge; sluice, with -all, every lie that applies.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/sluicekv/sluice/bench/peer"
	"github.com/sluicekv/sluice/bench/trio"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
)

// row is a lie of one leg; the zero row is honest.
type row struct {
	kind actor.Kind
	leg  actor.Leg
}

func (r row) String() string {
	if r.kind == "" {
		return "honest"
	}
	return r.leg.String() + ": " + string(r.kind)
}

// public rows, by engine: the incident's own, and what any operator sees when a prefill refuses.
func public(engine string) []row {
	rows := []row{{}}
	for _, k := range []actor.Kind{actor.CountOne, actor.Placeholder, actor.Refused, actor.HandleMissing} {
		if a, _ := actor.Lookup(k); a.Applies(engine, actor.Prefill, false) {
			rows = append(rows, row{k, actor.Prefill})
		}
	}
	return rows
}

// every row that applies to an engine, but those that only the gateway's own patience ends.
func every(engine string) (rows []row) {
	rows = public(engine)
	for _, a := range actor.Catalogue() {
		for _, leg := range []actor.Leg{actor.Prefill, actor.Decode} {
			r := row{a.Kind, leg}
			if !a.Slow && (a.Applies(engine, leg, false) || a.Applies(engine, leg, true)) && !slices.Contains(rows, r) {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// ask is a kind of request.
type ask struct{ chat, stream bool }

var asks = []ask{{false, false}, {false, true}, {true, false}, {true, true}}

func (a ask) String() string {
	s := "completion"
	if a.chat {
		s = "chat"
	}
	if a.stream {
		s += " streamed"
	}
	return s
}

type settings struct {
	env, binary string
	all         bool
	without     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var s settings
	engines := flag.String("engine", "sglang,vllm-nixl,vllm-mooncake", "engines, comma-separated")
	flag.StringVar(&s.env, "env", ".cache/e2e-peers", "`folder` that install.sh filled")
	flag.StringVar(&s.binary, "sluice", "", "the binary (default: build it)")
	flag.BoolVar(&s.all, "all", false, "ask sluice every lie that applies, too (minutes)")
	flag.StringVar(&s.without, "without", "", "leave out this gateway")
	flag.Parse()
	if err := s.run(ctx, strings.Split(*engines, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func (s *settings) run(ctx context.Context, engines []string) error {
	if s.binary == "" {
		dir, err := os.MkdirTemp("", "sluice-peers")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if s.binary, err = trio.Build(ctx, dir); err != nil {
			return err
		}
	}
	leaked := false
	for _, e := range engines {
		got, err := s.engine(ctx, e)
		if err != nil {
			return err
		}
		leaked = leaked || got
	}
	if leaked {
		return fmt.Errorf("foreign text passed through sluice")
	}
	return nil
}

// engine prints one engine's table; leaked is whether foreign text came through sluice.
func (s *settings) engine(ctx context.Context, engine string) (leaked bool, err error) {
	names := slices.DeleteFunc(peer.For(engine), func(n string) bool { return n == s.without })
	cells := map[string]map[row][]*reply{}
	for _, name := range names {
		rows := public(engine)
		if name == peer.Sluice && s.all {
			rows = every(engine)
		}
		if cells[name], err = s.ask(ctx, engine, name, rows); err != nil {
			if name == peer.Sluice {
				return leaked, err
			}
			fmt.Fprintf(os.Stderr, "%s in front of %s: %v\n", name, engine, err)
			cells[name] = nil // its column stays empty
		}
	}
	fmt.Printf("\n## %s\n\n| a worker says | ", engine)
	for _, n := range names {
		v := peer.Versions[n]
		fmt.Printf("%s | ", strings.TrimSpace(n+" "+v))
	}
	fmt.Printf("\n| %s\n", strings.Repeat("--- | ", len(names)+1))
	rows := public(engine)
	if s.all {
		rows = every(engine)
	}
	for _, r := range rows {
		fmt.Printf("| %s |", r)
		for _, n := range names {
			c, asked := cells[n][r]
			if !asked {
				fmt.Printf(" |")
				continue
			}
			fmt.Printf(" %s |", joined(c))
			for _, x := range c {
				leaked = leaked || n == peer.Sluice && r.kind != "" && x != nil && foreign(x.text) > 0
			}
		}
		fmt.Println()
	}
	return leaked, nil
}

// joined is a cell: what clients got, and for which kinds of requests where they differ.
func joined(cells []*reply) string {
	var order []string
	by := map[string][]int{}
	asked := 0
	for i, c := range cells {
		if c == nil {
			continue
		}
		asked++
		k := c.String()
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], i)
	}
	var out []string
	for _, k := range order {
		var kinds []string
		done, streams := 0, 0
		for _, i := range by[k] {
			kinds = append(kinds, asks[i].String())
			if cells[i].stream && cells[i].status == http.StatusOK {
				streams++
				if cells[i].done {
					done++
				}
			}
		}
		switch {
		case streams > 0 && done == streams:
			k += ", [DONE]"
		case streams > 0 && done == 0:
			k += ", no [DONE]"
		case streams > 0:
			k += fmt.Sprintf(", [DONE] in %d of %d", done, streams)
		}
		if len(kinds) < asked {
			k += " (" + strings.Join(kinds, ", ") + ")"
		}
		out = append(out, k)
	}
	return strings.Join(out, "; ")
}

// ask puts a gateway in front of workers, a fresh pair and a fresh gateway for each row, and returns what clients got of each kind of
// request; nil where the lie does not apply.
func (s *settings) ask(ctx context.Context, engine, name string, rows []row) (map[row][]*reply, error) {
	got := map[row][]*reply{}
	for _, r := range rows {
		for _, a := range asks {
			about, _ := actor.Lookup(r.kind)
			if r.kind != "" && !about.Applies(engine, r.leg, a.stream) || r.kind == actor.Refused && a.stream && name != peer.Sluice {
				got[r] = append(got[r], nil)
				continue
			}
			c, err := s.one(ctx, engine, name, r, a)
			if err != nil {
				return nil, err
			}
			got[r] = append(got[r], c)
		}
	}
	return got, nil
}

func (s *settings) one(ctx context.Context, engine, name string, r row, a ask) (*reply, error) {
	pair, err := fake.NewFleet(nil).Pair(fake.Options{Engine: engine, AnyID: name != peer.Sluice})
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	f := peer.Fleet{Engine: engine, Prefill: pair.Prefill.URL(), Decode: pair.Decode.URL()}
	if _, port := pair.Bootstrap(); port > 0 {
		f.Bootstrap = port
	}
	if engine == fake.VLLMMooncake {
		if f.EngineID, err = engineID(ctx, f.Bootstrap); err != nil {
			return nil, err
		}
	}
	g, err := peer.Start(ctx, name, f, peer.Options{Env: s.env, Binary: s.binary})
	if err != nil {
		for _, v := range pair.Violations() {
			err = fmt.Errorf("%w\n%v", err, v)
		}
		return nil, err
	}
	defer g.Close()
	if _, err := request(ctx, g.URL, a, theirs); err != nil {
		return nil, err
	}
	if r.kind != "" {
		pair.Tell(fake.Lie{Kind: r.kind, Leg: r.leg, Stale: true})
	}
	rep, err := request(ctx, g.URL, a, ours)
	if err != nil {
		return nil, err
	}
	return &rep, nil
}

const (
	secret = "the vault of Ada opens with 3QY9DPNCRFU8 and nothing else"
	theirs = "My notes: " + secret + ". My notes: "
	ours   = "What is the tide at noon in the old harbour? The tide at noon"
)

// reply is what a client got.
type reply struct {
	status  int
	text    string
	done    bool
	stream  bool
	failure bool // an error event, or a connection that broke
}

// String is what a client got, but for how a stream ended.
func (r reply) String() string {
	s := fmt.Sprint(r.status)
	switch {
	case r.status == 0:
		return "no answer"
	case foreign(r.text) > 0:
		s += ", **foreign text**"
	case r.status == http.StatusOK && r.text != "":
		s += ", its own text"
	case r.status == http.StatusOK:
		s += ", no text"
	}
	if r.status == http.StatusOK && r.failure {
		s += ", an error"
	}
	return s
}

// foreign is the length of the longest piece of the secret in a text, if that is no coincidence.
func foreign(text string) (longest int) {
	for i := range secret {
		for n := longest + 1; i+n <= len(secret) && strings.Contains(text, secret[i:i+n]); n++ {
			longest = n
		}
	}
	if longest < 6 {
		return 0
	}
	return longest
}

func request(ctx context.Context, at string, a ask, prompt string) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q, _ := json.Marshal(prompt)
	path, body := "/v1/completions", fmt.Sprintf(`{"model":"recall","prompt":%s,"max_tokens":48,"stream":%v}`, q, a.stream)
	if a.chat {
		path, body = "/v1/chat/completions", fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%s}],"max_tokens":48,"stream":%v}`, q, a.stream)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+path, strings.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{stream: a.stream, failure: true}, nil // the client's connection ended: that is what it got
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	r = reply{status: resp.StatusCode, stream: a.stream, failure: err != nil}
	for line := range bytes.Lines(b) {
		line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("data: "))
		if string(line) == "[DONE]" {
			r.done = true
		}
		var x struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
			Error json.RawMessage
		}
		if json.NewDecoder(bytes.NewReader(line)).Decode(&x) == nil {
			for _, c := range x.Choices {
				r.text += c.Text + c.Message.Content + c.Delta.Content
			}
			r.failure = r.failure || len(x.Error) > 0
		}
	}
	return r, nil
}

// engineID asks a Mooncake prefill's bootstrap server who it is: smg has to be told.
func engineID(ctx context.Context, port int) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/query", port), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&ranks); err != nil {
		return "", err
	}
	return ranks["0"].EngineID, nil
}
