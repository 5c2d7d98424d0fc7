package drill

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
)

// frames are the faults that a network, or a careless peer, makes of single frames: lost, doubled, late.
func frames() []fault {
	const (
		lost    = "acknowledgement lost"
		doubled = "acknowledgement doubled"
		early   = "acknowledgement early"
		status  = "status lost on the way"
		handle  = "retry reusing a handle"
		abort   = "abort lost"
		partial = "partial transfer taken as complete"
	)
	one := func(class, phase, what, who string, r node.Rule, want wants, quick bool, out guard.Guard, guards ...string) fault {
		return fault{class: class, phase: phase, what: what, want: want, quick: quick, out: out, guards: guards,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.framed(ctx, who, r) }}
	}
	gone := func(class, phase, what, who string, quick bool, r ...node.Rule) fault {
		return fault{class: class, phase: phase, what: what, quick: quick,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.abandoned(ctx, phase, who, r...) }}
	}
	lose := func(kind string, data, out bool) node.Rule { return node.Rule{Kind: kind, Data: data, Out: out} }
	twice := func(kind string, data, out bool) node.Rule {
		return node.Rule{Kind: kind, Data: data, Out: out, Times: 2}
	}
	before := func(kind, of string, data bool) node.Rule {
		return node.Rule{Kind: of, Data: data, Out: true, Most: 1, Ahead: kind}
	}
	const data, control, out, in = true, false, true, false
	all := []fault{
		one(lost, "reserve", "decode's word that pages are reserved is lost", node.Decode, lose("reserved", control, out), refused, false, 0),
		one(lost, "attach", "prefill's attach is lost", node.Prefill, lose("attach", data, out), refused, false, 0),
		one(lost, "grant", "the grant is lost", node.Prefill, lose("grant", data, in), refused, true, 0),
		one(lost, "seal", "decode's word that it sealed is lost", node.Decode, lose("sealed", control, out), refused, true, guard.Hold),
		one(lost, "settle", "prefill's word that its pages are back is lost", node.Prefill, lose("settled", control, out), served, true, 0),
		one(lost, "stream", "decode's word that its pages are back is lost", node.Decode, lose("settled", control, out), served, false, 0),
		one(lost, "manifest", "the marked end is lost", node.Decode, lose("end", data, in), refused, false, 0),
		one(early, "reserve", "decode says that its pages are back as it gets them", node.Decode, before("settled", "reserved", control), refused, true, 0, "protocol"),
		one(early, "seal", "decode says that it sealed before it has a page", node.Decode, before("sealed", "reserved", control), refused, true, 0, "protocol", "hold"),
		one(early, "settle", "prefill says that its pages are back before it has said how it ended", node.Prefill, before("settled", "outcome", control), refused, true, 0, "protocol"),
		one(early, "attach", "the marked end comes before prefill has attached", node.Prefill, before("end", "attach", data), refused, false, 0, "protocol"),
		one(doubled, "reserve", "decode says twice that pages are reserved", node.Decode, twice("reserved", control, out), either, false, 0),
		one(doubled, "attach", "prefill attaches twice", node.Prefill, twice("attach", data, out), either, true, 0),
		one(doubled, "grant", "the grant comes twice", node.Prefill, twice("grant", data, in), either, false, 0),
		one(doubled, "seal", "decode says twice that it sealed", node.Decode, twice("sealed", control, out), either, true, 0),
		one(doubled, "manifest", "the marked end comes twice", node.Decode, twice("end", data, in), either, false, 0),
		one(doubled, "settle", "decode says twice that its pages are back", node.Decode, twice("settled", control, out), either, true, 0),
		one(status, "manifest", "prefill's outcome is lost", node.Prefill, lose("outcome", control, out), refused, true, guard.Hold),
		one(status, "settle", "decode's outcome is lost", node.Decode, lose("outcome", control, out), refused, false, 0),
		one(status, "stream", "one frame of output is lost", node.Decode, node.Rule{Kind: "output", Out: out, Most: 1}, refused, true, 0),
		one(status, "seal", "the manifest is lost", node.Decode, lose("manifest", data, in), refused, false, 0, "protocol"),
		one(handle, "plan", "a plan comes twice to decode", node.Decode, twice("plan", control, in), either, true, 0),
		one(handle, "reserve", "a plan comes twice to prefill", node.Prefill, twice("plan", control, in), either, false, 0),
		one(handle, "stream", "one frame of output comes twice", node.Decode, node.Rule{Kind: "output", Out: out, Times: 2, Most: 1}, either, true, 0),
		one(partial, "attach", "one page of many is lost", node.Decode, node.Rule{Kind: "page", Data: data, Skip: 5, Most: 1}, refused, true, guard.Count, "count"),
		one("duplicate, replayed or guessed attempt", "stream", "one page of many comes twice", node.Decode, node.Rule{Kind: "page", Data: data, Skip: 5, Most: 1, Times: 2},
			either, true, guard.Gate, "gate"),
		gone(abort, "attach", "the client hangs up; decode's abort to prefill is lost", node.Prefill, false, lose("abort", data, in)),
		gone(abort, "attach", "the client hangs up before prefill has its grant; prefill's abort to decode is lost", node.Prefill, true, lose("abort", data, out),
			lose("grant", data, in)),
		gone(abort, "landing", "the client hangs up; prefill's closing statement, which says no, is lost", node.Prefill, true, lose("manifest", data, out)),
	}
	for _, phase := range []string{"reserve", "attach", "grant", "landing", "stream"} {
		all = append(all,
			gone(abort, phase, "the client hangs up; the gateway's abort to decode is lost", node.Decode, phase == "landing" || phase == "stream", lose("abort", control, in)))
		if phase != "stream" && phase != "reserve" { // prefill has shipped all, or was not asked yet
			all = append(all, gone(abort, phase, "the client hangs up; the gateway's abort to prefill is lost", node.Prefill, phase == "grant", lose("abort", control, in)))
		}
	}
	return all
}

