package tcp

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Strangers that open connections and say nothing, or say it very slowly, keep nobody out and cost little.
func TestSlowStrangersKeepNobodyOut(t *testing.T) {
	f := newTrio()
	f.decode.Pending = 8
	l, r := dataDoor(t, f.decode)
	hello := encoded(t, helloOf(f.prefill))

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop := make(chan struct{})
	var drips sync.WaitGroup
	for i := range 40 {
		conn := knockAt(t, l.Addr())
		if i%2 == 0 {
			continue
		}
		drips.Go(func() { // a byte now and then
			for _, b := range hello {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	p, err := DialData(within(t, 10*time.Second), l.Addr().String(), f.prefill)
	if err != nil {
		t.Fatal("kept out:", err)
	}
	defer p.Close()
	d, err := l.Accept(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("40 strangers hold %d bytes", grown)
	}
	for range 30 {
		if err := r.next(t); !errors.Is(err, ErrCrowded) {
			t.Fatal(err)
		}
	}
	close(stop)
	drips.Wait()
}

// A crowd of honest diallers, more than there are places, all come in: nobody pushes out a neighbour that is getting on.
func TestACrowdOfHonestDiallers(t *testing.T) {
	f := newTrio()
	f.decode.Pending = 2
	l, r := dataDoor(t, f.decode)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			p, err := DialData(within(t, 10*time.Second), l.Addr().String(), f.prefill)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if _, _, err := p.Recv(nil); !errors.Is(err, ErrPeerClosed) && !errors.Is(err, ErrLost) {
				t.Error(err)
			}
		})
		all.Go(func() {
			d, err := l.Accept(within(t, 10*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			d.Close()
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case err := <-r:
		t.Errorf("refused: %v", err)
		<-done
	}
}

func TestListenersEnd(t *testing.T) {
	f := newTrio()
	l, r := dataDoor(t, f.decode)
	knockAt(t, l.Addr())
	accepting := make(chan error, 1)
	go func() { _, err := l.Accept(context.Background()); accepting <- err }()
	for {
		l.mu.Lock()
		n := l.pending.Len()
		l.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if err := r.next(t); !errors.Is(err, ErrClosed) {
		t.Errorf("the handshake in progress: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	l2, _ := dataDoor(t, f.decode)
	if _, err := l2.Accept(ctx); err == nil || err.Error() != "enough" {
		t.Errorf("Accept with a cancelled context: %v", err)
	}
	if _, err := ListenData("256.0.0.1:0", f.decode); err == nil {
		t.Error("listening nowhere")
	}
}

// A link that nobody accepts does not stay.
func TestLinksThatNobodyAccepts(t *testing.T) {
	f := newTrio()
	f.decode.Timeouts.Handshake = 500 * time.Millisecond
	l, _ := dataDoor(t, f.decode)
	p, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, _, err := p.Recv(nil); !errors.Is(err, ErrPeerClosed) {
		t.Error(err)
	}
}

func TestSocketOptions(t *testing.T) {
	f := newTrio()
	p, d := dataPair(t, f.prefill, f.decode)
	for name, l := range map[string]*DataLink{"dialled": p, "accepted": d} {
		checkSocket(t, name, l.conn.(*net.TCPConn))
	}
}
