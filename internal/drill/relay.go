package drill

import (
	"errors"
	"io"
	"net"
	"sync"

	"github.com/sluicekv/sluice/internal/transport/faultconn"
)

// relay stands between two nodes, and is the network: it can be cut, go silent, or spoil bytes.
type relay struct {
	listen net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	to     string
	conns  map[net.Conn]bool
	cut    bool
	silent [2]bool // toward the listener's peer [0], toward the target [1]
	heal   chan struct{}
	faults []faultconn.Fault // of the next connection, as its dialler sends (out)
	spoilt []*faultconn.Conn
	closed bool
}

func newRelay() (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listen: l, conns: map[net.Conn]bool{}, heal: make(chan struct{})}
	r.wg.Go(r.accept)
	return r, nil
}

func (r *relay) addr() string { return r.listen.Addr().String() }

// point says where the relay leads.
func (r *relay) point(to string) {
	r.mu.Lock()
	r.to = to
	r.mu.Unlock()
}

func (r *relay) accept() {
	for {
		c, err := r.listen.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		to, cut := r.to, r.cut || r.closed
		r.mu.Unlock()
		if cut {
			c.Close()
			continue
		}
		t, err := net.Dial("tcp", to)
		if err != nil {
			c.Close()
			continue
		}
		r.mu.Lock()
		out := t
		if len(r.faults) > 0 {
			f := faultconn.Wrap(t, r.faults...)
			r.faults, r.spoilt, out = nil, append(r.spoilt, f), f
		}
		r.conns[c], r.conns[out] = true, true
		r.mu.Unlock()
		r.wg.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { r.pump(c, out, 1) })
			both.Go(func() { r.pump(out, c, 0) })
			both.Wait()
			r.mu.Lock()
			delete(r.conns, c)
			delete(r.conns, out)
			r.mu.Unlock()
			c.Close()
			out.Close()
		})
	}
}

// pump carries bytes one way. While that way is silent the bytes wait, as behind a dead hop: neither end hears that they do.
func (r *relay) pump(from, to net.Conn, way int) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		for n > 0 {
			r.mu.Lock()
			silent, heal := r.silent[way], r.heal
			r.mu.Unlock()
			if !silent {
				break
			}
			<-heal
		}
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				from.Close()
				to.Close()
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				from.Close()
				to.Close()
				return
			}
			if c, ok := to.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
			return
		}
	}
}

// live is how many connections there are.
func (r *relay) live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) / 2
}

// sever resets every connection and takes no new one until mend.
func (r *relay) sever() int { return r.drop(true) }

// reset resets every connection: the ends dial again.
func (r *relay) reset() int { return r.drop(false) }

func (r *relay) drop(cut bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	n := len(r.conns)
	for c := range r.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		c.Close()
	}
	return n
}

// hush makes the network silent both ways, or only toward the target; it returns the number of connections that it lies on.
func (r *relay) hush(both bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = [2]bool{both, true}
	return len(r.conns) / 2
}

// spoil puts faults on the next connection.
func (r *relay) spoil(f []faultconn.Fault) {
	r.mu.Lock()
	r.faults, r.spoilt = f, nil
	r.mu.Unlock()
}

// fired counts the faults that acted.
func (r *relay) fired() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.spoilt {
		n += len(c.Fired())
	}
	return n
}

// mend makes the network whole.
func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut, r.silent, r.faults = false, [2]bool{}, nil
	close(r.heal)
	r.heal = make(chan struct{})
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.listen.Close()
	r.mend()
	r.drop(true)
	r.wg.Wait()
}
