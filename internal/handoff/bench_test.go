package handoff

import (
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

// BenchmarkPage is what the machine costs a page that lands: two steps, and with their digests.
func BenchmarkPage(b *testing.B) {
	d, _ := NewDecode(1<<20, 1<<14).Step(PagesReserved{1 << 14})
	d, _ = d.Step(Attached{})
	for _, traced := range []bool{false, true} {
		name := map[bool]string{false: "steps", true: "digests"}[traced]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			sum := uint64(0)
			for b.Loop() {
				e, _ := d.Step(PageArrived{7})
				f, _ := e.Step(PageLanded{7, verdict.None})
				if traced {
					sum += e.Digest() + f.Digest()
				}
			}
			_ = sum
		})
	}
}
