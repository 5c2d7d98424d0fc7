package pool

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shape of the tests' pages: 16 tokens, 1024 bytes, in 4096 of the arena.
var shape = page.Geometry{Tokens: 16, Layers: 1, KVHeads: 2, HeadDim: 8, Layout: page.LayoutPairs16}

// newPool makes a pool whose traces are replayed and whose end is checked: all pages free, and all bytes zero.
func newPool(t testing.TB, pages int, edit ...func(*Config)) *Pool {
	t.Helper()
	cfg := Config{Role: "test", Boot: page.NewBoot(), Geometry: shape, Pages: pages}
	r := newReplay(pages)
	cfg.Trace = r.event
	for _, e := range edit {
		e(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		unlocked := make(chan struct{})
		go func() { p.Stats(); close(unlocked) }()
		select {
		case <-unlocked:
		case <-time.After(patience):
			t.Error("the pool's lock is held: something panicked under it")
			return
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Free != s.Total || s.Reserved != 0 || s.Fenced != 0 || s.Pins != 0 || s.Granted != s.Released {
			t.Errorf("pages did not come back: %+v", s)
		}
		if n := p.ScanFree(); n != 0 {
			t.Errorf("%d bytes of free pages are not zero", n)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// plan of a new attempt.
func plan() admission.Plan {
	return admission.Plan{Attempt: attempt.New(), PromptTokens: 1, MaxTokens: 1, Budget: 1}
}

func ticket(t testing.TB) admission.Ticket {
	t.Helper()
	tk, v := admission.Admit(plan(), capacity.Limit{Tokens: 1 << 20})
	if !v.IsZero() {
		t.Fatal(v)
	}
	return tk
}

func reserve(t testing.TB, p *Pool, n int) *Lease {
	t.Helper()
	l, err := p.Reserve(ticket(t), n)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// patience is how long a test waits for what must come. Nothing takes as long that does come.
const patience = 10 * time.Second

// await waits for an event, and panics when it does not come.
func await(event <-chan struct{}) {
	select {
	case <-event:
	case <-time.After(patience):
		panic("what must come did not: pages are lost, or nobody was told")
	}
}

// awaitFree waits until n pages are free.
func awaitFree(p *Pool, n int) {
	for {
		freed := p.Freed()
		if p.Stats().Free == n {
			return
		}
		await(freed)
	}
}

// free releases a lease and waits for its pages.
func free(l *Lease) {
	l.Release()
	await(l.Done())
}

// sender is the peer of a lease: it fills frames with a byte and seals them under its key.
type sender struct{ key *mac.Key }

func newSender(seed byte) sender { return sender{mac.New([32]byte{seed})} }

func (s sender) frame(p *Pool, ordinal int, fill byte) ([]byte, mac.Tag) {
	f := bytes.Repeat([]byte{fill}, p.pageBytes)
	return f, s.key.Sum(mac.Page, uint64(ordinal), f)
}

func (s sender) land(l *Lease, ordinal int, fill byte) error {
	f, m := s.frame(l.p, ordinal, fill)
	return l.Land(ordinal, l.Tags()[ordinal], f, s.key, m)
}

// filled is a lease of n pages of which each has landed, filled with fill, and which is sealed.
func filled(t testing.TB, p *Pool, n int, fill byte) *Lease {
	t.Helper()
	l, s := reserve(t, p, n), newSender(fill)
	for i := range n {
		if err := s.land(l, i, fill); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SealPrompt(n * p.pageTokens); err != nil {
		t.Fatal(err)
	}
	return l
}

// want compares a page's content with n times fill.
func want(t testing.TB, p *Pool, id page.ID, fill byte) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots[id].State == page.Free { // under electricfence it cannot even be read
		p.arena.open(id)
		defer p.arena.shut(id)
	}
	b := p.arena.bytes(id)
	if got := bytes.Count(b, []byte{fill}); got != len(b) {
		t.Fatalf("page %d: %d of %d bytes are %#x; it begins %x", id, got, len(b), fill, b[:8])
	}
}

// wantErr checks an error's sentinel.
func wantErr(t testing.TB, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("%v, want %v", err, sentinel)
	}
}

// panics returns what f panics with, as text; empty when it does not.
func panics(f func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

func TestNewRefuses(t *testing.T) {
	good := Config{Role: "test", Boot: 1, Geometry: shape, Pages: 1}
	for name, edit := range map[string]func(*Config){
		"no role":              func(c *Config) { c.Role = "" },
		"a role with a slash":  func(c *Config) { c.Role = "a/b" },
		"a role with a blank":  func(c *Config) { c.Role = "a (deleted)" },
		"no boot":              func(c *Config) { c.Boot = 0 },
		"no pages":             func(c *Config) { c.Pages = 0 },
		"negative pages":       func(c *Config) { c.Pages = -1 },
		"too many pages":       func(c *Config) { c.Pages = 1 << 32 },
		"no geometry":          func(c *Config) { c.Geometry = page.Geometry{} },
		"an unknown layout":    func(c *Config) { c.Geometry.Layout = 9 },
		"pages of odd lengths": func(c *Config) { c.Geometry.Tokens = 17 },
	} {
		cfg := good
		edit(&cfg)
		if p, err := New(cfg); err == nil {
			t.Errorf("%s: made", name)
			p.Close()
		}
	}
}

func TestFullChangesNothing(t *testing.T) {
	p := newPool(t, 4)
	a := reserve(t, p, 3)
	before := p.Stats()
	for _, n := range []int{2, 4, 5, 1 << 40} {
		_, err := p.Reserve(ticket(t), n)
		wantErr(t, err, ErrPoolFull)
	}
	wantErr(t, a.Grow(2), ErrPoolFull)
	for _, n := range []int{0, -1} {
		_, err := p.Reserve(ticket(t), n)
		wantErr(t, err, ErrRange)
	}
	if after := p.Stats(); after != before || a.Len() != 3 {
		t.Fatalf("%+v, was %+v", after, before)
	}
	b := reserve(t, p, 1)
	if b.Tags()[0].ID != 3 || b.Tags()[0].Gen != 1 {
		t.Fatalf("a refused reservation moved a page: %s", b.Tags()[0])
	}
	free(a)
	free(b)
}

func TestReserveNeedsATicketWithoutAVerdict(t *testing.T) {
	p := newPool(t, 1)
	_, err := p.Reserve(admission.Ticket{}, 1)
	wantErr(t, err, ErrTicket)
	tk := ticket(t)
	tk.Verdict().Set(verdict.Of(verdict.Deadline, verdict.Reserve, "late"))
	_, err = p.Reserve(tk, 1)
	wantErr(t, err, ErrTicket)
}

func TestEveryGrantHasANewGeneration(t *testing.T) {
	p := newPool(t, 2)
	for i := range 5 {
		l := reserve(t, p, 2)
		for j, tag := range l.Tags() {
			if tag != (page.Tag{Boot: p.Boot(), ID: page.ID(j), Gen: page.Generation(i + 1)}) {
				t.Fatalf("grant %d: %s", i, tag)
			}
		}
		free(l)
	}
}

// TestGrantOrder: by default the free page with the lowest id goes first; with ReuseLast the one that was freed last.
func TestGrantOrder(t *testing.T) {
	for _, reuseLast := range []bool{false, true} {
		p := newPool(t, 200, func(c *Config) { c.ReuseLast = reuseLast })
		a, b, c := reserve(t, p, 70), reserve(t, p, 1), reserve(t, p, 1)
		if b.Tags()[0].ID != 70 {
			t.Fatal(b.Tags()[0])
		}
		free(a)
		free(b)
		d := reserve(t, p, 1)
		wantID := page.ID(0)
		if reuseLast {
			wantID = 70
		}
		if got := d.Tags()[0].ID; got != wantID {
			t.Fatalf("reuse last %t: page %d, want %d", reuseLast, got, wantID)
		}
		free(c)
		free(d)
	}
}

func TestFreedWakesAWaiter(t *testing.T) {
	p := newPool(t, 1)
	a := reserve(t, p, 1)
	got := make(chan *Lease)
	tk := ticket(t)
	waiting := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			freed := p.Freed()
			l, err := p.Reserve(tk, 1)
			if err == nil {
				got <- l
				return
			}
			if first {
				close(waiting)
			}
			await(freed)
		}
	}()
	await(waiting)
	a.Release()
	b := <-got
	if b.Tags()[0].Gen != 2 {
		t.Fatal(b.Tags())
	}
	free(b)
}

func TestScanFreeFindsAStrayByte(t *testing.T) {
	p := newPool(t, 3)
	l := filled(t, p, 2, 0x77)
	if n := p.ScanFree(); n != 0 {
		t.Fatalf("a leased page was counted as free: %d", n)
	}
	p.arena.open(2)
	p.arena.bytes(2)[5] = 1
	p.arena.padded(2)[p.arena.stride-1] = 2 // between the page and the next
	p.arena.shut(2)
	if n := p.ScanFree(); n != 2 {
		t.Fatalf("%d stray bytes, want 2", n)
	}
	p.arena.open(2)
	clear(p.arena.padded(2))
	p.arena.shut(2)
	free(l)
}

func TestCloseWithALeaseOutPanics(t *testing.T) {
	p := newPool(t, 2)
	l := reserve(t, p, 1)
	if got := panics(func() { p.Close() }); !strings.Contains(got, "1 pages reserved") {
		t.Fatalf("%q", got)
	}
	l.Release()
	if err := p.Close(); err != nil { // waits for the zeroing
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal("the second Close:", err)
	}
	if got := panics(func() { p.Reserve(ticket(t), 1) }); !strings.Contains(got, "after Close") {
		t.Fatalf("%q", got)
	}
	if n := p.ScanFree(); n != 0 {
		t.Fatal(n)
	}
}

func TestTagsAreACopy(t *testing.T) {
	p := newPool(t, 1)
	l := reserve(t, p, 1)
	l.Tags()[0].Gen = 99
	if l.Tags()[0].Gen != 1 {
		t.Fatal("the grant can be changed from outside")
	}
	free(l)
}
