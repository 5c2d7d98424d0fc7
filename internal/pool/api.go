// Package pool is the arena: fixed pages outside the Go heap, handed out as leases and read through views.
//
// No method returns a slice of a page. A page's state moves along the edges of page.Slot, under the pool's lock; memory
// is touched only while the slot says it may be. With package kernel this is the only one that may import unsafe.
//
// # Order of operations
//
// Reserve (verify zero, new generation) · Land or write · Seal · View, read, Done · Release: fence, drain pins, zero,
// free. A copy or a read holds a pin; a page with a pin is never scrubbed or freed. World errors (full, wrong tag, wrong MAC)
// are errors; an illegal edge is a panic with the tag and both states.
//
// Lock order: Pool.mu is a leaf; nothing is called, copied or hashed under it.
package pool
