package validate

import (
	"bytes"
	"os"
	"testing"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// BenchmarkStep is the cost of an event: "ns/event" is the figure.
func BenchmarkStep(b *testing.B) {
	events := recordings(b)["testdata/served.trace"]
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := All(events, Options{}); err != nil {
			b.Fatal(err)
		}
		n += len(events)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
}

// BenchmarkReplay is the same from a file: lines are read, summed and walked.
func BenchmarkReplay(b *testing.B) {
	raw, err := os.ReadFile("testdata/served.trace")
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		v := New(Options{})
		err := trace.Read(bytes.NewReader(raw), func(trace.Head) {}, func(_ uint64, e trace.Event) error { n++; return v.Step(e) })
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
}
