package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Row is one lie told to one request.
type Row struct {
	Lie          string   `json:"lie"`
	Reply        Reply    `json:"reply"` // that B asked for
	GuardsOn     []string `json:"guards_on"`
	Status       int      `json:"status"`        // that B's client got
	Guard        string   `json:"guard"`         // that stopped the lie; "" if none did
	ForeignBytes int      `json:"foreign_bytes"` // of A's text in B's reply
	PoolFree     int      `json:"pool_free"`
	PoolTotal    int      `json:"pool_total"`
	Nonzero      uint64   `json:"pool_nonzero_bytes"` // in free pages, afterwards
	Verdict      string   `json:"verdict"`            // as the reply's header had it
	Exact        bool     `json:"exact"`              // B's reply was what its own prompt says
	Said         string   `json:"said"`               // the beginning of what B got; drill texts only
}

// Report of an incident drill.
type Report struct {
	Unsafe bool  `json:"unsafe"`
	Rows   []Row `json:"rows"`
}

// Options of a drill.
type Options struct {
	Seed uint64
	Lies []liar.Lie // nil: those of the incident
	// Replies that B asks for, a row for each; nil: a whole completion.
	Replies []Reply
	// Guards that are left on, a row for each set; nil: all of them in the release build; all, each alone, and none in the unsafe one.
	Sets     []guard.Guard
	Progress func(done, total int, now string)
}

// Incident replays the incident on content: A's long prompt with a planted code is served; then B's goes through a prefill that lies.
func Incident(ctx context.Context, opt Options) (Report, error) {
	if opt.Lies == nil {
		opt.Lies = liar.Lies()
	}
	if opt.Sets == nil {
		opt.Sets = sets()
	}
	if opt.Replies == nil {
		opt.Replies = []Reply{{}}
	}
	r := Report{Unsafe: guard.Unsafe}
	total := len(opt.Lies) * len(opt.Sets) * len(opt.Replies)
	for _, lie := range opt.Lies {
		for _, on := range opt.Sets {
			for _, k := range opt.Replies {
				if opt.Progress != nil {
					opt.Progress(len(r.Rows), total, string(lie))
				}
				row, err := tell(ctx, lie, on, k, opt.Seed)
				if err != nil {
					return r, fmt.Errorf("drill: %s with guards %q on, %s: %w", lie, on, k, err)
				}
				r.Rows = append(r.Rows, row)
				if ctx.Err() != nil {
					return r, ctx.Err()
				}
			}
		}
	}
	if opt.Progress != nil {
		opt.Progress(total, total, "done")
	}
	return r, nil
}

// sets are the sets of guards that a build can leave on.
func sets() []guard.Guard {
	if !guard.Unsafe {
		return []guard.Guard{guard.All}
	}
	out := []guard.Guard{guard.All}
	for g := guard.Guard(1); g&guard.All != 0; g <<= 1 {
		out = append(out, g)
	}
	return append(out, 0)
}

