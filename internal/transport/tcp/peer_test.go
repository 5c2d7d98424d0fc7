package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/transport/faultconn"
	"github.com/sluicekv/sluice/internal/wire"
)

func pageHeader(n int) wire.PageHeader {
	return wire.PageHeader{Attempt: someAttempt, Tag: page.Tag{Boot: 1, ID: 2, Gen: 3}, Length: uint32(n)}
}

// What a peer whose key is good can still get wrong. It writes raw bytes into its end of an open link.
func TestWhatPeersGetWrong(t *testing.T) {
	size := geometry.Bytes()
	whole := append(encoded(t, pageHeader(size)), make([]byte, size)...)
	spoilt := func(b []byte, change func([]byte)) []byte { b = bytes.Clone(b); change(b); return b }
	end := encoded(t, wire.End{Attempt: someAttempt})
	const stay, leave, reset = 0, 1, 2
	for _, c := range []struct {
		name string
		send []byte
		then int
		want error
		text string
	}{
		{"leaves", nil, leave, ErrPeerClosed, ""},
		{"is reset", nil, reset, ErrLost, "reset"},
		{"half a header, and stays", end[:3], stay, ErrStalled, "a header"},
		{"half a header, and leaves", end[:3], leave, ErrHalfFrame, "a header"},
		{"half a frame, and stays", end[:20], stay, ErrStalled, "in end"},
		{"half a frame, and leaves", end[:20], leave, ErrHalfFrame, "in end"},
		{"half a page's head, and stays", whole[:40], stay, ErrStalled, "page's head"},
		{"half a page's head, and leaves", whole[:40], leave, ErrHalfFrame, "page's head"},
		{"half a page, and stays", whole[:size/2], stay, ErrStalled, "a page"},
		{"half a page, and leaves", whole[:size/2], leave, ErrHalfFrame, "a page"},
		{"half a page, and is reset", whole[:size/2], reset, ErrLost, "a page"},
		{"4 GB", spoilt(whole, func(b []byte) { copy(b, "\xff\xff\xff\xff") }), stay, wire.ErrLength, "4294967291"},
		{"a page over the link's bound", encoded(t, pageHeader(size+1)), stay, wire.ErrLength, fmt.Sprintf("%d bytes, at most %d on this link", size+1, size)},
		{"a page whose head says less", spoilt(whole, func(b []byte) { b[wire.HeaderSize+40]-- }), stay, wire.ErrLength, "head says"},
		{"a page whose head says more", spoilt(whole, func(b []byte) { b[wire.HeaderSize+43] = 1 }), stay, wire.ErrLength, "head says"},
		{"a page without its head", spoilt(whole, func(b []byte) { copy(b, "\x10\x00\x00\x00") }), stay, wire.ErrShort, "a page of 12 bytes"},
		{"a page of nobody", spoilt(whole, func(b []byte) { clear(b[wire.HeaderSize : wire.HeaderSize+16]) }), stay, wire.ErrValue, "attempt is 0"},
		{"another version", spoilt(end, func(b []byte) { b[4] = 2 }), stay, wire.ErrVersion, "version 2"},
		{"an unknown kind", spoilt(end, func(b []byte) { b[5] = 99 }), stay, wire.ErrKind, "99"},
		{"a flag", spoilt(end, func(b []byte) { b[7] = 0x80 }), stay, wire.ErrFlags, "0x8000"},
		{"a byte too many", append(spoilt(encoded(t, wire.Ping{}), func(b []byte) { b[0]++ }), 0), stay, wire.ErrLength, ""},
		{"an abort with a byte behind it", append(spoilt(encoded(t, wire.Abort{Attempt: someAttempt, Verdict: refusal}), func(b []byte) { b[0]++ }), 0), stay, wire.ErrTrailing, ""},
		{"garbage", bytes.Repeat([]byte("garbage!"), 1000), stay, wire.ErrVersion, ""},
		{"hello again", encoded(t, helloOf(newTrio().prefill)), stay, ErrUnexpected, "a hello from a prefill on a data link"},
		{"auth again", encoded(t, wire.Auth{}), stay, ErrUnexpected, "auth"},
		{"a grant from prefill", encoded(t, wire.Grant{Attempt: someAttempt, Boot: 1}), stay, ErrUnexpected, "a grant from a prefill"},
		{"a plan on the data link", encoded(t, wire.Plan{Signed: []byte{1}}), stay, ErrUnexpected, "a plan from a prefill"},
	} {
		for _, torn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, torn %v", c.name, torn), func(t *testing.T) {
				t.Parallel()
				f := newTrio()
				f.decode.Timeouts.Frame = 100 * time.Millisecond
				p, d := dataPair(t, f.prefill, f.decode)
				if torn {
					for i := range min(len(c.send), 100) {
						p.conn.Write(c.send[i : i+1])
					}
					p.conn.Write(c.send[min(len(c.send), 100):])
				} else {
					p.conn.Write(c.send)
				}
				switch c.then {
				case leave:
					p.conn.(*net.TCPConn).CloseWrite()
				case reset:
					p.conn.(*net.TCPConn).SetLinger(0)
					p.conn.Close()
				}
				began := time.Now()
				staging := make([]byte, size)
				frame, payload, err := d.Recv(staging)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || frame != nil || payload != nil {
					t.Fatalf("%v, %d bytes, %v", frame, len(payload), err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
				// The first error is the link's, for every call and for ever.
				<-d.Done()
				_, _, again := d.Recv(staging)
				for what, got := range map[string]error{"Err": d.Err(), "Recv": again, "Send": d.Send(wire.Ping{}), "Post": d.Post(wire.Ping{}), "SendPage": d.SendPage(pageHeader(1), []byte{1})} {
					if what == "SendPage" && errors.Is(got, ErrPage) {
						continue // prefill takes no pages: that is said first
					}
					if got != err {
						t.Errorf("%s: %v", what, got)
					}
				}
			})
		}
	}
}

