package drill

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// kills are kill -9 of each process at each step of the protocol.
func kills() (all []fault) {
	for _, who := range []string{node.Decode, node.Prefill, node.Gateway} {
		for _, phase := range Phases {
			out := guard.Guard(0)
			if who != node.Decode && (phase == "grant" || phase == "landing") {
				out = guard.Fence
			}
			all = append(all, fault{class: "kill -9 of " + who, phase: phase, what: "SIGKILL in the critical section of the step", quick: true, out: out, next: "gate and MAC",
				run: func(ctx context.Context, s *scene) (seen, error) { return s.killed(ctx, who, phase) }})
		}
	}
	return all
}

// killed kills a process at its own step of a phase, or, where it takes no part in it, when the fleet is there.
func (s *scene) killed(ctx context.Context, who, phase string) (seen, error) {
	p := s.process(who)
	step, itself := own[who][phase]
	if itself {
		arm := node.Arm{Machine: step.machine.String(), Step: step.step.String(), Nth: step.nth, Signal: int(syscall.SIGKILL)}
		if _, err := p.do(ctx, node.Command{Do: node.DoArm, Arm: arm}); err != nil {
			return seen{}, err
		}
	}
	done := make(chan reply, 1)
	go func() { done <- s.stream(ctx) }()
	if !itself {
		if !s.when(ctx, phase) {
			return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
		}
		p.kill()
	}
	got := seen{}
	select {
	case <-p.gone: // whoever runs it starts it again, while the client waits
		if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signal() == syscall.SIGKILL {
			got.fired = 1
		}
		if err := s.x.revive(ctx); err != nil {
			return got, err
		}
	case <-time.After(5 * time.Second): // the step did not come
	}
	got.reply = <-done
	got.guard = named(got.reply)
	if got.reply.status == 200 {
		got.guard = s.why()
	}
	if got.guard == "" && got.reply.status == 0 {
		got.guard = "fence" // the client hears that its connection ended; the workers' pages are fenced
	}
	return got, nil
}

// clocks are processes for which time jumps. The wall clock has no cell: setting it is a whole machine's matter. TestNoDecisionReadsTheWallClock
// shows that nothing of a handoff reads it, and keyring's tests that a handshake does not care what it says.
func clocks() (all []fault) {
	const class = "clock jump"
	for _, who := range []string{node.Decode, node.Prefill, node.Gateway} {
		for _, phase := range []string{"reserve", "grant", "landing", "seal", "stream"} {
			if who == node.Prefill && (phase == "seal" || phase == "stream") {
				continue
			}
			all = append(all, fault{class: class, phase: phase, what: who + " stands still past the deadline, and finds its clock there", quick: who == node.Decode && phase == "landing",
				run: func(ctx context.Context, s *scene) (seen, error) { return s.stopped(ctx, who, phase) }})
		}
	}
	return append(all, fault{class: class, phase: "plan", what: "decode's monotonic clock is 11 days ahead of everybody's (a time namespace)", want: served, quick: true, ends: true,
		needs: func() string {
			if exec.Command("unshare", "-T", "--monotonic", "1000000", "true").Run() != nil {
				return "needs root and time namespaces"
			}
			return ""
		},
		run: func(ctx context.Context, s *scene) (seen, error) {
			program := s.x.program
			s.x.program = append([]string{"unshare", "-T", "--monotonic", "1000000", "--boottime", "1000000"}, program...)
			s.x.decode.close(ctx)
			err := s.x.startDecode(ctx)
			s.x.program = program
			if err != nil {
				return seen{}, err
			}
			s.x.toDecode.reset()
			if err := s.x.ready(ctx); err != nil {
				return seen{}, err
			}
			return seen{fired: 1, reply: s.ask(ctx, "honest"), guard: "no two clocks are compared"}, nil
		}})
}

// stopped stops a process in a phase for longer than the request may take.
func (s *scene) stopped(ctx context.Context, who, phase string) (seen, error) {
	p := s.process(who)
	done := make(chan reply, 1)
	go func() { done <- s.stream(ctx) }()
	if !s.when(ctx, phase) {
		return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
	}
	p.signal(syscall.SIGSTOP)
	jump := time.NewTimer(time.Duration(s.x.limits.deadline)*time.Millisecond + 500*time.Millisecond)
	<-jump.C // the fault itself
	p.signal(syscall.SIGCONT)
	return seen{reply: <-done, fired: 1}, nil
}