// framed asks for B while a rule acts on who's frames.
func (s *scene) framed(ctx context.Context, who string, r node.Rule) (seen, error) {
	p := s.process(who)
	if _, err := p.do(ctx, node.Command{Do: node.DoRules, Rules: []node.Rule{r}}); err != nil {
		return seen{}, err
	}
	got := seen{reply: s.stream(ctx)}
	s.drained(ctx)
	f, err := p.do(ctx, node.Command{Do: node.DoFired})
	got.fired = f.Fired
	if got.reply.status == 200 {
		got.guard = unheard[r.Kind]
	}
	return got, err
}

// unheard is what meets a frame that was doubled or lost without the client noticing.
var unheard = map[string]string{
	"plan":    "sequence",     // a plan's number is used once
	"settled": "settle bound", // the pair's slot rests until the leg is quiet, or the bound is over; once is enough
}

// drained waits a moment for what comes after a reply.
func (s *scene) drained(ctx context.Context) {
	_, _, _, _ = s.x.settled(ctx, 4*time.Second)
}

// abandoned asks for B, hangs up in a phase, and loses what the first rule says; later rules set the scene. Prefill's pages go slowly, so
// that there is something to abort.
func (s *scene) abandoned(ctx context.Context, phase, who string, r ...node.Rule) (seen, error) {
	p := s.process(who)
	slow := node.Rule{Kind: "page", Data: true, Out: true, Times: 1, Delay: 20}
	if who == node.Prefill {
		r = append(r, slow)
	}
	if _, err := p.do(ctx, node.Command{Do: node.DoRules, Rules: r}); err != nil {
		return seen{}, err
	}
	if who == node.Prefill && r[0].Data && r[0].Out { // prefill says no to decode unless it heard it from there
		mute := []node.Rule{{Kind: "abort", Data: true, Out: true}}
		if _, err := s.x.decode.do(ctx, node.Command{Do: node.DoRules, Rules: mute}); err != nil {
			return seen{}, err
		}
	}
	asking, hangUp := context.WithCancel(ctx)
	defer hangUp()
	done := make(chan reply, 1)
	go func() { done <- s.stream(asking) }()
	if !s.when(ctx, phase) {
		return seen{}, fmt.Errorf("drill: the phase %s was not reached", phase)
	}
	hangUp()
	got := seen{reply: <-done}
	s.drained(ctx)
	var f node.Reply
	var err error
	for range 100 {
		if f, err = p.do(ctx, node.Command{Do: node.DoFired}); err != nil || f.Fired > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // polling another process, whose frame may be behind a slow page
	}
	got.fired = f.Fired
	got.guard = "deadline" // the plan's own: the pages come back although nobody said so
	return got, err
}
