// Package verdict is the one answer: the single terminal outcome of an attempt, and the cell that takes it once.
//
// Every layer that can say no says it with a Verdict; the wire carries it whole; no layer turns it into a boolean, a
// finish reason or a count. A refusal of the same request reads the same whichever layer refused: the text that a
// client sees is made from Code and Reason, and Reason of a refusal is written by the constructors in
// refusals.go, from the plan's numbers alone. Lock order: a Cell's lock is a leaf.
package verdict

import (
	"fmt"
	"sync"
)

// Verdict is a terminal outcome. The zero Verdict is no verdict.
type Verdict struct {
	Code   Code   `json:"code"`
	Layer  Layer  `json:"layer"`  // who set it
	Reason string `json:"reason"` // numbers and ids only, never text or token ids of a request
	Status int    `json:"status"` // HTTP
}

// OK reports whether the attempt ended well.
func (v Verdict) OK() bool { return v.Code == OK }

// IsZero reports whether v is no verdict at all.
func (v Verdict) IsZero() bool { return v == Verdict{} }

// At returns v as set by layer l.
func (v Verdict) At(l Layer) Verdict { v.Layer = l; return v }

func (v Verdict) String() string {
	return fmt.Sprintf("%s by %s: %s (%d)", v.Code, v.Layer, v.Reason, v.Status)
}

// Error makes a refusal an error, so that it can travel a Go call chain unchanged (errors.As finds it again).
func (v Verdict) Error() string { return v.String() }

// Cell takes the one verdict of an attempt. Its zero value is empty and ready.
type Cell struct {
	mu   sync.Mutex
	v    Verdict
	done chan struct{}
	// Conflict is called, outside the lock, when a second, different verdict arrives. Test builds leave it nil,
	// which panics; release builds record it (invariant.Conflict). Set it before the Cell is shared.
	Conflict func(first, second Verdict)
}

// Set stores v if the cell is empty and reports whether it did. The zero Verdict is never stored: it panics.
// A second Set with the same code is a repetition and does nothing; with another code it is a broken invariant.
func (c *Cell) Set(v Verdict) (first bool) {
	if v.IsZero() {
		panic("verdict: the zero verdict was set")
	}
	c.mu.Lock()
	if c.v.IsZero() {
		c.v = v
		if c.done == nil {
			c.done = make(chan struct{})
		}
		close(c.done)
		c.mu.Unlock()
		return true
	}
	old, conflict := c.v, c.Conflict
	c.mu.Unlock()
	if old.Code == v.Code {
		return false
	}
	if conflict == nil {
		panic(fmt.Sprintf("verdict: set twice: first %v, then %v", old, v))
	}
	conflict(old, v)
	return false
}

// TrySet stores v if the cell is empty, and reports whether it did. It is for racing ends (client gone, deadline,
// peer lost) of which whichever comes first is right; Set is for a layer that believes it is the only one.
func (c *Cell) TrySet(v Verdict) (first bool) {
	if v.IsZero() {
		panic("verdict: the zero verdict was set")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.v.IsZero() {
		return false
	}
	c.v = v
	if c.done == nil {
		c.done = make(chan struct{})
	}
	close(c.done)
	return true
}

// Get returns the verdict, or false while there is none.
func (c *Cell) Get() (Verdict, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v, !c.v.IsZero()
}

// Done is closed once there is a verdict.
func (c *Cell) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
	}
	return c.done
}
