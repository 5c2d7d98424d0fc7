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

func TestABodyLivesUntilItsLastUserLetsGo(t *testing.T) {
	var m memory
	if err := m.grow(1<<20, false); err != nil {
		t.Fatal(err)
	}
	m.b = append(m.b, "prompt"...)
	b := budget{most: 1 << 30}
	b.take(1 << 20)
	x := b.hold(&m, 1<<20)
	if m.b != nil {
		t.Error("the body has two owners")
	}
	x.use()
	x.letGo()
	if string(x.memory.b) != "prompt" || b.held.Load() != 1<<20 {
		t.Fatal("gone while it was used")
	}
	x.letGo()
	if x.memory.b != nil || b.held.Load() != 0 {
		t.Error("kept after its last user")
	}
	defer func() {
		if recover() == nil {
			t.Error("let go once more without a word")
		}
	}()
	x.letGo()
}

func TestARegionIsWipedBeforeItIsUsedAgain(t *testing.T) {
	if !canMap {
		t.Skip("bodies are on the heap here")
	}
	spareRegions.drop()
	defer spareRegions.drop()
	var m memory
	if err := m.grow(1<<20, false); err != nil {
		t.Fatal(err)
	}
	m.b = append(m.b, bytes.Repeat([]byte("secret"), 1000)...)
	m.drop()
	again := spareRegions.take(1 << 20)
	if again == nil {
		t.Fatal("the region was not kept")
	}
	if i := bytes.IndexFunc(again, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of a dropped body is still there", i)
	}
	spareRegions.give(again, 0)
	if spareRegions.take(4<<20) != nil || spareRegions.take(100) != nil {
		t.Error("a region was given that does not fit")
	}
	for range 2 * mostSpare >> 20 {
		b, err := mapped(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		spareRegions.give(b, 0)
	}
	if spareRegions.bytes > mostSpare {
		t.Errorf("%d bytes lie unused", spareRegions.bytes)
	}
	spareRegions.drop()
	if spareRegions.bytes != 0 {
		t.Errorf("%d bytes after all were dropped", spareRegions.bytes)
	}
}