func TestWhatPeersGetWrongOnAControlLink(t *testing.T) {
	for _, c := range []struct {
		name string
		send []byte
		want error
	}{
		{"4 GB", []byte{255, 255, 255, 255, wire.Version, byte(wire.KindPrompt), 0, 0}, wire.ErrLength},
		{"half a prompt", encoded(t, wire.Prompt{Attempt: someAttempt, IDs: make([]int32, 1000)})[:100], ErrStalled},
		{"a page", append(encoded(t, pageHeader(8)), make([]byte, 8)...), ErrUnexpected},
		{"an outcome from the gateway", encoded(t, wire.Outcome{Attempt: someAttempt, Verdict: refusal}), ErrUnexpected},
		{"garbage", []byte("garbage!garbage!"), wire.ErrVersion},
	} {
		f := newTrio()
		f.decode.Timeouts.Frame = 100 * time.Millisecond
		g, w := controlPair(t, f.gateway, f.decode)
		g.conn.Write(c.send)
		if frame, err := w.Recv(); !errors.Is(err, c.want) || frame != nil {
			t.Errorf("%s: %v, %v", c.name, frame, err)
		}
	}
	f := newTrio()
	g, w := controlPair(t, f.gateway, f.decode)
	g.Close()
	if _, err := w.Recv(); !errors.Is(err, ErrPeerClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A length that is only announced costs no memory.
func TestAnnouncedLengthsCostNothing(t *testing.T) {
	f := newTrio()
	f.prefill.Timeouts.Frame = 50 * time.Millisecond
	p, d := dataPair(t, f.prefill, f.decode)
	grant := encoded(t, wire.Grant{Attempt: someAttempt, Boot: 1, Pages: make([]wire.GrantedPage, wire.MaxGrantPages)})
	d.conn.Write(grant[:100])
	// Twelve megabytes get a longer time than a small frame, at a mebibyte a second: the peer leaves before it is over.
	time.AfterFunc(50*time.Millisecond, func() { d.conn.Close() })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := p.Recv(nil)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrHalfFrame) && !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > firstBody+64<<10 {
		t.Errorf("%d bytes allocated for %d that came", got, 100)
	}
}

func TestLargeFramesComeThrough(t *testing.T) {
	f := newTrio()
	p, d := dataPair(t, f.prefill, f.decode)
	pages := make([]wire.GrantedPage, 200_000)
	for i := range pages {
		pages[i] = wire.GrantedPage{ID: page.ID(i), Gen: page.Generation(3 * i)}
	}
	sent := wire.Grant{Attempt: someAttempt, Boot: 1, Pages: pages}
	go d.Send(sent)
	got, _, err := p.Recv(nil)
	if err != nil {
		t.Fatal(err)
	}
	if g := got.(wire.Grant); len(g.Pages) != len(pages) || g.Pages[123_456] != pages[123_456] {
		t.Error("another grant came")
	}
	if cap(p.in.body) > keepBuffer {
		t.Errorf("the link keeps %d bytes", cap(p.in.body))
	}
}

// A peer that does not read cannot hold a sender for ever, and cannot make it queue without end.
func TestPeersThatDoNotRead(t *testing.T) {
	f := newTrio()
	f.prefill.Timeouts.Write = 150 * time.Millisecond
	payload := make([]byte, geometry.Bytes())

	p, _ := dataPair(t, f.prefill, f.decode)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			for {
				if err := p.SendPage(pageHeader(len(payload)), payload); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range 2 {
		select {
		case err := <-errs:
			if !errors.Is(err, ErrUnread) {
				t.Errorf("SendPage: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("SendPage still waits")
		}
	}

	f.gateway.Timeouts.Write, f.gateway.Queue = 150*time.Millisecond, 64<<10
	g, _ := controlPair(t, f.gateway, f.decode)
	prompt := wire.Prompt{Attempt: someAttempt, IDs: make([]int32, 8000)}
	for {
		if err := g.Send(prompt); err != nil {
			if !errors.Is(err, ErrUnread) {
				t.Errorf("Send: %v", err)
			}
			break
		}
		if n := queuedBytes(g.out); n > 64<<10 {
			t.Fatalf("%d bytes are queued", n)
		}
	}

	f.gateway.Timeouts.Write = time.Minute
	g, _ = controlPair(t, f.gateway, f.decode)
	began := time.Now()
	for {
		if err := g.Post(prompt); err != nil {
			if !errors.Is(err, ErrOverflow) || !errors.Is(g.Err(), ErrOverflow) {
				t.Errorf("Post: %v", err)
			}
			break
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Post waited: %s", took)
	}
}

func queuedBytes(s *sender) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queued)
}

// gate is a connection whose writes, once it is armed, wait until it is opened or closed; it counts them.
type gate struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	open   chan struct{}
	writes int
}

func newGate(c net.Conn) *gate { return &gate{Conn: c, closed: make(chan struct{})} }

func (g *gate) arm(open chan struct{}) {
	g.mu.Lock()
	g.open, g.writes = open, 0
	g.mu.Unlock()
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	open := g.open
	g.writes++
	g.mu.Unlock()
	if open != nil {
		select {
		case <-open:
		case <-g.closed:
			return 0, net.ErrClosed
		}
	}
	return g.Conn.Write(b)
}

func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// Frames that gather while the socket is busy leave in one write; Send waits for room and no longer.
func TestSmallFramesLeaveTogether(t *testing.T) {
	f := newTrio()
	var g *gate
	f.prefill.Wrap = func(c net.Conn) net.Conn { g = newGate(c); return g }
	f.prefill.Queue = 4096
	p, d := dataPair(t, f.prefill, f.decode)
	open := make(chan struct{})
	g.arm(open)

	const frames = 1000 // of 17 bytes: several queues full
	sent := make(chan error, 1)
	go func() {
		for i := range frames {
			if err := p.Send(wire.Ping{Nonce: uint64(i)}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for queuedBytes(p.out) < 4000 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-sent:
		t.Fatal("17000 bytes went into a queue of 4096:", err)
	default:
	}
	close(open)
	for i := range frames {
		got, _, err := d.Recv(nil)
		if err != nil || got.(wire.Ping).Nonce != uint64(i) {
			t.Fatalf("frame %d is %v, %v", i, got, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.writes > frames/10 {
		t.Errorf("%d frames took %d writes", frames, g.writes)
	}
}

func TestConcurrentSendersKeepTheirOrder(t *testing.T) {
	f := newTrio()
	f.prefill.Queue = 512
	p, d := dataPair(t, f.prefill, f.decode)
	const senders, each = 8, 150
	payload := bytes.Repeat([]byte{3}, 2000)
	for s := range senders {
		go func() {
			for i := range each {
				var err error
				if i%5 == 4 {
					h := pageHeader(len(payload))
					h.Ordinal, h.Tag.ID = uint32(i), page.ID(s)
					err = p.SendPage(h, payload)
				} else {
					err = p.Send(wire.Ping{Nonce: uint64(s)<<32 | uint64(i)})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	var next [senders]uint64
	staging := make([]byte, geometry.Bytes())
	for range senders * each {
		got, body, err := d.Recv(staging)
		if err != nil {
			t.Fatal(err)
		}
		var s, i uint64
		switch got := got.(type) {
		case wire.Ping:
			s, i = got.Nonce>>32, got.Nonce&0xffffffff
		case wire.PageHeader:
			s, i = uint64(got.Tag.ID), uint64(got.Ordinal)
			if !bytes.Equal(body, payload) {
				t.Fatal("another payload")
			}
		}
		if i != next[s] {
			t.Fatalf("sender %d: %d came when %d was next", s, i, next[s])
		}
		next[s]++
	}
}

func TestFramesThatCannotBeSent(t *testing.T) {
	f := newTrio()
	p, d := dataPair(t, f.prefill, f.decode)
	if err := p.Send(wire.End{}); !errors.Is(err, wire.ErrValue) {
		t.Errorf("a frame of nobody: %v", err)
	}
	big := make([]byte, geometry.Bytes()+1)
	if err := p.SendPage(pageHeader(len(big)), big); !errors.Is(err, ErrPage) {
		t.Errorf("a page that the peer does not take: %v", err)
	}
	h := pageHeader(8)
	h.Attempt = [16]byte{}
	if err := p.SendPage(h, make([]byte, 8)); !errors.Is(err, wire.ErrValue) {
		t.Errorf("a page of nobody: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a header that lies about its payload was sent")
			}
		}()
		p.SendPage(pageHeader(7), make([]byte, 8))
	}()
	// None of it reached the wire, and the link lives.
	if err := p.Send(wire.Ping{Nonce: 1}); err != nil {
		t.Fatal(err)
	}
	if got, _, err := d.Recv(nil); err != nil || got != wire.Frame(wire.Ping{Nonce: 1}) {
		t.Fatal(got, err)
	}
}

func TestCloseEndsEveryWait(t *testing.T) {
	f := newTrio()
	p, d := dataPair(t, f.prefill, f.decode)
	errs := make(chan error, 3)
	go func() { _, _, err := p.Recv(nil); errs <- err }()
	payload := make([]byte, geometry.Bytes())
	go func() {
		for {
			if err := p.SendPage(pageHeader(len(payload)), payload); err != nil {
				errs <- err
				return
			}
		}
	}()
	go func() {
		for {
			if err := p.Send(wire.Manifest{Attempt: someAttempt, Verdict: refusal}); err != nil {
				errs <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // whether all of them wait by now does not matter: none may wait for ever
	p.Close()
	for range 3 {
		select {
		case err := <-errs:
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("something still waits")
		}
	}
	if !errors.Is(p.Err(), ErrClosed) || p.Close() != nil {
		t.Error("a second Close, or Err:", p.Err())
	}
	d.Close()
}

func TestShutdownSendsWhatIsQueued(t *testing.T) {
	for _, encrypt := range []bool{false, true} {
		f := newTrio()
		f.prefill.Encrypt, f.decode.Encrypt = encrypt, encrypt
		p, d := dataPair(t, f.prefill, f.decode)
		for range 10 {
			d.Send(wire.Ping{}) // unread at prefill: a plain close would reset the connection, and what follows with it
		}
		for i := range 1000 {
			if err := p.Send(wire.Ping{Nonce: uint64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		down := make(chan error, 1)
		go func() { down <- p.Shutdown(ctx) }()
		for i := range 1000 {
			got, _, err := d.Recv(nil)
			if err != nil || got.(wire.Ping).Nonce != uint64(i) {
				t.Fatalf("frame %d is %v, %v", i, got, err)
			}
		}
		if _, _, err := d.Recv(nil); !errors.Is(err, ErrPeerClosed) {
			t.Errorf("after the last: %v", err)
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
		cancel()
	}
	// A network that stands still: Shutdown gives up with its context, and says so.
	f := newTrio()
	f.prefill.Wrap = func(c net.Conn) net.Conn {
		return faultconn.Wrap(c, faultconn.Fault{Side: faultconn.Out, Kind: faultconn.Stall, At: 2000})
	}
	p, _ := dataPair(t, f.prefill, f.decode)
	for range 1000 {
		if err := p.Send(wire.Ping{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
}

// named are all the ends that a link or a handshake may come to.
var named = []error{ErrClosed, ErrPeerClosed, ErrLost, ErrHalfFrame, ErrStalled, ErrUnread, ErrUnexpected, ErrHandshake, ErrGarbage, ErrEncryption,
	ErrSignature, ErrRefused, wire.ErrVersion, wire.ErrKind, wire.ErrFlags, wire.ErrLength, wire.ErrShort, wire.ErrTrailing, wire.ErrValue,
	wire.ErrMismatch, ErrTLS, keyring.ErrUntrusted, context.DeadlineExceeded}

// Whatever a network does to the bytes, both ends come to an end that has a name, in bounded time.
func TestFaultyNetworks(t *testing.T) {
	check := func(t *testing.T, seed uint64, err error) {
		for _, n := range named {
			if errors.Is(err, n) {
				return
			}
		}
		if err != nil {
			t.Errorf("seed %d: an end without a name: %v", seed, err)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	for seed := range uint64(60) {
		all.Go(func() { faultyNetwork(t, seed, check) })
	}
}

func faultyNetwork(t *testing.T, seed uint64, check func(*testing.T, uint64, error)) {
	f := newTrio()
	quick := Timeouts{time.Second, 300 * time.Millisecond, 300 * time.Millisecond}
	f.prefill.Timeouts, f.decode.Timeouts = quick, quick
	f.prefill.Encrypt, f.decode.Encrypt = seed%3 == 0, seed%3 == 0
	reach := int64(400) // bytes within which the faults are: the handshake, or some pages
	if seed%2 == 0 {
		reach = 100_000
	}
	f.prefill.Wrap = func(c net.Conn) net.Conn { return faultconn.Wrap(c, faultconn.Random(seed, 2, reach)...) }
	l, r := dataDoor(t, f.decode)
	accepted := make(chan *DataLink, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		d, _ := l.Accept(ctx)
		accepted <- d
	}()
	p, err := DialData(t.Context(), l.Addr().String(), f.prefill)
	check(t, seed, err)
	if err != nil {
		// The listener may have thought better of the handshake: then its link ends as well.
		select {
		case d := <-accepted:
			_, _, err := d.Recv(make([]byte, geometry.Bytes()))
			check(t, seed, err)
			d.Close()
		case err := <-r:
			check(t, seed, err)
			cancel()
			<-accepted
		}
		return
	}
	ends := make(chan error, 1)
	go func() {
		d := <-accepted
		if d == nil {
			ends <- nil
			return
		}
		staging := make([]byte, geometry.Bytes())
		var err error
		for err == nil {
			_, _, err = d.Recv(staging)
		}
		d.Close()
		ends <- err
	}()
	payload := make([]byte, geometry.Bytes())
	for range 5 {
		if err = p.SendPage(pageHeader(len(payload)), payload); err != nil {
			break
		}
	}
	check(t, seed, err)
	ctx2, cancel2 := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel2()
	check(t, seed, p.Shutdown(ctx2))
	select {
	case err := <-ends:
		check(t, seed, err)
	case err := <-r:
		check(t, seed, err)
		cancel()
		<-ends
	}
}
