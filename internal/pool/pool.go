package pool

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"sync"

	"github.com/sluicekv/sluice/internal/page"
)

// Errors of the pool. A caller tells them apart with errors.Is.
var (
	ErrPoolFull  = errors.New("pool: not enough free pages") // changed nothing
	ErrTicket    = errors.New("pool: the ticket is of no attempt, or of one that has its verdict")
	ErrTag       = errors.New("pool: the tag is not this lease's")
	ErrMAC       = errors.New("pool: the page's MAC is wrong")
	ErrFenced    = errors.New("pool: the lease is fenced")
	ErrTwice     = errors.New("pool: the tag was already used")
	ErrRange     = errors.New("pool: out of range")
	ErrUnwritten = errors.New("pool: a page was not written") // SealPrompt, SealOwn
	ErrUnsealed  = errors.New("pool: a page is not sealed")   // View, CopyOut
	ErrPinned    = errors.New("pool: a page is being read or written")
	ErrNotZero   = errors.New("pool: a page was not zero when granted") // unsafe build only: the release build panics
)

// Config of a pool.
type Config struct {
	Role     string // names the arena in /proc/PID/maps: "sluice-pool-<role>"; [a-z0-9-]+
	Boot     page.Boot
	Geometry page.Geometry
	Pages    int

	// ReuseLast grants the page that was freed last, instead of the free page with the lowest id: what finds a
	// stale read soonest. For drills and tests; the default keeps the resident part of the arena small.
	ReuseLast bool

	// Spawn runs the scrubber, a function that zeroes and frees until nothing is left to. Nil: a goroutine of its own. A
	// scheduler that decides when pages come back keeps it and calls it later; never from inside Spawn.
	Spawn func(scrub func())

	// MidCopy is called by Land and CopyOut between the pin and the copy, without the lock: how a test or a drill holds a copy in
	// its middle. Nil costs nothing.
	MidCopy func(page.Tag)

	// Trace hears of every transition, in order, inside the critical section that performs it: it must be quick and must not
	// call the pool. Nil costs nothing.
	Trace func(Event)
}

// Pool is one worker's pages. It is safe for concurrent use.
type Pool struct {
	geometry   page.Geometry
	boot       page.Boot
	pages      int
	pageTokens int
	pageBytes  int
	arena      *arena
	trace      func(Event)
	spawn      func(func())
	midCopy    func(page.Tag) // nil but in tests and drills

	mu    sync.Mutex
	slots []page.Slot // by page ID
	free  freeList
	dirty []dirty // fenced, unpinned, released: to be zeroed
	// scrubbing is closed when the scrubber that is running ends; nil while none runs.
	scrubbing chan struct{}
	freed     chan struct{} // closed at the next return of pages; nil while nobody waits
	closed    bool
	count     Stats // Free and the constants are filled in by Stats
}

// Stats is the accounting at one moment. Total = Free + Reserved (leased, any state) + Fenced (on their way back).
type Stats struct {
	Total, Free, Reserved, Fenced, Pins int
	PageBytes                           int
	ArenaBytes                          int    // mapped; resident is what was touched of it
	Granted, Landed, Refused, Released  uint64 // pages, since boot
}

var roleName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// New maps the arena and verifies it is zero.
func New(cfg Config) (*Pool, error) {
	if err := cfg.Geometry.Validate(); err != nil {
		return nil, err
	}
	switch {
	case !roleName.MatchString(cfg.Role):
		return nil, fmt.Errorf("pool: role %q: must be 1 to 64 of a-z, 0-9 and -", cfg.Role)
	case cfg.Boot == 0:
		return nil, errors.New("pool: a pool needs a boot")
	case cfg.Pages <= 0 || cfg.Pages > math.MaxInt32:
		return nil, fmt.Errorf("pool: %d pages: must be 1 to %d", cfg.Pages, math.MaxInt32)
	}
	a, err := mapArena("sluice-pool-"+cfg.Role, cfg.Pages, cfg.Geometry.Bytes())
	if err != nil {
		return nil, err
	}
	p := &Pool{
		geometry:   cfg.Geometry,
		boot:       cfg.Boot,
		pages:      cfg.Pages,
		pageTokens: int(cfg.Geometry.Tokens),
		pageBytes:  cfg.Geometry.Bytes(),
		arena:      a,
		trace:      cfg.Trace,
		spawn:      cfg.Spawn,
		midCopy:    cfg.MidCopy,
		slots:      make([]page.Slot, cfg.Pages),
		free:       newFreeList(cfg.Pages, cfg.ReuseLast),
	}
	if p.spawn == nil {
		p.spawn = func(scrub func()) { go scrub() }
	}
	return p, nil
}

// Stats returns the accounting.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.count
	s.Total, s.Free, s.PageBytes, s.ArenaBytes = p.pages, p.free.len(), p.pageBytes, p.pages*p.arena.stride
	return s
}

// Freed returns a channel that is closed at the next return of pages: how a waiter learns to try Reserve again. Take the
// channel first and then try, or a return in between is missed.
func (p *Pool) Freed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	return p.freed
}

// ScanFree counts the non-zero bytes in free pages. Parts of the arena that were never touched are not read (and so stay
// out of memory).
func (p *Pool) ScanFree() (nonzero uint64) {
	const piece = 64 << 10 // read under the lock: a few microseconds
	for next := 0; ; next++ {
		p.mu.Lock()
		if !p.closed {
			next = p.arena.touched(next)
		}
		done := p.closed || next >= p.pages
		p.mu.Unlock()
		if done {
			return nonzero
		}
		id := page.ID(next)
		for off := 0; off < p.arena.stride; off += piece {
			p.mu.Lock()
			if p.closed || p.slots[id].State != page.Free {
				p.mu.Unlock()
				break
			}
			p.arena.open(id)
			whole := p.arena.padded(id)
			nonzero += countNonzero(whole[off:min(off+piece, len(whole))])
			p.arena.shut(id)
			p.mu.Unlock()
		}
	}
}

// Close waits for the zeroing that is under way and unmaps the arena. It panics while a lease is out, or a released one is
// still pinned. Nothing of the pool but Stats and Close may be used after it.
func (p *Pool) Close() error {
	p.mu.Lock()
	for p.scrubbing != nil {
		wait := p.scrubbing
		p.mu.Unlock()
		<-wait
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if out := p.pages - p.free.len(); out != 0 {
		panic(fmt.Sprintf("pool: closed with %d pages reserved, %d fenced, %d pins", p.count.Reserved, p.count.Fenced, p.count.Pins))
	}
	p.closed = true
	return p.arena.unmap()
}

// Geometry of the pool's pages.
func (p *Pool) Geometry() page.Geometry { return p.geometry }

// Boot of the pool: what its tags carry.
func (p *Pool) Boot() page.Boot { return p.boot }
