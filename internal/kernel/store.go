package kernel

import (
	"fmt"
	"unsafe"
)

// kBlock is where K of (layer, KV head) starts in a page, in bytes; V follows it, each Tokens*HeadDim*2 bytes
// (the same as page.Geometry.KOffset).
func (s Shape) kBlock(layer, head int) uintptr {
	return uintptr((layer*s.KVHeads + head) * s.Tokens * s.HeadDim * 4)
}

func (s Shape) check() {
	t := s.Tokens
	if t <= 0 || t%16 != 0 || (t < 64 && 64%t != 0) || (t > 64 && t%64 != 0) || s.KVHeads <= 0 ||
		s.HeadDim <= 0 || s.HeadDim%8 != 0 {
		panic(fmt.Sprintf("kernel: no layout for pages of %+v", s))
	}
}

// StoreKV writes K and V of one token in one layer, [KVHeads][HeadDim] floats each, as halves rounded to nearest even.
func StoreKV(s Slot, sh Shape, layer int, k, v []float32) {
	sh.check()
	hd := sh.HeadDim
	switch {
	case s.base == nil || s.index < 0 || s.index >= sh.Tokens:
		panic(fmt.Sprintf("kernel: store into slot %d of %d", s.index, sh.Tokens))
	case layer < 0 || layer >= sh.Layers:
		panic(fmt.Sprintf("kernel: store into layer %d of %d", layer, sh.Layers))
	case len(k) != sh.KVHeads*hd || len(v) != sh.KVHeads*hd:
		panic(fmt.Sprintf("kernel: store %d and %d values for %d heads of %d", len(k), len(v), sh.KVHeads, hd))
	}
	for h := range sh.KVHeads {
		kb := unsafe.Add(s.base, sh.kBlock(layer, h))
		vb := unsafe.Add(kb, sh.Tokens*hd*2)
		storeToken(kb, vb, s.index, k[h*hd:][:hd], v[h*hd:][:hd])
	}
}

func storeToken(kb, vb unsafe.Pointer, slot int, k, v []float32) {
	hd := len(k)
	// A pair of dims of one key is one 32-bit word; the 16 keys of a group lie side by side.
	kw := unsafe.Slice((*uint32)(unsafe.Add(kb, (slot/16)*hd*32+slot%16*4)), (hd/2-1)*16+1)
	var half [64]uint16
	for from := 0; from < hd; from += len(half) {
		n := min(len(half), hd-from)
		ToF16(half[:n], k[from:from+n])
		for i := 0; i < n; i += 2 {
			kw[(from+i)*8] = uint32(half[i]) | uint32(half[i+1])<<16
		}
	}
	ToF16(unsafe.Slice((*uint16)(unsafe.Add(vb, slot*hd*2)), hd), v)
}
