package drill

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/transport/faultconn"
)

// networks are cuts, silences and spoiled bytes between two nodes.
func networks() (all []fault) {
	links := []struct {
		name string
		of   func(*trio) *relay
	}{
		{"between prefill and decode", func(x *trio) *relay { return x.data }},
		{"between gateway and decode", func(x *trio) *relay { return x.toDecode }},
		{"between gateway and prefill", func(x *trio) *relay { return x.toPrefill }},
	}
	for i, l := range links {
		for _, phase := range Phases[1:9] {
			all = append(all,
				fault{class: "network cut", phase: phase, what: "every connection " + l.name + " is reset", quick: phase == "landing" || i == 0 && (phase == "reserve" || phase == "stream"),
					run: func(ctx context.Context, s *scene) (seen, error) {
						return s.disturbed(ctx, phase, func() (int, string) { return l.of(s.x).sever(), "" }, 300*time.Millisecond)
					}},
				fault{class: "network half-open", phase: phase, what: "nothing passes " + l.name + ", and nobody is told", quick: i == 0 && phase == "landing" || i == 1 && phase == "stream",
					run: func(ctx context.Context, s *scene) (seen, error) {
						return s.disturbed(ctx, phase, func() (int, string) { return l.of(s.x).hush(true), "" }, 0)
					}})
		}
	}
	bytes := func(class, phase, what, faults string, want wants, out guard.Guard, guards ...string) fault {
		return fault{class: class, phase: phase, what: what, want: want, quick: true, guards: guards, out: out,
			run: func(ctx context.Context, s *scene) (seen, error) {
				f, err := faultconn.Parse(faults)
				if err != nil {
					return seen{}, err
				}
				s.x.data.spoil(f)
				s.x.data.reset()
				for !s.linksGone(ctx) { // prefill dials anew for the next attempt
				}
				return seen{reply: s.stream(ctx), fired: s.x.data.fired()}, nil
			}}
	}
	return append(all,
		bytes("bytes changed on the way", "grant", "a bit of a page flips in the network", "out flip@150000+1", refused, guard.MAC, "mac"),
		bytes("bytes changed on the way", "manifest", "a page's worth of bytes comes twice", "out duplicate@150000+49152", refused, 0),
		bytes("partial transfer taken as complete", "grant", "the connection ends inside a page", "out halfclose@150000", either, 0),
		bytes("partial transfer taken as complete", "seal", "bytes inside a page are lost", "out drop@150000+100", refused, 0),
		fault{class: "source pages reused while read", phase: "landing", what: "prefill's sender is held up in A's pages; A hangs up; B gets the same pages to compute in", want: served, quick: true, out: guard.Pin,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.reused(ctx) }},
	)
}

// linksGone waits until decode has no data link.
func (s *scene) linksGone(ctx context.Context) bool {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C: // polling another process
	case <-ctx.Done():
	}
	return true
}

// slowly makes pages and output take their time, so that a phase is still going on when it is disturbed.
func (s *scene) slowly(ctx context.Context) error {
	_, err := s.x.prefill.do(ctx, node.Command{Do: node.DoRules, Rules: []node.Rule{{Kind: "page", Data: true, Out: true, Times: 1, Delay: 5}}})
	if err != nil {
		return err
	}
	_, err = s.x.decode.do(ctx, node.Command{Do: node.DoRules, Rules: []node.Rule{{Kind: "output", Out: true, Times: 1, Delay: 2}}})
	return err
}

// disturbed asks for B and disturbs the network in a phase. heal 0: only once the reply is in.
func (s *scene) disturbed(ctx context.Context, phase string, disturb func() (int, string), heal time.Duration) (seen, error) {
	if err := s.slowly(ctx); err != nil {
		return seen{}, err
	}
	done := make(chan reply, 1)
	go func() { done <- s.stream(ctx) }()
	if !s.when(ctx, phase) {
		return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
	}
	got := seen{}
	got.fired, got.guard = disturb()
	if heal > 0 {
		t := time.NewTimer(heal)
		defer t.Stop()
		<-t.C // the fault's length
		s.x.toDecode.mend()
		s.x.toPrefill.mend()
		s.x.data.mend()
	}
	got.reply = <-done
	if got.reply.status == 200 {
		got.guard = s.why()
	}
	return got, nil
}