// tell runs one row on a fleet of its own: has A served, and then tells the lie to B.
func tell(ctx context.Context, lie liar.Lie, on guard.Guard, k Reply, seed uint64) (Row, error) {
	restore := leave(on)
	defer restore()
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	f, err := newFleet(ctx, lie)
	if err != nil {
		return Row{}, err
	}
	defer f.close()
	rng := rand.New(rand.NewPCG(seed, 1))
	code, own := secret(rng), secret(rng)
	const aTokens = 3000
	bTokens := 2000
	if lie.Long() {
		bTokens = 4500 // over prefill's pool, under decode's
	}
	a, b := planted(code, aTokens), plain(rng, own, bTokens)

	// Another attempt's pages are A's: it is served by the same prefill, which is honest for once.
	through := "honest"
	if lie.Reuses() {
		f.liar.Tell("")
		through = "liar"
	}
	first, err := f.front().ask(ctx, through, a, 40)
	if err != nil {
		return Row{}, err
	}
	if first.status != 200 || !strings.Contains(first.text, code) {
		return Row{}, fmt.Errorf("positive control: A's own prompt was answered %d %q", first.status, first.text)
	}
	if _, _, n := f.settled(ctx); on&guard.Zero != 0 && n != 0 {
		return Row{}, fmt.Errorf("%d bytes are left after A", n)
	}
	f.liar.Tell(lie)

	row := Row{Lie: string(lie), Reply: k, GuardsOn: []string{}}
	if on != 0 {
		row.GuardsOn = strings.Split(on.String(), ",")
	}
	before := f.decode.Snapshot()
	var got reply
	if lie == liar.Late {
		got, err = f.late(ctx, k, a, b)
	} else {
		got, err = f.front().say(ctx, k, "liar", b, 60, nil)
	}
	if err != nil {
		return Row{}, err
	}
	row.Status, row.Verdict, row.ForeignBytes = got.status, got.verdict, foreign(got.text, b, a)
	row.Exact = got.status == 200 && strings.HasPrefix(got.text, " "+own)
	row.Said = got.text
	if row.Said == "" {
		row.Said = got.message
	}
	if len(row.Said) > 160 {
		row.Said = row.Said[:160]
	}
	row.PoolFree, row.PoolTotal, row.Nonzero = f.settled(ctx)
	row.Guard = named(got)
	after := f.decode.Snapshot()
	turned := after.PagesRefused + after.LateFrames + after.StrayFrames - before.PagesRefused - before.LateFrames - before.StrayFrames
	switch {
	case lie.Harmless() && row.Guard == "" && turned > 0 && on&guard.Gate != 0:
		row.Guard = guard.Gate.String() // B never noticed: the writes met no grant
	case lie.Stranger() && row.Guard == verdict.PeerLost.String() && after.PagesLanded == before.PagesLanded:
		row.Guard = "hello" // the pair never met
	}
	return row, nil
}

// late aborts A in mid-handoff, lets B have its pages, and then lets A's writes go.
func (f *fleet) late(ctx context.Context, k Reply, a, b string) (reply, error) {
	aborted, abort := context.WithCancel(ctx)
	go func() { _, _ = f.front().ask(aborted, "liar", a, 40) }() // its client hangs up: there is no answer
	select {
	case <-f.liar.Holding():
	case <-ctx.Done():
		abort()
		return reply{}, ctx.Err()
	}
	abort()
	f.settled(ctx) // A's pages are back
	f.liar.Tell("")
	// B's honest reply is long, and the late writes fall into it.
	if k.Stream {
		return f.front().say(ctx, k, "honest", b, 3000, func() { f.liar.Loose() })
	}
	landed := f.decode.Snapshot().PagesLanded + uint64(len(b)/pageTokens)
	over, done := context.WithCancel(ctx)
	defer done()
	go func() {
		for f.decode.Snapshot().PagesLanded < landed && over.Err() == nil {
			time.Sleep(time.Millisecond) // nothing tells of a landing but its count
		}
		f.liar.Loose()
	}()
	return f.front().say(ctx, k, "honest", b, 3000, nil)
}

// named is the guard that a refusal speaks for.
func named(r reply) string {
	name, _, _ := strings.Cut(r.verdict, ";")
	var c verdict.Code
	if r.status == 200 || c.UnmarshalText([]byte(strings.TrimSpace(name))) != nil {
		return ""
	}
	layer := ""
	if _, l, ok := strings.Cut(r.verdict, "layer="); ok {
		layer = strings.TrimSpace(l)
	}
	switch c {
	case verdict.ContextLength:
		if layer == verdict.Prefill.String() {
			return guard.Verdict.String() // prefill's own refusal was heard
		}
		return guard.Admission.String()
	case verdict.GateRefused:
		return guard.Gate.String()
	case verdict.MACMismatch, verdict.RootMismatch:
		return guard.MAC.String()
	case verdict.CountMismatch, verdict.DigestMismatch:
		return guard.Count.String()
	case verdict.TagMismatch:
		return guard.Tag.String()
	case verdict.ZeroViolation:
		return guard.Zero.String()
	case verdict.EchoMismatch:
		return guard.Echo.String()
	case verdict.LegsDisagree:
		return guard.Hold.String()
	case verdict.ProtocolViolation:
		return "protocol" // the machines themselves: no guard takes their order away
	}
	return c.String()
}
