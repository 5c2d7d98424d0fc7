package pool

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
)

// Op is a transition that a pool traces.
type Op uint8

const (
	OpReserve   Op = 1 + iota // pages with consecutive ids were handed over, each under its next generation
	OpLandBegin               // the gate let a copy in
	OpLandEnd                 // OK: written; not OK: refused, or overtaken by a fence
	OpSeal                    // the prompt's pages; the last of them is the tail
	OpSealOwn                 // one page that the attempt's own compute filled
	OpViewBegin               // one step's reading of the lease's first Count pages, or one page's MAC or copy for sending
	OpViewEnd                 // the same pages
	OpFence                   // all pages that the lease had
	OpScrub                   // pages with consecutive ids are about to be zeroed
	OpFree                    // the same pages are zero and free
	numOps
)

var opNames = [numOps]string{"none", "reserve", "land-begin", "land-end", "seal", "seal-own", "view-begin", "view-end", "fence",
	"scrub", "free"}

func (o Op) String() string {
	if o >= numOps {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Event is one transition of Count pages: of those that its attempt was handed, in the order it was handed them, the ones
// from First on. It is a plain value, so that tracing allocates nothing here.
type Event struct {
	Op      Op
	OK      bool // of OpLandEnd; true for the others
	Attempt attempt.ID
	First   page.Tag
	Count   int
	Writes  int // of OpViewBegin and OpViewEnd: how many of the pages, the last ones, the step may write
}

// emit is called under mu.
func (p *Pool) emit(op Op, l *Lease, first page.Tag, count int) {
	if p.trace != nil {
		p.trace(Event{Op: op, OK: true, Attempt: l.owner, First: first, Count: count})
	}
}

// emitRuns traces tags as runs of consecutive ids. It is called under mu.
func (p *Pool) emitRuns(op Op, l *Lease, tags []page.Tag) {
	if p.trace == nil {
		return
	}
	for run := range runs(tags) {
		p.emit(op, l, run[0], len(run))
	}
}
