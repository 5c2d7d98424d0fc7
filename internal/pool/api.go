// Package pool is the arena: fixed pages outside the Go heap, handed out as leases and read through views.
//
// No method returns a slice of a page. A page's state moves along the edges of page.Slot, under the pool's lock; memory
// is touched only while the slot says it may be. With package kernel this is the only one that may import unsafe.
//
// # Order of operations
//
// Reserve (verify zero, new generation) · Land or write · Seal · View, read, Done · Release: fence, drain pins, zero,
// free. A copy or a read holds a pin; a page with a pin is never sealed, scrubbed or freed. World errors (full, wrong tag,
// wrong MAC) are errors; an illegal edge is a panic with the tag and both states.
//
// What each of the two legs does with a lease:
//
//	decode   Reserve · Tags (the grant) · Land, any order · SealPrompt · [View, write, Done]... with Grow · Release
//	prefill  Reserve · [View, write, Done · SealOwn of the pages that became full · CopyOut]... · Release
//
// # The arena
//
// A memfd named sluice-pool-<role>, mapped shared with unmapped pages at both ends, so that anyone can find it in
// /proc/PID/maps and read it from outside (package outside does), kept out of core dumps, and resident only where it
// was used. Under the race detector it lives in the Go heap instead, because -race cannot see mapped memory. Under the build tag
// electricfence free pages are PROT_NONE: touching one is a fault, not a leak.
//
// # Locks
//
// A lease's growing comes before Pool.mu, which is a leaf and guards every slot, lease and count. No page is copied, hashed or zeroed under it, with one
// exception: ScanFree reads a free page in small pieces. Config.Trace is called under it. A panic under it leaves it locked:
// who recovers from one finds a pool that answers nobody, which is better than one that hands out pages it has lost track of.
//
// # Guards
//
// Gate, MAC, Count, Tag, Zero, Pin and Fence live here. Where a check can be taken out in the unsafe build, the branch
// reads !guard.Off(...); what happens then is what happens on a system that never had it (a late write lands).
package pool
