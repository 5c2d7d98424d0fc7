package worker

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/sluicekv/sluice/internal/wire"
)

// relay stands between prefill and decode on an unencrypted data link. It passes whole frames, and asks before each.
type relay struct {
	net.Listener
	to   string
	ask  func(toDecode bool, n int, k wire.Kind) deed // n counts the frames of a direction on a connection
	wg   sync.WaitGroup
	once sync.Once
	mu   sync.Mutex
	open []net.Conn
	held chan struct{} // closed when the relay ends: held frames are dropped
}

// deed is what the relay does at a frame.
type deed int

const (
	pass deed = iota
	cut       // close both sides before the frame
	tear      // pass half of it, then close both sides
	hold      // pass nothing more in this direction, and keep the connection open
)

func newRelay(t testing.TB, to string, ask func(toDecode bool, n int, k wire.Kind) deed) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to, ask: ask, held: make(chan struct{})}
	r.wg.Go(r.run)
	t.Cleanup(r.end)
	return r
}

// cutAll cuts every connection, once; later ones are not taken.
func (r *relay) cutAll() { r.once.Do(r.stop) }

func (r *relay) end() { r.once.Do(r.stop); r.wg.Wait() }

func (r *relay) stop() {
	r.Listener.Close()
	r.mu.Lock()
	close(r.held)
	for _, c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
}

func (r *relay) run() {
	for {
		a, err := r.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", r.to)
		if err != nil {
			a.Close()
			continue
		}
		r.mu.Lock()
		r.open = append(r.open, a, b)
		select {
		case <-r.held: // ended meanwhile
			a.Close()
			b.Close()
		default:
		}
		r.mu.Unlock()
		r.wg.Go(func() { r.carry(a, b, true) })
		r.wg.Go(func() { r.carry(b, a, false) })
	}
}

func (r *relay) carry(from, to net.Conn, toDecode bool) {
	defer from.Close()
	defer to.Close()
	for n := 0; ; n++ {
		head := make([]byte, wire.HeaderSize)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		body := make([]byte, binary.LittleEndian.Uint32(head)-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		frame := append(head, body...)
		switch r.ask(toDecode, n, wire.Kind(head[5])) {
		case cut:
			return
		case tear:
			to.Write(frame[:len(frame)/2])
			return
		case hold:
			<-r.held
			return
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}