// storms are clients that hang up, many at once.
func storms() (all []fault) {
	for _, c := range []struct {
		phase string
		most  time.Duration
	}{{"reserve", 8 * time.Millisecond}, {"landing", 60 * time.Millisecond}, {"stream", 400 * time.Millisecond}} {
		all = append(all, fault{class: "page and pin leaks", phase: c.phase, what: "40 clients that hang up at random, then one that does not", want: served, quick: true, out: guard.Zero,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.storm(ctx, 40, c.most) }})
	}
	for _, phase := range Phases {
		all = append(all, fault{class: "client hangs up", phase: phase, what: "one client, in that very phase, while pages and output go slowly", quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.hungUp(ctx, phase) }})
	}
	return all
}

// hungUp hangs up in a phase.
func (s *scene) hungUp(ctx context.Context, phase string) (seen, error) {
	if err := s.slowly(ctx); err != nil {
		return seen{}, err
	}
	asking, hangUp := context.WithCancel(ctx)
	defer hangUp()
	done := make(chan reply, 1)
	go func() { done <- s.stream(asking) }()
	if !s.when(ctx, phase) {
		return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
	}
	hangUp()
	got := seen{reply: <-done, guard: "fence"}
	s.drained(ctx)
	for _, e := range s.x.events.since(s.from) {
		if e.Machine == trace.Gateway && e.Code == verdict.ClientGone {
			got.fired = 1 // the gateway was told while the attempt was under way
		}
	}
	if phase == "settle" { // it is over for the client: hanging up then is how every request ends
		got.fired, got.guard = 1, "not needed any more"
	}
	return got, nil
}

func (s *scene) storm(ctx context.Context, clients int, most time.Duration) (seen, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	hungUp := 0
	var wrong []string
	for range clients {
		code := secret(s.rng)
		p := plain(s.rng, code, 200+s.rng.IntN(bTokens))
		after := time.Duration(s.rng.Int64N(int64(most)))
		wg.Go(func() {
			c, cancel := context.WithTimeout(ctx, after)
			defer cancel()
			r, err := s.x.door().stream(c, "honest", p, streamed, func() {})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || c.Err() != nil {
				hungUp++
			}
			if n := foreign(r.text, p, s.a); n > 0 {
				wrong = append(wrong, r.text)
			}
		})
	}
	wg.Wait()
	got := seen{fired: hungUp, reply: s.ask(ctx, "honest"), guard: "fence"}
	if len(wrong) > 0 {
		got.reply.text = wrong[0]
	}
	return got, nil
}

// disks are files that take nothing.
func disks() (all []fault) {
	for _, c := range []struct {
		phase, what string
		set         func(*node.Config)
		lost        func(node.Stats) uint64
	}{
		{"settle", "the disk is full: the gateway's records", func(n *node.Config) { n.Records = "/dev/full" }, func(s node.Stats) uint64 { return s.RecordsLost }},
		{"plan", "the disk is full: the gateway's log", func(n *node.Config) { n.Log = "/dev/full" }, func(s node.Stats) uint64 { return s.LogLost }},
		{"stream", "the disk is full: the gateway's trace", func(n *node.Config) { n.TraceFile = "/dev/full" }, func(s node.Stats) uint64 { return s.TraceLost }},
	} {
		all = append(all, fault{class: "disk full", phase: c.phase, what: c.what, want: served, quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) {
				again := func(set func(*node.Config)) error {
					s.x.gateway.close(ctx)
					s.x.gatewayCfg = s.x.config(node.Gateway)
					set(&s.x.gatewayCfg)
					return s.x.startGateway(ctx)
				}
				if err := again(c.set); err != nil {
					return seen{}, err
				}
				s.undo = append(s.undo, func(context.Context) error { return again(func(*node.Config) {}) })
				got := seen{reply: s.ask(ctx, "honest"), guard: "counted, never waited for"}
				for range 100 { // the writers have goroutines of their own
					if got.fired = int(c.lost(s.x.stats(ctx, s.x.gateway))); got.fired > 0 {
						break
					}
					time.Sleep(10 * time.Millisecond) // polling another process
				}
				return got, nil
			}})
	}
	return all
}
