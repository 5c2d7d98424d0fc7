package replay

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

const recording = "../../handoff/model/validate/testdata/served.trace"

func file(t *testing.T) []byte {
	b, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func said(b []byte, unfinished bool) (string, error) {
	res, err := File(bytes.NewReader(b), unfinished)
	var out strings.Builder
	Print(&out, res, err)
	return out.String(), err
}

func TestAWholeFileIsValid(t *testing.T) {
	out, err := said(file(t), false)
	if err != nil || !strings.HasPrefix(out, "valid 310/310\n") || !strings.Contains(out, "1 served") {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestTheWrongLineIsNamed(t *testing.T) {
	lines := strings.SplitAfter(string(file(t)), "\n")
	without := strings.Join(append(append([]string(nil), lines[:40]...), lines[41:]...), "")
	out, err := said([]byte(without), false)
	if !errors.Is(err, trace.ErrOrder) || !strings.Contains(out, "line 40") || !strings.Contains(out, "39 events before it are valid") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = said(bytes.Replace(file(t), []byte(`"pool":"land-begin","page":3`), []byte(`"pool":"land-begin","page":4`), 1), false)
	if err == nil || !strings.HasPrefix(out, "invalid: line ") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestARunThatWentWrongIsNamed: the file is a file, and what it tells cannot have happened.
func TestARunThatWentWrongIsNamed(t *testing.T) {
	var events []trace.Event
	trace.Read(bytes.NewReader(file(t)), func(trace.Head) {}, func(_ uint64, e trace.Event) error {
		if e.Step != trace.Fence { // the fence was forgotten
			events = append(events, e)
		}
		return nil
	})
	var b bytes.Buffer
	trace.Write(&b, events)
	out, err := said(b.Bytes(), false)
	if err == nil || !strings.Contains(out, "scrub") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAnUnfinishedFile(t *testing.T) {
	lines := strings.SplitAfter(string(file(t)), "\n")
	cut := []byte(strings.Join(lines[:100], ""))
	if _, err := said(cut, false); !errors.Is(err, trace.ErrCut) {
		t.Error(err)
	}
	if out, err := said(cut, true); err != nil || !strings.HasPrefix(out, "valid 99/99") {
		t.Errorf("%v: %s", err, out)
	}
}
