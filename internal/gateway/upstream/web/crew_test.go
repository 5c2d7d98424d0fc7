package web

import (
	"sync"
	"testing"
	"time"
)

// Every function runs once, however many there are at a time, and no more goroutines than idleLegs stay.
func TestTheCrewRunsEachLegOnce(t *testing.T) {
	var mu sync.Mutex
	ran := map[int]int{}
	for round := range 3 {
		var wg sync.WaitGroup
		hold := make(chan struct{})
		for i := range 4 * idleLegs {
			wg.Add(1)
			start(func() {
				defer wg.Done()
				<-hold
				mu.Lock()
				ran[round<<16|i]++
				mu.Unlock()
			})
		}
		close(hold)
		wg.Wait()
	}
	if len(ran) != 12*idleLegs {
		t.Errorf("%d of %d ran", len(ran), 12*idleLegs)
	}
	for i, n := range ran {
		if n != 1 {
			t.Errorf("%d ran %d times", i, n)
		}
	}
	for end := time.Now().Add(5 * time.Second); crew.idle.Load() > idleLegs; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines wait, of %d", crew.idle.Load(), idleLegs)
		}
	}
}
