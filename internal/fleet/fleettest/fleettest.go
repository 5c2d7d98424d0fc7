// Package fleettest is a pair of native workers for tests that says whatever its script tells it: honest or not. It
// speaks the control protocol over real sockets and has no engine, no pool and no data link: the legs of a pair share a script.
package fleettest

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Model is the fingerprint that the fakes run.
var Model = [32]byte{0x5a}

// Gateway is the name of the gateway's identity in a Fleet.
const Gateway = "gw"

// Fleet is keys for a gateway and any number of fake workers.
type Fleet struct {
	Keys *keyring.Fleet
	IDs  map[string]keyring.Identity
}

// Keys makes a fleet's keys: names beginning with p are prefill workers, with d decode.
func Keys(names ...string) Fleet {
	nodes := []keyring.Node{{Name: Gateway, Role: wire.RoleGateway}}
	for _, n := range names {
		nodes = append(nodes, keyring.Node{Name: n, Role: roleOf(n)})
	}
	keys, ids := keyring.Ephemeral(nodes...)
	return Fleet{keys, ids}
}

func roleOf(name string) wire.Role {
	if name[0] == 'p' {
		return wire.RolePrefill
	}
	return wire.RoleDecode
}

// Worker is one fake. Its fields may be set between NewWorker and Start.
type Worker struct {
	Name     string
	Hello    wire.Hello
	Facts    capacity.Facts
	RawFacts []byte // instead of Facts
	Pong     wire.Pong
	Mute     bool // answers no ping

	t     testing.TB
	fleet Fleet
	pair  *Pair
	addr  string
	mu    sync.Mutex
	ln    *tcp.Listener[*tcp.Link]
	links map[*tcp.Link]bool
	stop  context.CancelFunc
	wg    sync.WaitGroup
	dials int
}

// NewWorker makes a worker with a pool and context of 4096 tokens.
func NewWorker(t testing.TB, f Fleet, name string) *Worker {
	w := &Worker{Name: name, t: t, fleet: f, links: map[*tcp.Link]bool{}}
	g := page.Geometry{Tokens: 16, Layers: 1, KVHeads: 1, HeadDim: 8, Layout: page.LayoutPairs16}
	w.Hello = wire.Hello{Role: roleOf(name), Name: name, Boot: page.NewBoot(), Model: Model, Geometry: g, Path: "fake", MaxPage: uint32(g.Bytes())}
	w.Facts = capacity.Facts{Name: name, Engine: "native", Version: "1", Role: capacity.Prefill, PoolTokens: 4096, PageSize: 16, Context: 4096, DType: "f16"}
	if w.Hello.Role == wire.RoleDecode {
		w.Facts.Role = capacity.Decode
	}
	w.Pong = wire.Pong{PagesTotal: 256, PagesFree: 256}
	return w
}

// Start listens. The first Start chooses the address; later ones, after Stop, use it again.
func (w *Worker) Start() *Worker {
	w.t.Helper()
	if w.addr == "" {
		w.addr = "127.0.0.1:0"
	}
	ln, err := tcp.ListenControl(w.addr, tcp.Config{Identity: w.fleet.IDs[w.Name], Hello: w.Hello, Trust: w.fleet.Keys.Trust(wire.RoleGateway)})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.ln, w.addr, w.stop = ln, ln.Addr().String(), cancel
	w.mu.Unlock()
	w.wg.Go(func() {
		for {
			l, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			w.mu.Lock()
			w.links[l] = true
			w.dials++
			w.mu.Unlock()
			w.wg.Go(func() { w.serve(l) })
		}
	})
	w.t.Cleanup(w.Stop)
	return w
}

// Stop closes the listener and every link at once, as a killed process does.
func (w *Worker) Stop() {
	w.mu.Lock()
	ln, stop := w.ln, w.stop
	w.ln = nil
	w.mu.Unlock()
	if ln == nil {
		return
	}
	stop()
	ln.Close()
	w.Drop()
	w.wg.Wait()
}

// Drop closes the links and keeps listening.
func (w *Worker) Drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.Close()
	}
}

// Dials is how many links there have been.
func (w *Worker) Dials() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

// At is the worker as a gateway is configured for it.
func (w *Worker) At() fleet.Worker {
	role := capacity.Prefill
	if w.Hello.Role == wire.RoleDecode {
		role = capacity.Decode
	}
	return fleet.Worker{Name: w.Name, Role: role, Addr: w.addr, Key: w.fleet.IDs[w.Name].Public()}
}

// Say sends a frame on every link.
func (w *Worker) Say(f wire.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.Send(f)
	}
}

// SetVersion changes the version in the facts and says so.
func (w *Worker) SetVersion(v string) {
	w.mu.Lock()
	w.Facts.Version = v
	w.mu.Unlock()
	w.SayFacts()
}

