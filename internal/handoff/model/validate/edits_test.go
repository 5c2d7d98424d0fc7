package validate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// The recordings of testdata are of real workers on real sockets (SLUICE_TRACES=DIR go test ./internal/worker writes such), and one of a
// whole fleet with its gateway: sluice serve --trace.
func recordings(t testing.TB) map[string][]trace.Event {
	files, err := filepath.Glob("testdata/*.trace")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	all := map[string][]trace.Event{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := trace.Read(bytes.NewReader(b), func(trace.Head) {}, func(_ uint64, e trace.Event) error {
			all[f] = append(all[f], e)
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	return all
}

func TestRecordingsAreValid(t *testing.T) {
	for f, events := range recordings(t) {
		v := New(Options{})
		for _, e := range events {
			if err := v.Step(e); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
		}
		if err := v.End(); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if c := v.Counts(); c.Events != uint64(len(events)) || c.Attempts == 0 || c.Pages == 0 {
			t.Errorf("%s: %+v", f, c)
		}
	}
}

// tally counts edits of one kind.
type tally struct{ made, model, file int }

// TestEditedRecordingsAreRejected edits recordings one line at a time, in every way that a line can go wrong, and asks twice.
//
// As a file, where only the lines are edited: each must be rejected, at a line. As a lie told well, where the lines were numbered and summed
// again: each must be rejected by the model alone, but for swaps of lines that can have happened in either order.
func TestEditedRecordingsAreRejected(t *testing.T) {
	counts := map[string]*tally{}
	for f, events := range recordings(t) {
		if testing.Short() && len(events) > 100 {
			continue
		}
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(raw, []byte("\n"))
		lines = lines[:len(lines)-1] // nothing after the last
		try := func(kind string, at int, edited []trace.Event, file func() [][]byte, independent bool) {
			c := counts[kind]
			if c == nil {
				c = &tally{}
				counts[kind] = c
			}
			c.made++
			if err := All(edited, Options{}); err != nil {
				c.model++
				var w *Wrong
				if !errors.As(err, &w) {
					t.Fatalf("%s: %v", f, err)
				}
				if w.N != 0 && int(w.N) < at {
					t.Errorf("%s: %s of line %d is seen at line %d, before it", f, kind, at, w.N)
				}
			} else if !independent {
				t.Errorf("%s: %s of line %d, told well, is let pass: %s", f, kind, at, lines[at])
			}
			if c.made%8 != 0 && (kind == "change of step" || kind == "change of op") {
				return // many, and all alike to the file's sums
			}
			if err := replay(bytes.Join(file(), nil)); err == nil {
				t.Errorf("%s: %s of line %d is let pass", f, kind, at)
			} else {
				c.file++
			}
		}
		for i, e := range events {
			at := i + 1 // in lines: there is the first line
			try("deletion", at, without(events, i), func() [][]byte { return without(lines, at) }, false)
			try("doubling", at, twice(events, i), func() [][]byte { return twice(lines, at) }, false)
			for name, x := range edits(e, events) {
				kind, _, _ := strings.Cut(name, " to ")
				edited := append([]trace.Event(nil), events...)
				edited[i] = x
				try("change of "+kind, at, edited, func() [][]byte {
					l := append([][]byte(nil), lines...)
					l[at] = line(t, at, x, lines[at])
					return l
				}, false)
			}
			for j := i + 1; j < min(i+12, len(events)); j++ {
				kind, free := "swap of independent lines", true
				if sameThread(e, events[j]) {
					kind, free = "swap of dependent lines", false
				}
				if e == events[j] {
					continue // the same line, to the bit
				}
				try(kind, at, swap(events, i, j), func() [][]byte { return swap(lines, at, j+1) }, free)
			}
		}
	}
	for kind, c := range counts {
		t.Logf("%-28s %6d made, %6d rejected as files, %6d by the model alone", kind, c.made, c.file, c.model)
	}
	for _, kind := range []string{"deletion", "swap of dependent lines", "change of attempt", "change of page", "change of ordinal", "change of generation"} {
		if counts[kind] == nil || counts[kind].made == 0 {
			t.Errorf("no %s was tried", kind)
		}
	}
}

// replay reads a file and walks it.
func replay(b []byte) error {
	v := New(Options{})
	if err := trace.Read(bytes.NewReader(b), func(trace.Head) {}, func(_ uint64, e trace.Event) error { return v.Step(e) }); err != nil {
		return err
	}
	return v.End()
}

// sameThread reports whether two events cannot have happened the other way round: steps of one machine, and transitions of one
// attempt's pages in one pool. (Readings of pages that have nothing to do with one another can; they are not told apart here.)
func sameThread(a, b trace.Event) bool {
	if a.Attempt != b.Attempt || a.Machine != b.Machine || a.Boot != b.Boot {
		return false
	}
	if a.Machine != trace.Pool {
		return true
	}
	reads := func(e trace.Event) bool { return (e.Step == trace.ViewBegin || e.Step == trace.ViewEnd) && e.C == 0 }
	back := func(e trace.Event) bool {
		return e.Step == trace.Scrub || e.Step == trace.Free || e.Step == trace.Reserve
	}
	return !reads(a) && !reads(b) && !(back(a) && back(b) && a.A != b.A)
}

// edits are an event with one thing changed.
func edits(e trace.Event, all []trace.Event) map[string]trace.Event {
	m := map[string]trace.Event{}
	put := func(name string, f func(*trace.Event)) {
		x := e
		f(&x)
		m[name] = x
	}
	put("attempt", func(x *trace.Event) { x.Attempt[3] ^= 0x40 })
	for _, o := range all {
		if o.Attempt != e.Attempt {
			put("attempt to another's", func(x *trace.Event) { x.Attempt = o.Attempt })
		}
		if o.Boot != e.Boot && o.Boot != 0 {
			put("boot to another's", func(x *trace.Event) { x.Boot = o.Boot })
		}
	}
	put("boot", func(x *trace.Event) { x.Boot ^= 1 << 20 })
	if e.Machine == trace.Pool {
		put("page", func(x *trace.Event) { x.A++ })
		if e.A > 0 {
			put("page down", func(x *trace.Event) { x.A-- })
		}
		put("generation", func(x *trace.Event) { x.Digest++ })
		put("generation down", func(x *trace.Event) { x.Digest-- })
		put("count", func(x *trace.Event) { x.B++ })
		put("count down", func(x *trace.Event) { x.B-- })
		put("ok", func(x *trace.Event) { x.State ^= 1 })
		for s := trace.Reserve; s <= trace.Free; s++ {
			if s != e.Step {
				put("op to "+s.String(), func(x *trace.Event) { x.Step = s })
			}
		}
		if e.C > 0 {
			put("writes", func(x *trace.Event) { x.C-- })
		}
		return m
	}
	put("ordinal", func(x *trace.Event) { x.A++ })
	put("ordinal down", func(x *trace.Event) { x.A-- })
	put("b", func(x *trace.Event) { x.B++ })
	put("c", func(x *trace.Event) { x.C ^= 1 })
	put("code", func(x *trace.Event) { x.Code = (x.Code + 1) % 20 })
	put("code to ok", func(x *trace.Event) { x.Code = verdict.OK })
	if e.Code == verdict.OK {
		delete(m, "code to ok")
	}
	put("state", func(x *trace.Event) { x.State ^= 1 })
	put("digest", func(x *trace.Event) { x.Digest ^= 1 })
	put("machine", func(x *trace.Event) { x.Machine = x.Machine%3 + 1 })
	for s := trace.PagesReserved; s <= trace.GivenUp; s++ {
		if s != e.Step {
			put("step to "+s.String(), func(x *trace.Event) { x.Step = s })
		}
	}
	return m
}

// line is the event's line as number n of a file, with the sum of the line that it stands for.
func line(t *testing.T, n int, e trace.Event, old []byte) []byte {
	var one bytes.Buffer
	if err := trace.Write(&one, []trace.Event{e}); err != nil {
		t.Fatal(err)
	}
	l := bytes.SplitAfter(one.Bytes(), []byte("\n"))[1]
	l = append(fmt.Appendf(nil, `{"n":%d`, n), bytes.TrimPrefix(l, []byte(`{"n":1`))...)
	cut := func(b []byte) int { return bytes.LastIndex(b, []byte(`,"sum":`)) }
	return append(l[:cut(l)], old[cut(old):]...)
}

func without[T any](s []T, i int) []T { return append(append([]T(nil), s[:i]...), s[i+1:]...) }
func twice[T any](s []T, i int) []T {
	return append(append(append([]T(nil), s[:i+1]...), s[i]), s[i+1:]...)
}
func swap[T any](s []T, i, j int) []T {
	s = append([]T(nil), s...)
	s[i], s[j] = s[j], s[i]
	return s
}

// TestATailCutOffShows: a recording that ends early is not whole, whether its last line was kept or not.
func TestATailCutOffShows(t *testing.T) {
	for f, events := range recordings(t) {
		for n := 1; n < len(events); n++ {
			if testing.Short() && n%9 != 0 {
				continue
			}
			v := New(Options{})
			for _, e := range events[:n] {
				if err := v.Step(e); err != nil {
					t.Fatalf("%s: %d of %d: %v", f, n, len(events), err)
				}
			}
			// Where every attempt begun so far is over, the shorter trace is a trace.
			if err := v.End(); err == nil && !wholeAt(events[:n]) {
				t.Errorf("%s: the first %d of %d events pass for a whole trace", f, n, len(events))
			}
		}
	}
}

// wholeAt reports whether every machine that was opened has made its last step, and every page is back.
func wholeAt(events []trace.Event) bool {
	type who struct {
		id attempt.ID
		m  trace.Machine
	}
	open, pages := map[who]bool{}, 0
	for _, e := range events {
		switch {
		case e.Step == trace.Reserve:
			pages += int(e.B)
		case e.Step == trace.Free:
			pages -= int(e.B)
		case e.Machine != trace.Pool:
			open[who{e.Attempt, e.Machine}] = !e.Last()
		}
	}
	for _, is := range open {
		if is {
			return false
		}
	}
	return pages == 0
}

// TestNumbersAndNamesAreTheTraces holds the model's own numbers to the recorded format's.
func TestNumbersAndNamesAreTheTraces(t *testing.T) {
	for step, want := range map[model.Step]trace.Step{
		model.PagesReserved: trace.PagesReserved, model.ReserveEnded: trace.ReserveEnded, model.Attached: trace.Attached,
		model.PageArrived: trace.PageArrived, model.PageLanded: trace.PageLanded, model.ManifestSeen: trace.ManifestSeen,
		model.EndSeen: trace.EndSeen, model.SealDone: trace.SealDone, model.EchoCompared: trace.EchoCompared,
		model.TokenReady: trace.TokenReady, model.StopAsked: trace.StopAsked, model.EngineDone: trace.EngineDone,
		model.PromptSeen: trace.PromptSeen, model.GrantSeen: trace.GrantSeen, model.PagesSealed: trace.PagesSealed,
		model.PageTaken: trace.PageTaken, model.PageSent: trace.PageSent, model.ClosingSent: trace.ClosingSent,
		model.AbortAsked: trace.AbortAsked, model.PeerLostStep: trace.PeerLost, model.DeadlineOver: trace.DeadlineOver,
		model.LeaseDrained: trace.LeaseDrained, model.ReservedSeen: trace.ReservedSeen, model.SealedSeen: trace.SealedSeen,
		model.PrefillEnded: trace.PrefillEnded, model.OutputSeen: trace.OutputSeen, model.DecodeEnded: trace.DecodeEnded,
		model.StopFound: trace.StopFound, model.LegSettled: trace.LegSettled, model.Violation: trace.Violation,
		model.PageDropped: trace.PageDropped, model.Opened: trace.Opened, model.GivenUp: trace.GivenUp,
	} {
		if uint8(step) != uint8(want) {
			t.Errorf("%s is %d, the model's %d", want, want, step)
		}
	}
	for op, want := range map[model.Op]trace.Step{
		model.OpReserve: trace.Reserve, model.OpLandBegin: trace.LandBegin, model.OpLandEnd: trace.LandEnd, model.OpSeal: trace.Seal,
		model.OpSealOwn: trace.SealOwn, model.OpViewBegin: trace.ViewBegin, model.OpViewEnd: trace.ViewEnd, model.OpFence: trace.Fence,
		model.OpScrub: trace.Scrub, model.OpFree: trace.Free,
	} {
		if uint8(op) != uint8(want) || op.String() != want.String() {
			t.Errorf("%s is %d, the model's %s %d", want, want, op, op)
		}
	}
	for code, want := range map[model.Code]verdict.Code{
		model.None: verdict.None, model.OK: verdict.OK, model.ContextLength: verdict.ContextLength, model.ClientGone: verdict.ClientGone,
		model.Deadline: verdict.Deadline, model.PeerLost: verdict.PeerLost, model.ProtocolViolation: verdict.ProtocolViolation,
		model.GateRefused: verdict.GateRefused, model.MACMismatch: verdict.MACMismatch, model.CountMismatch: verdict.CountMismatch,
		model.DigestMismatch: verdict.DigestMismatch, model.RootMismatch: verdict.RootMismatch, model.EchoMismatch: verdict.EchoMismatch,
		model.LegsDisagree: verdict.LegsDisagree, model.EngineFailed: verdict.EngineFailed, model.Internal: verdict.Internal,
	} {
		if uint8(code) != uint8(want) {
			t.Errorf("%s is %d, the model's %d", want, want, code)
		}
	}
	if fmt.Sprint(verdict.KeyOff+1) != "code(32)" || verdict.Code(32).Known() {
		t.Error("there is a code that the model does not know")
	}
}
