package gateway

import (
	"bytes"
	"testing"
)

func TestMemoryGrowsAndKeepsWhatThereIs(t *testing.T) {
	for _, onHeap := range []bool{true, false} {
		var m memory
		var want []byte
		for i, n := range []int{100, firstRead, firstRead + 1, 1 << 20, 5<<20 + 3} {
			if err := m.grow(n, onHeap); err != nil {
				t.Fatal(err)
			}
			if cap(m.b) < n || !bytes.Equal(m.b, want) {
				t.Fatalf("grown to %d: room for %d, %d bytes kept of %d", n, cap(m.b), len(m.b), len(want))
			}
			if mapped := canMap && !onHeap && n > firstRead; m.mapped != mapped {
				t.Fatalf("%d bytes mapped: %v", n, m.mapped)
			}
			for len(m.b) < n {
				m.b = append(m.b, byte(i+len(m.b)))
			}
			want = bytes.Clone(m.b)
		}
		m.drop()
		if m.b != nil || m.mapped {
			t.Errorf("%+v after drop", m)
		}
		m.drop()
	}
}
