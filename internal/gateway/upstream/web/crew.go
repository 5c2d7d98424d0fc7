package web

import "sync/atomic"

// idleLegs is how many goroutines wait for the next leg, at most: some 16 KiB of stack each.
const idleLegs = 64

// crew runs legs on goroutines that ran legs before. A leg needs a deep stack, and a new goroutine would grow one step by step, by
// copying, for every request.
var crew struct {
	work chan func()
	idle atomic.Int32
}

func init() { crew.work = make(chan func()) }

// start runs f on another goroutine.
func start(f func()) {
	select {
	case crew.work <- f:
	default:
		go serve(f)
	}
}

func serve(f func()) {
	for ; f != nil; f = await() {
		f()
	}
}

// await returns what is to be run next, or nil where enough goroutines wait already.
func await() func() {
	defer crew.idle.Add(-1)
	if crew.idle.Add(1) > idleLegs {
		return nil
	}
	return <-crew.work
}
