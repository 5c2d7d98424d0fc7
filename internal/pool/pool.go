package pool

import (
	"errors"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// Errors of the pool. A caller tells them apart with errors.Is.
var (
	ErrPoolFull = errors.New("pool: not enough free pages") // changed nothing
	ErrTag      = errors.New("pool: the tag is not this lease's")
	ErrMAC      = errors.New("pool: the page's MAC is wrong")
	ErrFenced   = errors.New("pool: the lease is fenced")
	ErrTwice    = errors.New("pool: the tag was already written")
	ErrRange    = errors.New("pool: out of range")
)

// Config of a pool.
type Config struct {
	Role     string // names the arena in /proc/PID/maps: "sluice-pool-<role>"
	Boot     page.Boot
	Geometry page.Geometry
	Pages    int
}

// Pool is one worker's pages.
type Pool struct{}

// Stats is the accounting at one moment. Total = Free + Reserved (leased, any state) + Fenced (on their way back).
type Stats struct {
	Total, Free, Reserved, Fenced, Pins int
	PageBytes                           int
	Granted, Landed, Refused, Released  uint64 // pages, since boot
}

// New maps the arena and verifies it is zero.
func New(cfg Config) (*Pool, error) { panic("unwritten") }

// Reserve hands out n pages: zeroed, verified zero, each with a new generation. ErrPoolFull changes nothing.
func (p *Pool) Reserve(t admission.Ticket, n int) (*Lease, error) { panic("unwritten") }

// Stats returns the accounting.
func (p *Pool) Stats() Stats { panic("unwritten") }

// Freed returns a channel that is closed at the next return of pages: how a waiter learns to try Reserve again.
func (p *Pool) Freed() <-chan struct{} { panic("unwritten") }

// ScanFree counts the non-zero bytes in free pages.
func (p *Pool) ScanFree() (nonzero uint64) { panic("unwritten") }

// Close unmaps the arena. It panics while a lease is out.
func (p *Pool) Close() error { panic("unwritten") }

// Geometry, Boot of the pool.
func (p *Pool) Geometry() page.Geometry { panic("unwritten") }
func (p *Pool) Boot() page.Boot         { panic("unwritten") }

// Lease is an attempt's pages, in ordinal order. Its methods are safe for concurrent use.
type Lease struct{}

// Tags of the pages, by ordinal: what a grant names.
func (l *Lease) Tags() []page.Tag { panic("unwritten") }

// Len is the number of pages.
func (l *Lease) Len() int { panic("unwritten") }

// Grow adds n pages for the lease's own writes.
func (l *Lease) Grow(n int) error { panic("unwritten") }

// Land copies one whole page that a peer sent. frame is staging memory; no I/O happens here. Order: ask the gate (lease live, tag
// ours at this ordinal, not yet written), pin, one pass of MAC and copy (state Landing: no view can reach it), compare;
// equal marks it Written, unequal scrubs it and returns ErrMAC; unpin.
func (l *Lease) Land(ordinal int, tag page.Tag, frame []byte, key *mac.Key, m mac.Tag) error {
	panic("unwritten")
}

// SealPrompt turns the landed pages into sealed ones, of which the page that holds position tokens-1 is the tail. It fails
// unless every page that tokens need is Written. Extra pages (reserved for generation) stay Reserved.
func (l *Lease) SealPrompt(tokens int) error { panic("unwritten") }

// SealOwn seals a page that the lease's own compute filled (prefill), and makes its MAC while it is in the cache.
func (l *Lease) SealOwn(ordinal int, key *mac.Key) (mac.Tag, error) { panic("unwritten") }

// CopyOut copies a sealed page to staging under a pin, for sending.
func (l *Lease) CopyOut(dst []byte, ordinal int) (int, error) { panic("unwritten") }

// View pins the pages of [0, tokens), checks all their tags once, and yields base addresses for kernels. Positions
// [writeFrom, tokens) may be written: they must lie in pages that are the lease's own (Reserved or Tail), never in sealed
// ones. ErrFenced, ErrTag.
func (l *Lease) View(v *View, tokens, writeFrom int) error { panic("unwritten") }

// Fence revokes: no write can land any more, no view can begin. It does not wait. Idempotent.
func (l *Lease) Fence() { panic("unwritten") }

// Release fences, and as pins drain zeroes and frees; it never blocks. Idempotent. Done is closed when all pages are free.
func (l *Lease) Release()              { panic("unwritten") }
func (l *Lease) Done() <-chan struct{} { panic("unwritten") }

// View is one step's reading of a lease. The zero View is ready; a View is reused from step to step.
type View struct{}

func (v *View) Pages() []kernel.Page     { panic("unwritten") }
func (v *View) Slot(pos int) kernel.Slot { panic("unwritten") }
func (v *View) PageTokens() int          { panic("unwritten") }

// Done unpins.
func (v *View) Done() { panic("unwritten") }
