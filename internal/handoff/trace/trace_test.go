package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/verdict"
)

func id(n byte) attempt.ID { return attempt.ID{n, 15: 1} }

// some are events of every kind, with the extremes of every field.
func some() []Event {
	return []Event{
		{Attempt: id(1), Boot: 7, Machine: Decode, Args: Args{Step: Opened, A: 40, B: 3}, Digest: 1},
		{Attempt: id(1), Boot: 7, Machine: Pool, Args: Args{Step: Reserve, A: 1<<32 - 1, B: 4}, State: 1, Digest: 1<<64 - 1},
		{Attempt: id(1), Boot: 7, Machine: Pool, Args: Args{Step: LandEnd, A: 3, B: 1}, Digest: 9},
		{Attempt: id(1), Boot: 7, Machine: Pool, Args: Args{Step: ViewBegin, A: 3, B: 4, C: 2}, State: 1, Digest: 9},
		{Attempt: id(2), Boot: 8, Machine: Prefill, Args: Args{Step: ManifestSeen, A: 1<<32 - 1, B: 3, C: 7, Code: verdict.EchoMismatch}, State: 255, Digest: 1<<64 - 1},
		{Attempt: id(2), Machine: Gateway, Args: Args{Step: PrefillEnded, Code: 250}, State: 4, Digest: 0xabc},
	}
}

func read(b []byte) (events []Event, h Head, err error) {
	err = Read(bytes.NewReader(b), func(x Head) { h = x }, func(n uint64, e Event) error {
		if n != uint64(len(events))+1 {
			return fmt.Errorf("event %d is numbered %d", len(events)+1, n)
		}
		events = append(events, e)
		return nil
	})
	return events, h, err
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, some()); err != nil {
		t.Fatal(err)
	}
	got, h, err := read(b.Bytes())
	if err != nil || !slices.Equal(got, some()) || h.Sample != 1 {
		t.Fatalf("%v\n%+v\n%+v", err, got, h)
	}
}

