package lyingtable

import (
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/guard"
)

var hangUps = flag.Int("hangups", 1000, "clients that hang up")

// Clients that hang up, at whatever moment - amid their request, before an answer, amid one - on every engine: nothing is counted against
// anybody, no page stays, the gateway keeps nothing, and who comes next is served. -hangups says how many.
func TestManyClientsHangUp(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the release build shows it")
	}
	t.Parallel()
	n := *hangUps
	if testing.Short() {
		n = min(n, 200)
	}
	s := newSoak(t, quick)
	s.hangUp(n / 5)
	early := s.settled()
	begun := time.Now()
	answered := s.hangUp(n - n/5)
	took := time.Since(begun)
	late := s.settled()
	t.Logf("%d clients hung up, %.0f a second, of the last %d %d with a part of an answer", n, float64(n-n/5)/took.Seconds(), n-n/5, answered)
	t.Logf("the gateway keeps after the first %d: %v", n/5, early)
	t.Logf("and after all: %v", late)
	s.flat(early, late)
	if answered == 0 || answered == int64(n-n/5) {
		t.Error("the clients all left at the same moment")
	}
	if m := s.admin("/metrics"); strings.Contains(m, "sluice_incidents_total{") {
		t.Errorf("incidents: %.2000s", s.admin("/admin/incidents"))
	}
	s.run(40)
	if s.served.Load() < 20 {
		t.Errorf("%d of those who came next were served", s.served.Load())
	}
}

// hangUp has n clients hang up, 32 at a time, and returns how many had a part of an answer.
func (s *soak) hangUp(n int) int64 {
	var wg sync.WaitGroup
	var answered atomic.Int64
	turns := newTurns(32)
	for i := range n {
		turns.run(&wg, func() {
			c, err := net.Dial("tcp", s.g.Addr)
			if err != nil {
				s.t.Error(err)
				return
			}
			defer c.Close()
			b := fmt.Sprintf(`{"model":%q,"prompt":"%s","max_tokens":60,"stream":%v}`, fake.Engines()[i%len(fake.Engines())], strings.Repeat("harbour ", i%30), i%2 == 0)
			q := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
			if i%7 == 0 {
				q = q[:len(q)-i%len(b)] // amid the request
			}
			io.WriteString(c, q)
			if i%3 > 0 {
				patience := time.Duration(i%7*3) * time.Millisecond
				if i%3 == 2 && i%7 > 0 {
					patience = 10 * time.Second // it has its part, or the whole, and goes
				}
				c.SetReadDeadline(time.Now().Add(patience))
				if m, _ := io.ReadFull(c, make([]byte, 8*(i%20))); m > 0 {
					answered.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return answered.Load()
}
