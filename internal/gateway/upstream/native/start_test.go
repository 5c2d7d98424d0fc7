package native

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// peer is a link that does what a test wants when it is attached.
type peer struct {
	name     string
	attached func(fleet.Sink) error
	planned  func()
	sink     fleet.Sink
	detached int
	said     []string
}

func (p *peer) Attach(_ attempt.ID, s fleet.Sink) error {
	p.sink = s
	if p.attached != nil {
		return p.attached(s)
	}
	return nil
}
func (p *peer) Detach(attempt.ID) { p.detached++ }
func (p *peer) SendPlan(admission.Plan, [32]byte) error {
	p.said = append(p.said, "plan")
	if p.planned != nil {
		p.planned()
	}
	return nil
}
func (p *peer) Send(f wire.Frame) { p.said = append(p.said, fmt.Sprint(f.Kind())) }
func (p *peer) Name() string      { return p.name }

func asked(t *testing.T) upstream.Attempt {
	t.Helper()
	ticket, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: 3, MaxTokens: 2}, capacity.Limit{Tokens: 100})
	if !v.IsZero() {
		t.Fatal(v)
	}
	return upstream.Attempt{Ticket: ticket, IDs: []int32{1, 2, 3}, Deadline: time.Now().Add(time.Minute)}
}

// waiting are the events that were not taken yet.
func (r *Run) waiting() []legs.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// TestALinkLostWhileTheOtherIsAttachedEndsTheAttempt: a machine is there before a link can be lost, and both links are attached and decode is
// asked in one critical section. A loss in the middle of it waits for its end: else it is forgotten, or decode is asked after it was told
// to abort, and the attempt waits for its deadline.
func TestALinkLostWhileTheOtherIsAttachedEndsTheAttempt(t *testing.T) {
	for _, first := range []legs.Leg{legs.Prefill, legs.Decode} {
		prefill, decode := &peer{name: "p"}, &peer{name: "d"}
		lost := make(chan struct{})
		inside := func(at string, sink fleet.Sink) {
			r := sink.(leg).run
			if r.mu.TryLock() {
				t.Errorf("%s: outside of the critical section", at)
				r.mu.Unlock()
			}
			if r.machine.Planned != 3 {
				t.Errorf("%s: there is no machine that could hear of a loss", at)
			}
		}
		prefill.attached = func(s fleet.Sink) error { inside("prefill is attached", s); return nil }
		decode.attached = func(s fleet.Sink) error {
			inside("decode is attached", s)
			of := map[legs.Leg]fleet.Sink{legs.Prefill: prefill.sink, legs.Decode: s}[first]
			go func() {
				defer close(lost)
				of.Lost("its process ended")
			}()
			return nil
		}
		decode.planned = func() { inside("decode is asked", decode.sink) }
		r := (&Engine{}).start(asked(t), [2]link{prefill, decode}, func() {})
		<-lost
		if got := r.waiting(); len(got) == 0 || got[0] != legs.Event(legs.LegLost{Leg: first, Reason: "its process ended"}) {
			t.Errorf("%s: %v", first, got)
		}
		if want := map[legs.Leg]string{legs.Prefill: "plan abort", legs.Decode: "plan"}[first]; strings.Join(decode.said, " ") != want || len(prefill.said) != 0 {
			t.Errorf("%s: prefill heard %v, decode %v", first, prefill.said, decode.said)
		}
		r.mu.Lock()
		m := r.machine
		r.mu.Unlock()
		if m.Verdict != verdict.PeerLost || !m.Over() {
			t.Errorf("%s: %+v", first, m)
		}
	}
}

// TestALinkThatIsGoneAsksNobody: an attempt whose second link has ended is over before anything was sent on the first.
func TestALinkThatIsGoneAsksNobody(t *testing.T) {
	prefill, decode := &peer{name: "p"}, &peer{name: "d", attached: func(fleet.Sink) error { return errors.New("ended") }}
	quiet := 0
	r := (&Engine{}).start(asked(t), [2]link{prefill, decode}, func() { quiet++ })
	got := r.waiting()
	if len(got) != 1 || got[0] != legs.Event(legs.LegLost{Leg: legs.Decode, Reason: "the control link to decode d ended"}) || quiet != 1 || !r.Report().Settled {
		t.Errorf("%v, quiet %d times, %+v", got, quiet, r.Report())
	}
	if len(prefill.said)+len(decode.said) != 0 || prefill.detached != 1 {
		t.Errorf("prefill heard %v, decode %v, detached %d", prefill.said, decode.said, prefill.detached)
	}
	prefill.sink.Lost("later") // nobody listens
	if len(r.waiting()) != 1 || quiet != 1 {
		t.Errorf("%v, quiet %d times", r.waiting(), quiet)
	}
}