// SayFacts sends the facts again.
func (w *Worker) SayFacts() { w.Say(w.facts()) }

func (w *Worker) facts() wire.Facts {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := wire.Facts{JSON: w.RawFacts}
	if f.JSON == nil {
		f.JSON, _ = json.Marshal(w.Facts)
	}
	if w.Hello.Role == wire.RoleDecode {
		f.Data = "127.0.0.1:1"
	}
	return f
}

func (w *Worker) serve(l *tcp.Link) {
	defer func() {
		l.Close()
		w.mu.Lock()
		delete(w.links, l)
		w.mu.Unlock()
	}()
	l.Send(w.facts())
	for {
		f, err := l.Recv()
		if err != nil {
			return
		}
		if p, ok := f.(wire.Ping); ok {
			w.mu.Lock()
			pong, mute := w.Pong, w.Mute
			w.mu.Unlock()
			if pong.Nonce = p.Nonce; !mute {
				l.Send(pong)
			}
			continue
		}
		if w.pair != nil {
			w.pair.heard(w, l, f)
		}
	}
}

// Script is what a pair does with an attempt. It runs in a goroutine of its own, from decode's plan on.
type Script func(a *Attempt)

// Pair is two fakes under one script.
type Pair struct {
	Prefill, Decode *Worker
	Net             net.Addr

	mu       sync.Mutex
	script   Script
	attempts map[attempt.ID]*Attempt
	order    []*Attempt
	ctx      context.Context
	wg       sync.WaitGroup
}

// NewPair makes a pair that is not started. Its workers' fields may be set before Start.
func NewPair(t testing.TB, f Fleet, prefill, decode string, s Script) *Pair {
	p := &Pair{Prefill: NewWorker(t, f, prefill), Decode: NewWorker(t, f, decode), script: s, attempts: map[attempt.ID]*Attempt{}}
	p.Prefill.pair, p.Decode.pair = p, p
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); p.wg.Wait() })
	return p
}

// Start starts both workers.
func (p *Pair) Start() *Pair {
	p.Prefill.Start()
	p.Decode.Start()
	return p
}

// Set changes the script for later attempts.
func (p *Pair) Set(s Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

// Attempts that were planned so far, in order.
func (p *Pair) Attempts() []*Attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*Attempt(nil), p.order...)
}

func (p *Pair) heard(w *Worker, l *tcp.Link, f wire.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch f := f.(type) {
	case wire.Plan:
		plan, err := admission.Verify(f.Signed, w.fleet.Keys)
		if err != nil {
			w.t.Errorf("%s got a plan that does not verify: %v", w.Name, err)
			return
		}
		if plan.Session != l.Own().Session {
			w.t.Errorf("%s got a plan of another session", w.Name)
		}
		a := p.attempts[plan.Attempt]
		if a == nil {
			if w != p.Decode {
				w.t.Errorf("prefill got the plan before decode")
			}
			a = &Attempt{Plan: plan, pair: p, links: map[*Worker]*tcp.Link{}, prompted: make(chan struct{}),
				aborted: map[*Worker]chan verdict.Verdict{p.Prefill: make(chan verdict.Verdict, 8), p.Decode: make(chan verdict.Verdict, 8)}, stopped: make(chan struct{})}
			p.attempts[plan.Attempt] = a
			p.order = append(p.order, a)
			s := p.script
			p.wg.Go(func() { s(a) })
		}
		a.links[w] = l
	case wire.Prompt:
		a := p.attempts[f.Attempt]
		if int(f.Offset) != len(a.IDs) {
			w.t.Errorf("prompt at %d where %d was expected", f.Offset, len(a.IDs))
		}
		if a.IDs = append(a.IDs, f.IDs...); len(a.IDs) == int(a.Plan.PromptTokens) {
			close(a.prompted)
		}
	case wire.Stop:
		close(p.attempts[f.Attempt].stopped)
	case wire.Abort:
		if a := p.attempts[f.Attempt]; a != nil {
			a.aborted[w] <- f.Verdict
		}
	default:
		w.t.Errorf("%s got a %s", w.Name, f.Kind())
	}
}

// Attempt is one attempt at a pair.
type Attempt struct {
	Plan admission.Plan
	IDs  []int32 // complete once WaitPrompt has returned

	pair     *Pair
	links    map[*Worker]*tcp.Link
	prompted chan struct{}
	aborted  map[*Worker]chan verdict.Verdict
	stopped  chan struct{}
}

// Root is what honest legs say.
var Root = [32]byte{0x77}

