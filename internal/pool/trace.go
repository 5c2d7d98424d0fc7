package pool

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
)

// Op is a transition that a pool traces.
type Op uint8

const (
	OpReserve   Op = 1 + iota // a run of pages with consecutive ids was handed over
	OpLandBegin               // the gate let a copy in
	OpLandEnd                 // OK: written; not OK: refused, or overtaken by a fence
	OpSeal                    // the first Count pages of the prompt, or one own page
	OpViewBegin               // one step's reading of the lease's first Count pages, or one page's copy for sending
	OpViewEnd                 //
	OpFence                   // the whole lease
	OpScrub                   // a run of pages with consecutive ids is about to be zeroed
	OpFree                    // the run is zero and free
	numOps
)

var opNames = [numOps]string{"none", "reserve", "land-begin", "land-end", "seal", "view-begin", "view-end", "fence", "scrub", "free"}

func (o Op) String() string {
	if o >= numOps {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Event is one transition. It is a plain value, so that tracing allocates nothing here.
type Event struct {
	Op      Op
	OK      bool // of OpLandEnd; true for the others
	Attempt attempt.ID
	First   page.Tag // of the first page
	Count   int      // pages
}

// emit is called under mu.
func (p *Pool) emit(op Op, l *Lease, first page.Tag, count int) {
	if p.trace != nil {
		p.trace(Event{op, true, l.owner, first, count})
	}
}

// emitRuns traces tags as runs of consecutive ids. It is called under mu.
func (p *Pool) emitRuns(op Op, l *Lease, tags []page.Tag) {
	if p.trace == nil {
		return
	}
	for len(tags) > 0 {
		n := 1
		for n < len(tags) && tags[n].ID == tags[n-1].ID+1 {
			n++
		}
		p.emit(op, l, tags[0], n)
		tags = tags[n:]
	}
}
