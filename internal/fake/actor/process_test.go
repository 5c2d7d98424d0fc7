package actor

import (
	"net/http"
	"testing"
	"time"
)

// A request that outlives its process takes pages of that process and gives them back there: those of the next one are all free.
func TestACallBelongsToItsProcess(t *testing.T) {
	w := NewWorker(NewStage(nil), Config{Pool: 64})
	came, restarted, free := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	w.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		before := w.Process(r.Context())
		close(came)
		<-restarted
		p := w.Process(r.Context())
		p.Take(r.Context(), 2, time.Second)
		if p != before || !p.Ended() {
			t.Error("the call is another process's now")
		}
		free <- w.Pages().Available()
	})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Kill()
	go http.Get(w.URL())
	<-came
	if err := w.Restart(nil); err != nil {
		t.Fatal(err)
	}
	close(restarted)
	if n := <-free; n != 4 {
		t.Errorf("%d pages of the new process are free, of 4", n)
	}
}