func (a *Attempt) send(w *Worker, f wire.Frame) {
	a.pair.mu.Lock()
	l := a.links[w]
	a.pair.mu.Unlock()
	if l != nil {
		l.Send(f)
	}
}

// Say sends a frame of the attempt on a leg's link.
func (a *Attempt) Say(leg wire.Role, f wire.Frame) {
	w := a.pair.Prefill
	if leg == wire.RoleDecode {
		w = a.pair.Decode
	}
	a.send(w, f)
}

// Pages that the prompt needs.
func (a *Attempt) Pages() uint32 { return (a.Plan.PromptTokens + 15) / 16 }

// Reserved is decode's word that it holds pages.
func (a *Attempt) Reserved() {
	a.Say(wire.RoleDecode, wire.Reserved{Attempt: a.Plan.Attempt, Pages: a.Pages()})
}

// WaitPrompt waits until prefill has the whole prompt; false if the test ended.
func (a *Attempt) WaitPrompt() bool {
	select {
	case <-a.prompted:
		return true
	case <-a.pair.ctx.Done():
		return false
	}
}

// Outcome of a leg that served; change may alter it.
func (a *Attempt) Outcome(leg wire.Role, completion int, change ...func(*wire.Outcome)) wire.Outcome {
	o := wire.Outcome{Attempt: a.Plan.Attempt, Verdict: verdict.Served(verdict.Prefill), Computed: a.Plan.PromptTokens, Reserved: a.Pages(), Written: a.Pages(),
		Digest: a.Plan.Digest, Root: Root, PhaseMicroBegin: 10, PhaseMicroEnd: 20}
	if leg == wire.RoleDecode {
		o.Verdict, o.Finish, o.Completion = verdict.Served(verdict.Decode), wire.FinishStop, uint32(completion)
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// Ends sends an outcome and that the leg's pages are back.
func (a *Attempt) Ends(leg wire.Role, o wire.Outcome) {
	a.Say(leg, o)
	a.Settled(leg)
}

// No ends a leg with a refusal.
func (a *Attempt) No(leg wire.Role, v verdict.Verdict) {
	a.Ends(leg, wire.Outcome{Attempt: a.Plan.Attempt, Verdict: v})
}

// Settled says that a leg's pages are back.
func (a *Attempt) Settled(leg wire.Role) { a.Say(leg, wire.Settled{Attempt: a.Plan.Attempt}) }

// Sealed is decode's acceptance; change may alter it.
func (a *Attempt) Sealed(change ...func(*wire.Sealed)) {
	s := wire.Sealed{Attempt: a.Plan.Attempt, Tokens: a.Plan.PromptTokens, Written: a.Pages(), Digest: a.Plan.Digest, Root: Root}
	for _, c := range change {
		c(&s)
	}
	a.Say(wire.RoleDecode, s)
}

// Output sends generated ids from an index on.
func (a *Attempt) Output(index int, ids ...int32) {
	a.Say(wire.RoleDecode, wire.Output{Attempt: a.Plan.Attempt, Index: uint32(index), IDs: ids})
}

// Stopped is closed when the gateway asks decode to stop.
func (a *Attempt) Stopped() <-chan struct{} { return a.stopped }

// Aborted waits for the abort of a leg and returns its verdict; the zero verdict if the test ended.
func (a *Attempt) Aborted(leg wire.Role) verdict.Verdict {
	w := a.pair.Prefill
	if leg == wire.RoleDecode {
		w = a.pair.Decode
	}
	select {
	case v := <-a.aborted[w]:
		return v
	case <-a.pair.ctx.Done():
		return verdict.Verdict{}
	}
}

// Done is closed when the test ends.
func (a *Attempt) Done() <-chan struct{} { return a.pair.ctx.Done() }

// Prefilled is an honest handoff up to the seal; false if the test ended.
func (a *Attempt) Prefilled() bool {
	a.Reserved()
	if !a.WaitPrompt() {
		return false
	}
	a.Ends(wire.RolePrefill, a.Outcome(wire.RolePrefill, 0))
	a.Sealed()
	return true
}

// Honest serves an attempt: ids are the reply, of which at most MaxTokens are sent.
func Honest(ids ...int32) Script {
	return func(a *Attempt) {
		if !a.Prefilled() {
			return
		}
		reply, finish := ids, wire.FinishStop
		if len(reply) >= int(a.Plan.MaxTokens) {
			reply, finish = reply[:a.Plan.MaxTokens], wire.FinishLength
		}
		for i, id := range reply {
			a.Output(i, id)
		}
		a.Ends(wire.RoleDecode, a.Outcome(wire.RoleDecode, len(reply), func(o *wire.Outcome) { o.Finish = finish }))
	}
}

// Until fails the test unless ok becomes true soon. It is for conditions that have no event of their own.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}
