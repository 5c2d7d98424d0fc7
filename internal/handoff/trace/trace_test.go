package trace

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Recorded files and the model bind to these names and numbers: a change here breaks both.
func TestStepsKeepTheirNamesAndNumbers(t *testing.T) {
	const want = "none pages-reserved reserve-ended attached page-arrived page-landed manifest-seen end-seen seal-done echo-compared " +
		"token-ready stop-asked engine-done prompt-seen grant-seen pages-sealed page-taken page-sent closing-sent abort-asked peer-lost " +
		"deadline-over lease-drained reserved-seen sealed-seen prefill-ended output-seen decode-ended stop-found leg-settled violation page-dropped"
	for i, name := range strings.Fields(want) {
		if Step(i).String() != name {
			t.Errorf("step %d is %s, and was %s", i, Step(i), name)
		}
		if s, err := ParseStep(name); err != nil || s != Step(i) {
			t.Errorf("%s parses as %v, %v", name, s, err)
		}
	}
	seen := map[string]bool{}
	for s := None; s < numSteps; s++ {
		if s.String() == "" || seen[s.String()] {
			t.Errorf("step %d has no name of its own: %q", s, s)
		}
		seen[s.String()] = true
	}
}

func events() []Event {
	return []Event{
		{Attempt: attempt.ID{1, 2, 3}, Boot: 0x1234, Machine: Decode, Args: Args{Step: PageLanded, A: 3, B: 1, C: 7, Code: verdict.MACMismatch}, State: 3, Digest: 0xfedc},
		{Attempt: attempt.ID{15: 9}, Boot: 1, Machine: Prefill, Args: Args{Step: LeaseDrained}, State: 6, Digest: 1},
	}
}

func TestAFileReadsAsItWasWritten(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, events()); err != nil {
		t.Fatal(err)
	}
	var got []Event
	err := Read(bytes.NewReader(b.Bytes()), func(Head) {}, func(_ uint64, e Event) error { got = append(got, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(events(), got); d != "" {
		t.Error(d)
	}
	// Every line counts: none can be left out or change places, and none of its numbers can change.
	lines := strings.SplitAfter(b.String(), "\n")
	for i := range lines[:len(lines)-1] {
		cut := strings.Join(append(append([]string(nil), lines[:i]...), lines[i+1:]...), "")
		if Read(strings.NewReader(cut), func(Head) {}, func(uint64, Event) error { return nil }) == nil {
			t.Errorf("line %d can be left out", i+1)
		}
	}
	if Read(strings.NewReader(strings.Replace(b.String(), `"a":3`, `"a":4`, 1)), func(Head) {}, func(uint64, Event) error { return nil }) == nil {
		t.Error("a number can change")
	}
	stop := errors.New("enough")
	if err := Read(&b, func(Head) {}, func(uint64, Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Read says %v", err)
	}
}

func TestARingKeepsTheNewest(t *testing.T) {
	r := NewRing(3)
	for i := range uint64(5) {
		r.Record(Event{Digest: i})
	}
	kept, dropped := r.Events()
	if dropped != 2 || len(kept) != 3 || kept[0].Digest != 2 || kept[2].Digest != 4 {
		t.Errorf("%d dropped, kept %+v", dropped, kept)
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	Write(&b, events())
	f.Add(b.Bytes())
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var got []Event
		if Read(bytes.NewReader(in), func(Head) {}, func(_ uint64, e Event) error { got = append(got, e); return nil }) != nil {
			return
		}
		var out bytes.Buffer
		if err := Write(&out, got); err != nil {
			t.Fatal(err)
		}
		var again []Event
		if err := Read(&out, func(Head) {}, func(_ uint64, e Event) error { again = append(again, e); return nil }); err != nil {
			t.Fatalf("what was read cannot be written and read: %v", err)
		}
		if d := cmp.Diff(got, again); d != "" {
			t.Error(d)
		}
	})
}
