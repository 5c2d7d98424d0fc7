package tcp

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// A page is bounded by what this end said in its hello, and by the staging that it is read into, whichever is less.
func TestPagesAreBoundedByHelloAndByStaging(t *testing.T) {
	size := geometry.Bytes()
	for name, c := range map[string]struct{ staging, page, most int }{
		"staging is larger than the hello":  {2 * size, size + 1, size},
		"staging is smaller than the hello": {size / 2, size, size / 2},
		"no staging":                        {0, 1, 0},
	} {
		f := newTrio()
		p, d := dataPair(t, f.prefill, f.decode)
		p.conn.Write(append(encoded(t, pageHeader(c.page)), make([]byte, c.page)...))
		frame, payload, err := d.Recv(make([]byte, c.staging))
		if !errors.Is(err, wire.ErrLength) || frame != nil || payload != nil {
			t.Errorf("%s: %v, %d bytes, %v", name, frame, len(payload), err)
		}
	}
}

// The time for a frame ends with the frame: a link may then be silent for as long as it likes.
func TestSilenceBetweenFramesIsNoStall(t *testing.T) {
	f := newTrio()
	f.decode.Timeouts.Frame = 60 * time.Millisecond
	p, d := dataPair(t, f.prefill, f.decode)
	ping := encoded(t, wire.Ping{Nonce: 1})
	var first time.Time
	go func() {
		p.conn.Write(ping[:10])
		time.Sleep(20 * time.Millisecond)
		p.conn.Write(ping[10:])
		first = time.Now()
		time.Sleep(150 * time.Millisecond)
		p.conn.Write(ping)
	}()
	for range 2 {
		if _, _, err := d.Recv(nil); err != nil {
			t.Fatal(err)
		}
	}
	if gap := time.Since(first); gap < 100*time.Millisecond {
		t.Errorf("the second frame came after %s: nothing was tested", gap)
	}
}

// Shutdown's last frames arrive although the peer reads late and although this end has unread bytes: a socket closed in that state
// is reset, and what the kernel still had to send is thrown away.
func TestShutdownWaitsForWhatTheKernelStillHas(t *testing.T) {
	f := newTrio()
	p, d := dataPair(t, f.prefill, f.decode)
	for range 10 {
		if err := d.Send(wire.Ping{}); err != nil {
			t.Fatal(err)
		}
	}
	long := verdict.Of(verdict.Internal, verdict.Prefill, "%0900d", 7)
	const frames = 600
	for range frames {
		if err := p.Send(wire.Abort{Attempt: someAttempt, Verdict: long}); err != nil {
			t.Fatal(err)
		}
	}
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(t.Context()) }()
	for drained := false; !drained; time.Sleep(time.Millisecond) {
		p.out.mu.Lock()
		drained = p.out.closing && len(p.out.queued) == 0 && !p.out.writing
		p.out.mu.Unlock()
	}
	time.Sleep(30 * time.Millisecond) // a Shutdown that does not wait would have closed by now
	for i := range frames {
		if _, _, err := d.Recv(nil); err != nil {
			t.Fatalf("after %d of %d frames: %v", i, frames, err)
		}
	}
	if _, _, err := d.Recv(nil); !errors.Is(err, ErrPeerClosed) {
		t.Errorf("after the last: %v", err)
	}
	d.Close()
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestShutdownTakesNothingMore(t *testing.T) {
	f := newTrio()
	var g *gate
	f.prefill.Wrap = func(c net.Conn) net.Conn { g = newGate(c); return g }
	p, d := dataPair(t, f.prefill, f.decode)
	open := make(chan struct{})
	g.arm(open)
	if err := p.Send(wire.Ping{Nonce: 1}); err != nil {
		t.Fatal(err)
	}
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(within(t, 5*time.Second)) }()
	for closing := false; !closing; time.Sleep(time.Millisecond) {
		p.out.mu.Lock()
		closing = p.out.closing
		p.out.mu.Unlock()
	}
	if err := p.Send(wire.Ping{Nonce: 2}); !errors.Is(err, ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if err := p.Post(wire.Ping{Nonce: 2}); !errors.Is(err, ErrClosed) {
		t.Errorf("Post: %v", err)
	}
	if p.Err() != nil {
		t.Errorf("refusing a frame ended the link: %v", p.Err())
	}
	close(open)
	if err := p.SendPage(pageHeader(1), []byte{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("SendPage: %v", err)
	}
	if got, _, err := d.Recv(nil); err != nil || got != wire.Frame(wire.Ping{Nonce: 1}) {
		t.Error(got, err)
	}
	if _, _, err := d.Recv(nil); !errors.Is(err, ErrPeerClosed) && !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	d.Close()
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// A Send that waits for room hears of the link's end even if nobody writes any more.
func TestWaitingSendersHearOfTheEnd(t *testing.T) {
	f := newTrio()
	f.prefill.Queue = 100
	p, _ := dataPair(t, f.prefill, f.decode)
	p.out.turn.Lock() // nobody can write
	sent := make(chan error, 1)
	go func() {
		for {
			if err := p.Send(wire.Ping{}); err != nil {
				sent <- err
				return
			}
		}
	}()
	for queuedBytes(p.out) < 80 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond) // let it wait
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	select {
	case err := <-sent:
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("still waiting")
	}
	p.out.turn.Unlock()
	<-closed
}

// Closing an encrypted link whose peer does not read takes a moment and no more, although TLS would like to say goodbye.
func TestCloseDoesNotWaitForTheGoodbye(t *testing.T) {
	f := newTrio()
	var way *gate
	f.gateway.Wrap = func(c net.Conn) net.Conn { way = newGate(c); return way }
	g, _ := controlPair(t, f.gateway, f.decode)
	way.arm(make(chan struct{})) // from now on nothing can be written
	began := time.Now()
	g.Close()
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %s", took)
	}
}
