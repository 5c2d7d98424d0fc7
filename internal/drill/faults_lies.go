package drill

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// lies are the faults that a lying prefill worker makes.
func lies() []fault {
	const (
		admitted  = "rejected request admitted"
		partial   = "partial transfer taken as complete"
		metadata  = "metadata of another request"
		duplicate = "duplicate, replayed or guessed attempt"
		wrong     = "wrong page index, shape, dtype, rank mapping"
		early     = "acknowledgement early"
		spoilt    = "bytes changed on the way"
	)
	lie := func(class, phase, what string, l liar.Lie, out guard.Guard, guards ...string) fault {
		return fault{class: class, phase: phase, what: what, want: refused, guards: guards, out: out, quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.lied(ctx, l) }}
	}
	harmless := func(f fault) fault {
		f.want, f.next = served, "every page is written again by its own request"
		return f
	}
	protocol := "protocol"
	all := []fault{
		lie(admitted, "plan", "the incident: the pool is smaller than the prompt, prefill runs a placeholder and reports success", liar.Placeholder, guard.Admission, "admission"),
		lie(admitted, "manifest", "the same from a worker that overstates its pool: the refusal is in the manifest alone", liar.Overstated, guard.Verdict, "verdict", "hold", "count"),
		lie(admitted, "seal", "the same, with every message saying success", liar.Silent, guard.Count, "count"),
		lie(partial, "landing", "half of the pages, and a manifest that says so", liar.Short, guard.Count, "count"),
		lie(partial, "manifest", "all pages and no manifest", liar.NoManifest, 0, protocol),
		lie(metadata, "manifest", "counts, digest, root and echo of an attempt served before", liar.OtherManifest, guard.Count, "count"),
		lie(metadata, "landing", "pages of an attempt served before, with the MACs that they had there", liar.OtherAttempt, guard.MAC, "mac"),
		lie(duplicate, "manifest", "the closing statement twice", liar.TwoManifests, 0, protocol),
		lie(duplicate, "landing", "every page twice", liar.Doubled, guard.Gate, "gate"),
		harmless(lie(duplicate, "attach", "attaches and pages under made-up ids", liar.Guessed, 0, "gate")),
		harmless(lie(duplicate, "grant", "frames of an attempt served before, once more", liar.Replayed, guard.Gate, "gate")),
		lie(wrong, "landing", "a page under the tag of another request's page", liar.WrongTag, guard.Gate, "gate"),
		lie(wrong, "grant", "two pages under each other's index", liar.WrongOrdinal, guard.Gate, "gate"),
		lie(wrong, "echo", "layers in each other's place, with right MACs (rank mapping)", liar.Permuted, guard.Echo, "echo"),
		lie(wrong, "seal", "K and V in each other's place, with right MACs (rank mapping)", liar.SwappedKV, guard.Echo, "echo"),
		lie(wrong, "manifest", "pages of half the size, with right MACs (shape)", liar.HalfPages, 0, protocol),
		lie(wrong, "attach", "a hello that names another page shape", liar.OtherShape, 0, "hello"),
		lie(wrong, "reserve", "a hello that names another model fingerprint (dtype)", liar.OtherDType, 0, "hello"),
		lie(early, "manifest", "the closing statement before the pages", liar.ManifestFirst, guard.Count, "count", protocol),
		lie(spoilt, "landing", "bytes of pages flipped after their MACs were made", liar.Flipped, guard.MAC, "mac"),
	}
	for _, phase := range []string{"reserve", "attach", "grant", "landing", "manifest", "seal", "echo", "stream"} {
		all = append(all, fault{class: "late write after reuse", phase: phase, what: "writes of an aborted attempt, let go while another has its pages (its abort was acknowledged early)",
			want: served, guards: []string{"gate"}, out: guard.Gate, next: "every page is written again by its own request", quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.late(ctx, phase) }})
	}
	return all
}

