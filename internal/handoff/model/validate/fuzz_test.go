package validate

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// FuzzReplay: whatever a file holds, replaying it ends with an answer, and a file that passes is a file that a writer wrote.
func FuzzReplay(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.trace")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 3000)])
	}
	f.Add([]byte("{\"sluice\":\"trace\",\"version\":2,\"sample\":1}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, sample := New(Options{}), uint64(1)
		var events []trace.Event
		err := trace.Read(bytes.NewReader(b), func(h trace.Head) { v, sample = New(Options{Sampled: h.Sample > 1}), h.Sample }, func(_ uint64, e trace.Event) error {
			events = append(events, e)
			v.Step(e) // whether or not it is wrong
			return nil
		})
		if err != nil || bytes.Contains(b, []byte("\r")) {
			return
		}
		var c trace.Encoder
		again := c.Head(nil, sample)
		for _, e := range events {
			again = c.Event(again, e)
		}
		if !bytes.Equal(bytes.TrimRight(c.End(again, 0), "\n"), bytes.TrimRight(b, "\n")) {
			t.Fatalf("%d events read from something that no writer writes", len(events))
		}
	})
}

// TestHostileNumbersCostNothing: a line may name any page and any count; what a validator keeps is bounded.
func TestHostileNumbersCostNothing(t *testing.T) {
	events := recordings(t)["testdata/torn_page.trace"]
	for _, e := range events {
		if e.Step != trace.Reserve {
			continue
		}
		for _, x := range []trace.Event{with(e, 1<<32-1, 1), with(e, 0, 1<<32-1), with(e, 1<<31, 1<<31), with(e, 0, mostPages+1)} {
			v := New(Options{Sampled: true})
			for _, y := range events {
				if y == e {
					y = x
				}
				err := v.Step(y)
				var w *Wrong
				if err != nil && !errors.As(err, &w) {
					t.Fatal(err)
				}
			}
		}
	}
}

func with(e trace.Event, page, count uint32) trace.Event {
	e.A, e.B = page, count
	return e
}
