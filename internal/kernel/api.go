// Package kernel holds the arithmetic: matrix products over packed weights, attention over pages, and the small vector
// functions between them, in Go assembly generated for AVX2 and in plain Go, dispatched at run time.
//
// # One numeric path
//
// At temperature 0 a reply must not depend on how work was cut up. So every output element is computed by one fixed
// sequence of operations whatever the batch, chunk, page size or thread: a matrix product sums over k in one order for
// one row as for many; attention walks key tiles of 64 absolute positions, newest first, whatever the page size. A test
// compares bits, not closeness. (The assembly and the plain Go twin may differ in the last bits; the path is in the hello.)
//
// The package imports nothing of the house. It takes base addresses, strides and counts; its exported functions check
// every length, since an overread in assembly is the very leak this product exists to prevent.
package kernel

import "unsafe"

// Page is the base address of a page that may be read. Only package pool makes one (a lint rule says so).
type Page struct{ base unsafe.Pointer }

// Slot is the place of one token in a page that may be written. Only package pool makes one.
type Slot struct {
	base  unsafe.Pointer
	index int // token slot in the page
}

// PageAt and SlotAt are for package pool and for this package's tests.
func PageAt(base unsafe.Pointer) Page            { return Page{base} }
func SlotAt(base unsafe.Pointer, index int) Slot { return Slot{base, index} }

// Shape is the part of page.Geometry that the kernels need; the layout is pairs16 (see page.LayoutPairs16).
type Shape struct {
	Tokens, Layers, KVHeads, HeadDim int
}

// WeightType of a packed matrix, as the file stores it.
type WeightType uint8

const (
	F32 WeightType = iota
	F16
	Q8_0
	Q4_0
	Q4_1
)
