package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluicekv/sluice/internal/verdict"
)

// TestSeeds walks the real machines by seeds, in pools that are too small for everybody. Every event is valid in the model, every page
// that decode reads is its own, and all pages come back zero.
func TestSeeds(t *testing.T) {
	served, refused := 0, 0
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		w, err := New(Options{Pages: 2 + int(seed%3), Lanes: 2 + int(seed%2), Liars: seed%4 == 3})
		if err != nil {
			t.Fatal(err)
		}
		w.Walk(seed, 900, false)
		if err := w.Close(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		served, refused = served+w.Served, refused+w.Refused
	}
	t.Logf("%d seeds: %d attempts served, %d refused", seeds, served, refused)
	if served == 0 || refused == 0 {
		t.Errorf("%d served, %d refused", served, refused)
	}
}

func TestTheSameSeedIsTheSameRun(t *testing.T) {
	run := func(seed uint64) (uint64, string) {
		w, err := New(Options{Pages: 3, Lanes: 3})
		if err != nil {
			t.Fatal(err)
		}
		s := w.Walk(seed, 500, true)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return w.digest, Text(s)
	}
	a, as := run(7)
	b, bs := run(7)
	c, _ := run(8)
	if a != b || as != bs || a == c {
		t.Errorf("%x, %x, %x", a, b, c)
	}
	for line := range strings.Lines(as) {
		if x, err := ParseAct(strings.TrimSpace(line)); err != nil || x.String() != strings.TrimSpace(line) {
			t.Fatalf("%q: %v", line, err)
		}
	}
	for _, bad := range []string{"", "r0", "r0 nothing", "x decode-takes"} {
		if _, err := ParseAct(bad); err == nil {
			t.Errorf("%q is an act", bad)
		}
	}
}

func TestShrinkKeepsWhatFails(t *testing.T) {
	var long []Act
	for i := range 200 {
		long = append(long, Act{int8(i % 3), order[i%len(order)]})
	}
	fails := func(s []Act) bool { // two acts, in this order
		at := -1
		for i, a := range s {
			if a == (Act{1, "decode-takes"}) && at < 0 {
				at = i
			}
			if a == (Act{2, "prefill-sends"}) && at >= 0 {
				return true
			}
		}
		return false
	}
	if s := Shrink(long, fails); len(s) != 2 || !fails(s) {
		t.Errorf("%v", s)
	}
}

// TestScenarios tells stories on the real machines, pools and MACs. Commands: pair pages=N lanes=N [need=(N,N)] [liars]; do (an act a line); end.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *World
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "pair":
				var pages, lanes int
				d.ScanArgs(t, "pages", &pages)
				d.ScanArgs(t, "lanes", &lanes)
				o := Options{Pages: pages, Lanes: lanes, Liars: d.HasArg("liars")}
				if d.HasArg("need") {
					var a, b int
					d.ScanArgs(t, "need", &a, &b)
					o.Need = []int{a, b}
				}
				var err error
				if w, err = New(o); err != nil {
					t.Fatal(err)
				}
				return w.show()
			case "do":
				for line := range strings.Lines(d.Input) {
					a, err := ParseAct(strings.TrimSpace(line))
					if err != nil {
						t.Fatalf("%s: %v", d.Pos, err)
					}
					if !w.Do(a) {
						return fmt.Sprintf("%s is not possible\n%s", a, w.show())
					}
				}
				return w.show()
			case "end":
				if err := w.Close(); err != nil {
					return err.Error() + "\n"
				}
				return fmt.Sprintf("all pages are free and zero; %d served, %d refused\n", w.Served, w.Refused)
			}
			t.Fatalf("%s: no command is called %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

// show is the world in a few lines.
func (w *World) show() string {
	var b strings.Builder
	for _, l := range w.lanes {
		fmt.Fprintf(&b, "r%d decode %s, %d of %d landed", l.name, l.d.State, l.d.Written, l.d.Needed)
		if l.opened {
			fmt.Fprintf(&b, "; prefill %s, %d sent; %d on the link", l.p.State, l.p.Sent, len(l.link))
		}
		if l.d.Verdict != verdict.None {
			fmt.Fprintf(&b, "; %s", l.d.Verdict)
		}
		b.WriteByte('\n')
	}
	s := w.decode.Stats()
	fmt.Fprintf(&b, "decode's pool: %d of %d free, %d frames refused\n", s.Free, s.Total, s.Refused)
	if w.wrong != nil {
		fmt.Fprintln(&b, w.wrong)
	}
	return b.String()
}

// BenchmarkHandoffs is how many whole attempts one core simulates, each validated: "handoffs/min" is the figure.
func BenchmarkHandoffs(b *testing.B) {
	n := 0
	for seed := uint64(0); b.Loop(); seed++ {
		w, err := New(Options{Pages: 4, Lanes: 3})
		if err != nil {
			b.Fatal(err)
		}
		w.Walk(seed, 20000, false)
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		n += w.Served + w.Refused
	}
	b.ReportMetric(float64(n)/b.Elapsed().Minutes(), "handoffs/min")
}