// reused holds prefill's sender up in the middle of A's pages, has A hang up, and has B computed in the same pages meanwhile.
func (s *scene) reused(ctx context.Context) (seen, error) {
	asking, hangUp := context.WithCancel(ctx)
	defer hangUp()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = s.x.door().ask(asking, "honest", s.a, whole)
	}()
	from := s.from
	p := reached["landing"]
	if !s.x.events.wait(ctx.Done(), from, p.machine, p.step, 2) {
		return seen{}, ctx.Err()
	}
	s.x.data.hush(false)
	before := s.x.stats(ctx, s.x.decode)
	t := time.NewTimer(50 * time.Millisecond)
	<-t.C // the socket's buffers fill with A's pages
	hangUp()
	<-gone
	done := make(chan reply, 1)
	go func() { done <- s.stream(ctx) }()
	// B is under way in prefill once its prompt is computed.
	t.Reset(300 * time.Millisecond)
	<-t.C
	s.x.data.mend()
	got := seen{reply: <-done}
	after := s.x.stats(ctx, s.x.decode)
	got.fired = int(after.LateFrames + after.PagesRefused - before.LateFrames - before.PagesRefused)
	if got.fired > 0 {
		got.guard = guard.Gate.String()
	}
	return got, nil
}

// namespaces are cuts of a real network: decode runs in a network namespace of its own, at the end of a pair of devices.
func namespaces() (all []fault) {
	for _, phase := range []string{"reserve", "landing", "stream"} {
		all = append(all, fault{class: "network half-open (namespace)", phase: phase, what: "the link to decode's network namespace goes down: packets vanish, both ways", quick: phase == "landing",
			ends: true, needs: noNamespaces,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.unplugged(ctx, phase) }})
	}
	return all
}

func noNamespaces() string {
	if os.Geteuid() != 0 {
		return "network namespaces need root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "network namespaces need iproute2"
	}
	return ""
}

func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("drill: ip %s: %w: %s", args, err, out)
	}
	return nil
}

// unplugged moves decode into a network namespace, asks for B, and takes the device down in a phase.
func (s *scene) unplugged(ctx context.Context, phase string) (seen, error) {
	name := fmt.Sprintf("sldr%d", os.Getpid()%100000)
	here, there := name+"a", name+"b"
	for _, c := range []string{"netns add " + name, "link add " + here + " type veth peer name " + there, "link set " + there + " netns " + name,
		"addr add 198.18.77.1/30 dev " + here, "link set " + here + " up",
		"-n " + name + " addr add 198.18.77.2/30 dev " + there, "-n " + name + " link set " + there + " up", "-n " + name + " link set lo up"} {
		if err := ip(c); err != nil {
			_ = ip("netns del " + name)
			return seen{}, err
		}
	}
	defer func() {
		_ = ip("netns del " + name)
	}()
	s.x.decode.close(ctx)
	c := s.x.config(node.Decode)
	c.KVTokens, c.Listen, c.Data, c.Advertise = decodePool, "198.18.77.2:0", "198.18.77.2:0", s.x.data.addr()
	program := s.x.program
	s.x.program = append([]string{"ip", "netns", "exec", name}, program...)
	p, err := s.x.spawn(ctx, c)
	s.x.program = program
	if err != nil {
		return seen{}, err
	}
	s.x.decode = p
	s.x.toDecode.point(p.up.Addr)
	s.x.data.point(p.up.Data)
	s.x.toDecode.reset()
	if err := s.x.ready(ctx); err != nil {
		return seen{}, err
	}
	if err := s.slowly(ctx); err != nil {
		return seen{}, err
	}
	s.from = s.x.events.now()
	done := make(chan reply, 1)
	go func() { done <- s.stream(ctx) }()
	if !s.when(ctx, phase) {
		return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
	}
	if err := ip("link set " + here + " down"); err != nil {
		return seen{}, err
	}
	got := seen{fired: 1, reply: <-done}
	if got.reply.status == 200 {
		got.guard = s.why()
	}
	if err := ip("link set " + here + " up"); err != nil {
		return seen{}, err
	}
	// The decode worker whose link was cut must give its pages back on its own.
	if free, total, nonzero, err := s.x.settled(ctx, settleLimit); err != nil || free != total || nonzero != 0 {
		return seen{}, fmt.Errorf("drill: behind the cut %d of %d pages came back, %d bytes left (%w)", free, total, nonzero, err)
	}
	s.x.decode.close(ctx)
	return got, nil
}
