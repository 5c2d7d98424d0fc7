package kernel

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"
)

// Every exported function refuses lengths that its assembly would read past: with a panic of its own, not by luck.
func TestWrongLengthsPanicBeforeAnythingIsRead(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		f := func(n int) []float32 { return make([]float32, n) }
		sh := Shape{Tokens: 16, Layers: 2, KVHeads: 2, HeadDim: 8}
		mem := alignedBytes(16 * 2 * 2 * 8 * 4)
		p := PageAt(unsafe.Pointer(&mem[0]))
		slot := SlotAt(p.base, 3)
		m32, err := PackF32(make([]byte, 32*64*4), 32, 64)
		if err != nil {
			t.Fatal(err)
		}
		m4, err := PackQ4_1(make([]byte, 32*2*20), 32, 64)
		if err != nil {
			t.Fatal(err)
		}
		acts := func(rows, k int) *Acts {
			var a Acts
			Quantize(f(rows*k), rows, k, &a)
			return &a
		}
		cases := map[string]func(){
			"ToF16":             func() { ToF16(make([]uint16, 7), f(8)) },
			"FromF16":           func() { FromF16(f(7), make([]uint16, 8)) },
			"row too far":       func() { m4.Row(f(64), 32) },
			"row before":        func() { m4.Row(f(64), -1) },
			"row into less":     func() { m4.Row(f(63), 0) },
			"set too short":     func() { new(Acts).Set(f(63), 1, 64) },
			"set too long":      func() { new(Acts).Set(f(65), 1, 64) },
			"set negative":      func() { new(Acts).Set(f(64), -1, -64) },
			"quantize past":     func() { acts(2, 64).Quantize(1, 3) },
			"quantize before":   func() { acts(2, 64).Quantize(-1, 1) },
			"quantize odd":      func() { var a Acts; a.Set(f(33), 1, 33); a.Quantize(0, 1) },
			"product of k":      func() { MatMul(f(32), acts(1, 32), m32, 0, 32, &Scratch{}) },
			"product into less": func() { MatMul(f(63), acts(2, 64), m4, 0, 32, &Scratch{}) },
			"product not quantised": func() {
				a := acts(2, 64)
				a.Set(f(128), 2, 64)
				MatMul(f(64), a, m4, 0, 32, &Scratch{})
			},
			"product half quantised": func() {
				a := acts(2, 64)
				a.Set(f(128), 2, 64)
				a.Quantize(0, 1)
				MatMul(f(64), a, m4, 0, 32, &Scratch{})
			},
			"quantize backwards":    func() { acts(3, 64).Quantize(2, 1) },
			"gate of less":          func() { SiLUMul(f(8), f(7), f(8)) },
			"product panels past n": func() { MatMul(f(32), acts(1, 64), m4, 0, 48, &Scratch{}) },
			"product past n":        func() { MatMul(f(32), acts(1, 64), m4, 0, 33, &Scratch{}) },
			"product before 0":      func() { MatMul(f(32), acts(1, 64), m4, -16, 16, &Scratch{}) },
			"product backwards":     func() { MatMul(f(32), acts(1, 64), m4, 32, 16, &Scratch{}) },
			"product cut early":     func() { MatMul(f(32), acts(1, 64), m4, 8, 32, &Scratch{}) },
			"product cut late":      func() { MatMul(f(32), acts(1, 64), m4, 0, 17, &Scratch{}) },
			"store past":            func() { StoreKV(SlotAt(p.base, 16), sh, 0, f(16), f(16)) },
			"store before":          func() { StoreKV(SlotAt(p.base, -1), sh, 0, f(16), f(16)) },
			"store nowhere":         func() { StoreKV(SlotAt(nil, 0), sh, 0, f(16), f(16)) },
			"store layer":           func() { StoreKV(slot, sh, 2, f(16), f(16)) },
			"store layer -1":        func() { StoreKV(slot, sh, -1, f(16), f(16)) },
			"store k":               func() { StoreKV(slot, sh, 0, f(15), f(16)) },
			"store v":               func() { StoreKV(slot, sh, 0, f(16), f(17)) },
			"norm":                  func() { RMSNorm(f(16), f(16), f(5), 0) },
			"norm of nothing":       func() { RMSNorm(f(16), f(16), nil, 0) },
			"norm into less":        func() { RMSNorm(f(8), f(16), f(8), 0) },
			"rope table":            func() { RopeTable(f(7), 0, make([]float64, 4)) },
			"rope heads":            func() { Rope(f(12), 8, f(8)) },
			"rope too wide":         func() { Rope(f(16), 8, f(10)) },
			"rope odd":              func() { Rope(f(16), 8, f(7)) },
			"rope no heads":         func() { Rope(f(16), 0, nil) },
			"gate":                  func() { SiLUMul(f(8), f(8), f(7)) },
			"gate into less":        func() { SiLUMul(f(7), f(8), f(8)) },
			"add":                   func() { Add(f(8), f(9)) },
			"exp":                   func() { ExpSum(f(7), f(8), 0) },
		}
		for i, bad := range []Shape{
			{0, 2, 2, 8}, {-16, 2, 2, 8}, {24, 2, 2, 8}, {48, 2, 2, 8}, {96, 2, 2, 8}, {16, 0, 2, 8}, {16, 2, 0, 8}, {16, 2, 2, 0}, {16, 2, 2, 12}, {16, 2, 2, -8},
		} {
			n := max(0, bad.KVHeads*bad.HeadDim) // what would fit the shape
			cases[fmt.Sprintf("shape %d, store", i)] = func() { StoreKV(slot, bad, 0, f(n), f(n)) }
			cases[fmt.Sprintf("shape %d, attend", i)] = func() { attend(f(2*n), f(2*n), []Page{p}, bad, 0, 2*bad.KVHeads, 0, 1, 0, 2) }
		}
		type call struct {
			o, q                                   int
			pages                                  []Page
			layer, heads, pos0, rows, head0, head1 int
		}
		for i, c := range []call{
			{31, 32, []Page{p}, 0, 4, 0, 1, 0, 4}, {32, 31, []Page{p}, 0, 4, 0, 1, 0, 4}, {32, 32, []Page{p}, 2, 4, 0, 1, 0, 4},
			{32, 32, []Page{p}, -1, 4, 0, 1, 0, 4}, {24, 24, []Page{p}, 0, 3, 0, 1, 0, 3}, {0, 0, []Page{p}, 0, 0, 0, 1, 0, 0},
			{32, 32, []Page{p}, 0, 4, 16, 1, 0, 4}, {64, 64, []Page{p}, 0, 4, 15, 2, 0, 4}, {32, 32, []Page{p}, 0, 4, -1, 1, 0, 4},
			{32, 32, nil, 0, 4, 0, 1, 0, 4}, {32, 32, []Page{{}}, 0, 4, 0, 1, 0, 4}, {32, 32, []Page{p}, 0, 4, 0, 1, 0, 5},
			{32, 32, []Page{p}, 0, 4, 0, 1, -1, 4}, {32, 32, []Page{p}, 0, 4, 0, 1, 3, 2}, {0, 0, []Page{p}, 0, 4, 0, -1, 0, 4},
		} {
			cases[fmt.Sprintf("attend %d", i)] = func() {
				attend(f(c.o), f(c.q), c.pages, sh, c.layer, c.heads, c.pos0, c.rows, c.head0, c.head1)
			}
		}
		for name, f := range cases {
			func() {
				defer func() {
					if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "kernel: ") {
						t.Errorf("%s: %v", name, r)
					}
				}()
				f()
			}()
		}
		attend(f(64), f(64), []Page{p}, sh, 0, 4, 14, 2, 0, 4) // what is right is not refused
		attend(nil, nil, nil, sh, 0, 4, 0, 0, 0, 4)
	})
}

func attend(o, q []float32, pages []Page, sh Shape, layer, heads, pos0, rows, head0, head1 int) {
	Attend(o, q, pages, sh, layer, heads, pos0, rows, head0, head1, &AttnScratch{})
}

func TestPathIsNamedAndChosen(t *testing.T) {
	if Path() != Paths()[0] {
		t.Errorf("runs %s, the best is %s", Path(), Paths()[0])
	}
	forPaths(t, func(t *testing.T) {
		if name := t.Name(); !strings.HasSuffix(name, "/"+Path()) {
			t.Errorf("%s runs %s", name, Path())
		}
	})
	if err := SetPath("sse"); err == nil || !strings.Contains(err.Error(), `"sse"`) {
		t.Errorf("an unknown path: %v", err)
	}
}
