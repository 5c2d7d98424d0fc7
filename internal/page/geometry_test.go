package page

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestGeometryRefusesWhatKernelsCannotTake(t *testing.T) {
	good := Geometry{Tokens: 64, Layers: 2, KVHeads: 3, HeadDim: 64, Layout: LayoutPairs16}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*Geometry){
		"no tokens":      func(g *Geometry) { g.Tokens = 0 },
		"48 tokens":      func(g *Geometry) { g.Tokens = 48 },
		"8 tokens":       func(g *Geometry) { g.Tokens = 8 },
		"96 tokens":      func(g *Geometry) { g.Tokens = 96 },
		"2048 tokens":    func(g *Geometry) { g.Tokens = 2048 },
		"no layers":      func(g *Geometry) { g.Layers = 0 },
		"2000 layers":    func(g *Geometry) { g.Layers = 2000 },
		"no heads":       func(g *Geometry) { g.KVHeads = 0 },
		"a head of 12":   func(g *Geometry) { g.HeadDim = 12 },
		"no head":        func(g *Geometry) { g.HeadDim = 0 },
		"unknown layout": func(g *Geometry) { g.Layout = 2 },
		"a page of 1 TB": func(g *Geometry) { g.Tokens, g.Layers, g.KVHeads, g.HeadDim = 1024, 1024, 1024, 1024 },
	} {
		g := good
		edit(&g)
		if g.Validate() == nil {
			t.Errorf("%s passed", name)
		}
	}
}

func TestGeometryTakesItsBounds(t *testing.T) {
	at := func(tokens, layers, heads, dim uint32) error {
		return Geometry{Tokens: tokens, Layers: layers, KVHeads: heads, HeadDim: dim, Layout: LayoutPairs16}.Validate()
	}
	for _, tokens := range []uint32{16, 32, 64, 128, 192, 960, 1024} {
		if err := at(tokens, 1, 1, 8); err != nil {
			t.Error(err)
		}
	}
	for _, tokens := range []uint32{0, 1, 15, 24, 48, 72, 80, 96, 1040, 1088} {
		if at(tokens, 1, 1, 8) == nil {
			t.Errorf("%d tokens passed", tokens)
		}
	}
	for _, g := range [][3]uint32{{1024, 1, 8}, {1, 1024, 8}, {1, 1, 1024}, {1024, 1024, 8}} {
		if err := at(16, g[0], g[1], g[2]); err != nil && g != [3]uint32{1024, 1024, 8} {
			t.Error(err)
		}
	}
	for name, g := range map[string][3]uint32{"layers": {1025, 1, 8}, "KV heads": {1, 1025, 8}, "dims": {1, 1, 1032}} {
		if err := at(16, g[0], g[1], g[2]); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := at(64, 64, 64, 256); err != nil { // 256 MiB
		t.Error(err)
	}
	if err := at(64, 64, 64, 264); err == nil || !strings.Contains(err.Error(), "bytes a page") {
		t.Errorf("a page over the bound: %v", err)
	}
}

// TestGeometryBlocksTileThePage: K and V blocks of all layers and heads follow one another and end where the page ends.
func TestGeometryBlocksTileThePage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{
			Tokens:  rapid.SampledFrom([]uint32{16, 32, 64, 128, 1024}).Draw(t, "tokens"),
			Layers:  rapid.Uint32Range(1, 6).Draw(t, "layers"),
			KVHeads: rapid.Uint32Range(1, 6).Draw(t, "heads"),
			HeadDim: 8 * rapid.Uint32Range(1, 16).Draw(t, "dims"),
			Layout:  LayoutPairs16,
		}
		if err := g.Validate(); err != nil {
			t.Fatal(err)
		}
		block, at := int(g.Tokens*g.HeadDim)*2, 0
		for layer := range int(g.Layers) {
			for head := range int(g.KVHeads) {
				if k, v := g.KOffset(layer, head), g.VOffset(layer, head); k != at || v != at+block {
					t.Fatalf("layer %d head %d: K at %d, V at %d, want %d and %d", layer, head, k, v, at, at+block)
				}
				at += 2 * block
			}
		}
		if at != g.Bytes() || g.Bytes() != int(g.Tokens)*g.BytesPerToken() {
			t.Fatalf("blocks end at %d of %d bytes", at, g.Bytes())
		}
		n := rapid.IntRange(1, 5000).Draw(t, "n")
		if p := g.Pages(n); p*int(g.Tokens) < n || (p-1)*int(g.Tokens) >= n {
			t.Fatalf("%d pages for %d tokens", p, n)
		}
	})
}

func TestTagAndBootAsText(t *testing.T) {
	if got := (Tag{Boot: 0xabc, ID: 7, Gen: 12}).String(); got != "0000000000000abc/7@12" {
		t.Error(got)
	}
	b := NewBoot()
	if b == 0 || b == NewBoot() {
		t.Error("a boot is 0, or came twice")
	}
	text, _ := b.MarshalText()
	var back Boot
	if err := back.UnmarshalText(text); err != nil || back != b {
		t.Errorf("%s came back as %s: %v", b, back, err)
	}
	if back.UnmarshalText([]byte("xyz")) == nil {
		t.Error("xyz is a boot")
	}
}
