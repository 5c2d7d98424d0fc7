package foreign

import (
	"net"
	"strconv"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// mark is what tells one process of a worker from the next. Engines say it in different places, and some nowhere: parts that are
// empty say nothing.
type mark struct {
	start    string  // process_start_time_seconds
	startup  string  // SGLang: how long it took to start, and its seed
	engineID string  // Mooncake
	prompts  float64 // prompt tokens that it counted, -1 if it does not say: they never shrink while it lives
	lost     bool    // it was not there in between
}

func markOf(r reading) mark {
	prompts, err := strconv.ParseFloat(r.node.Text(facts.PromptTokens), 64)
	if err != nil {
		prompts = -1
	}
	return mark{r.node.Text(facts.BootTime), r.node.Text(facts.Startup), r.engineID, prompts, false}
}

// after reports whether m is of another process than the one before.
func (m mark) after(before mark) bool {
	other := func(a, b string) bool { return a != "" && b != "" && a != b }
	return other(m.start, before.start) || other(m.startup, before.startup) || other(m.engineID, before.engineID) ||
		m.prompts >= 0 && m.prompts < before.prompts
}

// same reports whether m is certainly of the process before.
func (m mark) same(before mark) bool {
	return m.start != "" && m.start == before.start || m.startup != "" && m.startup == before.startup
}

func (m mark) text() string {
	switch {
	case m.start != "":
		return m.start
	case m.engineID != "":
		return m.engineID
	}
	return m.startup
}

// Gap notes that a worker's process may be another now: a connection to it was refused or cut. It gets no new attempt until its facts
// were read again, which begins at once.
func (f *Fleet) Gap(n *Node) { f.gap(n, "a connection to it was refused or cut") }

func (f *Fleet) gap(n *Node, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n = n.now(); n.gone || n.suspect != "" {
		return
	}
	n.suspect = why
	n.era = eras.Add(1)
	f.change()
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// Watches of idle connections.
const (
	maxStrikes = 3
	shortWatch = 10 * time.Second
)

// watch waits until a worker's process ends, on a connection on which nothing is ever sent: uvicorn, which both engines run on, keeps
// such a connection. Where something else cuts it again and again, it is not tried any more.
func (f *Fleet) watch(n *Node, c net.Conn) {
	began := time.Now()
	over := make(chan struct{})
	go func() {
		defer close(over)
		var b [1]byte
		_, _ = c.Read(b[:])
	}()
	select {
	case <-over:
	case <-n.ctx.Done():
		c.Close()
		<-over
		return
	}
	c.Close()
	f.mu.Lock()
	n.watching = false
	if time.Since(began) < shortWatch {
		n.strikes++
	} else {
		n.strikes = 0
	}
	f.mu.Unlock()
	f.gap(n, "a connection to it was cut")
}
