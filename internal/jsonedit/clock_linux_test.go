package jsonedit

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// worked is the processor time that f takes: what else runs on the machine does not count.
func worked(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadTime()
	f()
	return threadTime() - from
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