// lied lets B's request go through a prefill that lies.
func (s *scene) lied(ctx context.Context, l liar.Lie) (seen, error) {
	if l.Reuses() { // of A, whom the liar serves honestly for once
		r, err := s.x.door().ask(ctx, "liar", s.a, 40)
		if err != nil || !strings.Contains(r.text, s.code) {
			return seen{}, fmt.Errorf("drill: the liar does not serve honestly: %d %s (%w)", r.status, r.message, err)
		}
		if _, _, _, err := s.x.settled(ctx, settleLimit); err != nil {
			return seen{}, err
		}
	}
	if l.Long() {
		s.b = plain(s.rng, s.own, longTokens)
	}
	if err := s.freshLiar(ctx, l); err != nil {
		return seen{}, err
	}
	before := s.x.stats(ctx, s.x.decode)
	from := s.x.events.now()
	got := seen{reply: s.ask(ctx, "liar")}
	after := s.x.stats(ctx, s.x.decode)
	switch l {
	case liar.Placeholder: // refused before prefill saw it; without the guard it is what prefill does
		got.fired = 1
	case liar.Guessed, liar.Replayed:
		got.fired = int(after.StrayFrames + after.LateFrames - before.StrayFrames - before.LateFrames)
		if got.fired > 0 {
			got.guard = guard.Gate.String()
		}
	case liar.OtherShape, liar.OtherDType:
		got.fired = 1
		got.guard = "hello" // the pair never met
		if s.x.events.count(from, trace.Decode, trace.Attached) > 0 {
			got.guard = ""
		}
	default:
		got.fired = s.x.events.count(from, trace.Decode, trace.Attached)
	}
	return got, nil
}

// freshLiar tells the lie. Placeholder is one that is honest about its pool, which the gateway hears when it connects: it starts anew.
func (s *scene) freshLiar(ctx context.Context, l liar.Lie) error {
	if l != liar.Placeholder {
		return s.tell(ctx, l)
	}
	again := func(lie string) error {
		c := s.x.liar.cfg
		s.x.liar.close(ctx)
		c.Lie = lie
		var err error
		if s.x.liar, err = s.x.spawn(ctx, c); err != nil {
			return err
		}
		s.x.toLiar.point(s.x.liar.up.Addr)
		s.x.toLiar.reset()
		return s.x.ready(ctx)
	}
	s.undo = append(s.undo, func(context.Context) error { return again("") })
	return again(string(l))
}

// late aborts A in mid-handoff, lets B have its pages, and then lets A's writes go.
func (s *scene) late(ctx context.Context, phase string) (seen, error) {
	if err := s.tell(ctx, liar.Late); err != nil {
		return seen{}, err
	}
	aborted, abort := context.WithCancel(ctx)
	defer abort()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = s.x.door().ask(aborted, "liar", s.a, 40)
	}()
	if _, err := s.x.liar.do(ctx, node.Command{Do: node.DoHolding}); err != nil {
		return seen{}, err
	}
	abort()
	<-gone
	if free, total, _, err := s.x.settled(ctx, settleLimit); err != nil || free != total {
		return seen{}, fmt.Errorf("drill: A's pages did not come back: %d of %d (%w)", free, total, err)
	}
	if err := s.tell(ctx, ""); err != nil {
		return seen{}, err
	}
	before := s.x.stats(ctx, s.x.decode)
	from := s.x.events.now()
	done := make(chan reply, 1)
	go func() {
		r, err := s.x.door().stream(ctx, "honest", s.b, 1000, func() {})
		if err != nil {
			r.status = 0
		}
		done <- r
	}()
	p := reached[phase]
	s.x.events.wait(ctx.Done(), from, p.machine, p.step, p.nth)
	loose, err := s.x.liar.do(ctx, node.Command{Do: node.DoLoose})
	if err != nil {
		return seen{}, err
	}
	got := seen{reply: <-done, fired: loose.Fired}
	after := s.x.stats(ctx, s.x.decode)
	if after.PagesRefused+after.LateFrames > before.PagesRefused+before.LateFrames && s.x.without&guard.Gate == 0 {
		got.guard = guard.Gate.String()
	}
	return got, nil
}