func TestFilesThatAreNoTracesAreRefused(t *testing.T) {
	var b bytes.Buffer
	Write(&b, some())
	whole := b.String()
	lines := strings.SplitAfter(whole, "\n")
	for name, c := range map[string]struct {
		file string
		want error
	}{
		"nothing":                {"", ErrSyntax},
		"another first line":     {strings.Replace(whole, `"version":2`, `"version":3`, 1), ErrSyntax},
		"a rate with a zero":     {strings.Replace(whole, `"sample":1`, `"sample":01`, 1), ErrSyntax},
		"another rate":           {strings.Replace(whole, `"sample":1`, `"sample":8`, 1), ErrOrder},
		"a rate of nothing":      {strings.Replace(whole, `"sample":1`, `"sample":0`, 1), ErrSyntax},
		"no last line":           {strings.Join(lines[:len(lines)-2], ""), ErrCut},
		"cut in a line":          {whole[:len(whole)/2], ErrSyntax},
		"something at the end":   {whole + lines[1], ErrSyntax},
		"a line less":            {strings.Join(slices.Delete(slices.Clone(lines), 2, 3), ""), ErrOrder},
		"the first event gone":   {strings.Join(slices.Delete(slices.Clone(lines), 1, 2), ""), ErrOrder},
		"the last event gone":    {strings.Join(slices.Delete(slices.Clone(lines), 6, 7), ""), ErrOrder},
		"a number with a zero":   {strings.Replace(whole, `"count":4`, `"count":04`, 1), ErrOrder},
		"a number that wraps":    {strings.Replace(whole, `"gen":9`, `"gen":18446744073709551625`, 1), ErrOrder},
		"a number too large":     {strings.Replace(whole, `"count":4`, `"count":4294967300`, 1), ErrSyntax},
		"another spelling":       {strings.Replace(whole, `{"n":2,`, `{ "n":2,`, 1), ErrSyntax},
		"a space in a line":      {strings.Replace(whole, `"ok":true,`, `"ok":true, `, 1), ErrOrder},
		"an unknown step":        {strings.Replace(whole, `"opened"`, `"closed"`, 1), ErrSyntax},
		"an unknown code":        {strings.Replace(whole, `"echo_mismatch"`, `"echo"`, 1), ErrSyntax},
		"an unknown machine":     {strings.Replace(whole, `"machine":"decode"`, `"machine":"pool"`, 1), ErrSyntax},
		"a pool's step, machine": {strings.Replace(whole, `"step":"opened"`, `"step":"free"`, 1), ErrSyntax},
		"a machine's step, pool": {strings.Replace(whole, `"pool":"reserve"`, `"pool":"opened"`, 1), ErrSyntax},
		"a changed word":         {strings.Replace(whole, `"a":40`, `"a":41`, 1), ErrOrder},
		"a changed sum":          {strings.Replace(whole, `"sum":"`, `"sum":"0`, 1), ErrOrder},
		"an endless line":        {lines[0] + strings.Repeat("x", 1<<20), ErrSyntax},
	} {
		if _, _, err := read([]byte(c.file)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestEveryLineIsTied: no two lines can change places, whatever they are.
func TestEveryLineIsTied(t *testing.T) {
	var b bytes.Buffer
	Write(&b, some())
	lines := strings.SplitAfter(b.String(), "\n")
	for i := 1; i < 7; i++ {
		for j := i + 1; j < 7; j++ {
			l := slices.Clone(lines)
			l[i], l[j] = l[j], l[i]
			if _, _, err := read([]byte(strings.Join(l, ""))); !errors.Is(err, ErrOrder) {
				t.Errorf("lines %d and %d changed places: %v", i, j, err)
			}
		}
	}
}

func TestAThreadChainsItsEvents(t *testing.T) {
	chain := func(steps ...Step) uint64 {
		ring := NewRing(16)
		th := Begin(ring, 7, Decode, id(1), 40, 3, 0, 99)
		for _, s := range steps {
			th.Record(Args{Step: s}, 1, 100)
		}
		events, _ := ring.Events()
		if len(events) != len(steps)+1 || events[0].Step != Opened || events[0].A != 40 || events[0].B != 3 {
			t.Fatalf("%+v", events)
		}
		return events[len(events)-1].Digest
	}
	a := chain(Attached, StopAsked, StopAsked)
	if a != chain(Attached, StopAsked, StopAsked) || a == chain(Attached, StopAsked) || a == chain(StopAsked, Attached, StopAsked) {
		t.Error("the chain does not tell its past")
	}
	base := Chain(1, Args{Step: 2, A: 3, B: 4, C: 5, Code: 6}, 7, 8)
	for i, x := range []uint64{
		Chain(0, Args{Step: 2, A: 3, B: 4, C: 5, Code: 6}, 7, 8), Chain(1, Args{Step: 1, A: 3, B: 4, C: 5, Code: 6}, 7, 8),
		Chain(1, Args{Step: 2, A: 2, B: 4, C: 5, Code: 6}, 7, 8), Chain(1, Args{Step: 2, A: 3, B: 3, C: 5, Code: 6}, 7, 8),
		Chain(1, Args{Step: 2, A: 3, B: 4, C: 4, Code: 6}, 7, 8), Chain(1, Args{Step: 2, A: 3, B: 4, C: 5, Code: 5}, 7, 8),
		Chain(1, Args{Step: 2, A: 3, B: 4, C: 5, Code: 6}, 6, 8), Chain(1, Args{Step: 2, A: 3, B: 4, C: 5, Code: 6}, 7, 7),
	} {
		if x == base {
			t.Errorf("change %d does not show", i)
		}
	}
	var off Thread
	if off.On() {
		t.Error("the zero thread is on")
	}
}

// TestASamplerTakesWholeAttempts: the same ones everywhere, from their first event to their last, whenever it began or stops.
func TestASamplerTakesWholeAttempts(t *testing.T) {
	ring := NewRing(1 << 12)
	s := NewSampler(ring, 4)
	begin := func(n byte) *Thread {
		x := Begin(s, 7, Decode, attempt.ID{8: n}, 40, 3, 0, 1)
		return &x
	}
	record := func(th *Thread, step Step, state uint8) {
		if th.On() {
			th.Record(Args{Step: step}, state, 1)
		}
	}
	s.Record(Event{Attempt: attempt.ID{8: 8}, Machine: Decode, Args: Args{Step: Attached}}) // began before the sampler
	taken := 0
	for n := range byte(32) {
		th := begin(n)
		if th.On() != (n%4 == 0) {
			t.Errorf("attempt %d: taken %v", n, th.On())
		}
		s.Record(Event{Attempt: attempt.ID{8: n}, Machine: Pool, Args: Args{Step: Reserve}})
		record(th, LeaseDrained, DecodeSettled)
		record(th, DeadlineOver, DecodeSettled) // late: it changes nothing, and is not recorded
		if th.On() {
			taken++
		}
	}
	events, _ := ring.Events()
	if taken != 8 || len(events) != 3*taken || s.Left() != 0 {
		t.Fatalf("%d attempts, %d events, %d left", taken, len(events), s.Left())
	}
	late := begin(64)
	s.Stop()
	if th := begin(68); th.On() {
		record(th, LeaseDrained, DecodeSettled)
	}
	record(late, Attached, 3)
	if s.Left() != 1 {
		t.Errorf("%d under way", s.Left())
	}
	record(late, LeaseDrained, DecodeSettled)
	events, _ = ring.Events()
	if len(events) != 3*taken+3 || s.Left() != 0 {
		t.Errorf("%d events, %d left after the stop", len(events)-3*taken, s.Left())
	}
	// Two machines of one attempt in one process: it is over when both are.
	p := Begin(s, 8, Prefill, attempt.ID{8: 128}, 40, 3, 0, 1)
	if !p.On() {
		t.Fatal("not taken")
	}
}

// slow is a disk that takes nothing until it is told to, or fails.
type slow struct {
	bytes.Buffer
	gate   chan struct{}
	err    error
	closed bool
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.gate
	if s.err != nil {
		return 0, s.err
	}
	return s.Buffer.Write(b)
}

func (s *slow) Close() error { s.closed = true; return nil }

func TestAFileHoldsAllEventsOfManyWriters(t *testing.T) {
	w := &slow{gate: make(chan struct{})}
	close(w.gate)
	f := NewFile(w, 16)
	var wg sync.WaitGroup
	for g := range byte(4) {
		wg.Go(func() {
			for n := range uint32(500) {
				f.Record(Event{Attempt: id(g), Machine: Decode, Args: Args{Step: TokenReady, A: n}})
			}
		})
	}
	wg.Wait()
	if err := f.Close(); err != nil || !w.closed {
		t.Fatal(err)
	}
	events, h, err := read(w.Bytes())
	if err != nil || len(events) != 2000 || h.Sample != 16 {
		t.Fatalf("%d events, %+v, %v", len(events), h, err)
	}
	next := map[attempt.ID]uint32{}
	for _, e := range events {
		if e.A != next[e.Attempt] {
			t.Fatalf("%s: event %d where %d was next", e.Attempt, e.A, next[e.Attempt])
		}
		next[e.Attempt]++
	}
}

// TestADiskThatIsTooSlowNeverHoldsUpAStep: the recorder stops, says so, and what it wrote is the beginning of a trace.
func TestADiskThatIsTooSlowNeverHoldsUpAStep(t *testing.T) {
	w := &slow{gate: make(chan struct{})}
	f := NewFile(w, 1)
	e := some()[4]
	n := 0
	for f.lostSoFar() == 0 {
		f.Record(e)
		n++
	}
	if n < FileBuffer/400 || n > FileBuffer/100 {
		t.Errorf("%d events fitted", n-1)
	}
	f.Record(e)
	close(w.gate)
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "2 events were lost") {
		t.Errorf("%v", err)
	}
	events, _, err := read(w.Bytes())
	if !errors.Is(err, ErrLost) || len(events) < n-1 {
		t.Errorf("%d of %d events, %v", len(events), n-1, err)
	}
}

func (f *File) lostSoFar() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

func TestADiskThatFailsIsNamedAtTheEnd(t *testing.T) {
	w := &slow{gate: make(chan struct{}), err: io.ErrShortWrite}
	close(w.gate)
	f := NewFile(w, 1)
	f.Record(some()[0])
	if err := f.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
	f.Record(some()[0])
	if err := f.Close(); err != nil {
		t.Error("the second Close:", err)
	}
}

func TestARingKeepsTheNewest(t *testing.T) {
	r := NewRing(3)
	for n := range uint32(5) {
		Tee{r, NewRing(1)}.Record(Event{Args: Args{A: n}})
	}
	kept, dropped := r.Events()
	if len(kept) != 3 || dropped != 2 || kept[0].A != 2 || kept[2].A != 4 {
		t.Errorf("%+v, %d dropped", kept, dropped)
	}
}

func TestEveryStepHasItsName(t *testing.T) {
	seen := map[string]bool{}
	for s := PagesReserved; s < numSteps; s++ {
		name := s.String()
		if strings.HasPrefix(name, "step(") {
			if s > GivenUp && s < Reserve {
				continue // free numbers
			}
			t.Errorf("step %d has no name", s)
		}
		if back, err := ParseStep(name); err != nil || back != s || seen[name] {
			t.Errorf("%s: %v, %v", name, back, err)
		}
		seen[name] = true
	}
	if _, err := ParseStep("nothing"); err == nil {
		t.Error("nothing is a step")
	}
}

func BenchmarkRecord(b *testing.B) {
	e := some()[4]
	b.Run("ring", func(b *testing.B) {
		r := NewRing(1 << 10)
		for b.Loop() {
			r.Record(e)
		}
	})
	b.Run("thread and ring", func(b *testing.B) {
		th := Begin(NewRing(1<<10), 7, Decode, id(1), 40, 3, 0, 1)
		for b.Loop() {
			th.Record(Args{Step: TokenReady}, 7, 1)
		}
	})
	b.Run("line of a file", func(b *testing.B) {
		var c Encoder
		var line []byte
		for b.Loop() {
			line = c.Event(line[:0], e)
		}
	})
	b.Run("not taken", func(b *testing.B) {
		s := NewSampler(NewRing(1), 2)
		e.Attempt[8] = 1
		for b.Loop() {
			s.Record(e)
		}
	})
}
