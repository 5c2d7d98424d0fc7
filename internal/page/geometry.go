package page

import "fmt"

// Layout names the order of values inside a page. It is on the wire: append, never renumber.
type Layout uint8

const (
	// LayoutPairs16 is the layout that the kernels read. Values are IEEE half floats, little endian. For each layer,
	// for each KV head: K as [tokens/16][headDim/2][16 keys][2 dims], then V as [tokens][headDim].
	// Keys lie across lanes, so a dot product needs no horizontal sum, on AVX2, AVX-512 and AMX alike.
	LayoutPairs16 Layout = 1
)

func (l Layout) String() string {
	if l == LayoutPairs16 {
		return "pairs16-f16"
	}
	return fmt.Sprintf("layout(%d)", uint8(l))
}

// Geometry is the shape of a page. Both ends of a handoff must have the same (the hello compares it).
type Geometry struct {
	Tokens  uint32 // slots a page; a multiple of 16 that divides 64 or is a multiple of 64
	Layers  uint32
	KVHeads uint32
	HeadDim uint32 // a multiple of 8
	Layout  Layout
}

// Bytes of one page.
func (g Geometry) Bytes() int { return int(g.Tokens) * g.BytesPerToken() }

// BytesPerToken of K and V over all layers and heads.
func (g Geometry) BytesPerToken() int { return int(g.Layers) * int(g.KVHeads) * int(g.HeadDim) * 2 * 2 }

// Pages that hold n tokens.
func (g Geometry) Pages(n int) int { return (n + int(g.Tokens) - 1) / int(g.Tokens) }

// KOffset is where the K block of (layer, head) starts in a page, in bytes; the V block follows it, both Tokens*HeadDim*2 bytes.
func (g Geometry) KOffset(layer, head int) int {
	return (layer*int(g.KVHeads) + head) * int(g.Tokens) * int(g.HeadDim) * 4
}

// VOffset is where the V block of (layer, head) starts.
func (g Geometry) VOffset(layer, head int) int {
	return g.KOffset(layer, head) + int(g.Tokens)*int(g.HeadDim)*2
}

// Validate refuses shapes that the kernels or the wire cannot take.
func (g Geometry) Validate() error {
	t := g.Tokens
	switch {
	case t == 0 || t%16 != 0 || t > 1024 || (t < 64 && 64%t != 0) || (t > 64 && t%64 != 0):
		return fmt.Errorf("page: a page of %d tokens: must be 16, 32, 64 or a multiple of 64 up to 1024", t)
	case g.Layers == 0 || g.Layers > 1024:
		return fmt.Errorf("page: %d layers: must be 1 to 1024", g.Layers)
	case g.KVHeads == 0 || g.KVHeads > 1024:
		return fmt.Errorf("page: %d KV heads: must be 1 to 1024", g.KVHeads)
	case g.HeadDim == 0 || g.HeadDim%8 != 0 || g.HeadDim > 1024:
		return fmt.Errorf("page: a head of %d dims: must be a multiple of 8 up to 1024", g.HeadDim)
	case g.Layout != LayoutPairs16:
		return fmt.Errorf("page: unknown %s", g.Layout)
	case g.Bytes() > 1<<28:
		return fmt.Errorf("page: %d bytes a page: at most %d", g.Bytes(), 1<<28)
	}
	return nil
}

func (g Geometry) String() string {
	return fmt.Sprintf("%d tokens x %d layers x %d heads x %d dims, %s", g.Tokens, g.Layers, g.KVHeads, g.HeadDim, g.Layout)
}
