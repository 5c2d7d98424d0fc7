package pool

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// shadow is what a lease must be, in the plainest words there are: no slots, no generations.
type shadow struct {
	lease    *Lease
	tags     []page.Tag
	number   uint32 // what its pages are filled with
	granted  int    // pages a peer may write
	landed   []bool // by ordinal
	tried    []bool
	own      []bool // written by the lease's own compute
	final    []bool // sealed, not to be written
	tail     int    // ordinal, or -1
	sealed   bool
	fenced   bool
	released bool
	views    []*shadowView
}

type shadowView struct {
	v     View
	pages int
}

func (s *shadow) pinned(ordinal int) bool {
	for _, v := range s.views {
		if ordinal < v.pages {
			return true
		}
	}
	return false
}

// held is how many of a lease's pages are not free.
func (s *shadow) held() (n int) {
	for i := range s.tags {
		if !s.released || s.pinned(i) {
			n++
		}
	}
	return n
}

// machine runs a pool and its shadows side by side.
type machine struct {
	t      *testing.T
	p      *Pool
	keys   map[uint32]*mac.Key
	all    []*shadow
	over   []*shadow // of all, those that are over
	number uint32
}

func (m *machine) pick(t *rapid.T) *shadow {
	if len(m.all) == 0 {
		m.reserve(t)
	}
	return rapid.SampledFrom(m.all).Draw(t, "lease")
}

// agree compares an answer with what the shadow says it must be; nil is a yes.
func agree(t *rapid.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func (m *machine) reserve(t *rapid.T) {
	n := rapid.IntRange(1, 5).Draw(t, "pages")
	l, err := m.p.Reserve(ticket(m.t), n)
	if m.free() < n {
		agree(t, "reserve", err, ErrPoolFull)
		return
	}
	agree(t, "reserve", err, nil)
	m.number++
	m.keys[m.number] = mac.New([32]byte{byte(m.number)})
	s := &shadow{lease: l, number: m.number, granted: n, tail: -1}
	s.grew(n)
	m.all = append(m.all, s)
	for _, tag := range s.tags {
		if !bytes.Equal(m.p.arena.bytes(tag.ID), make([]byte, m.p.pageBytes)) {
			t.Fatalf("%s was granted with somebody's bytes", tag)
		}
	}
}

func (s *shadow) grew(n int) {
	s.tags = s.lease.Tags()
	for _, b := range []*[]bool{&s.landed, &s.tried, &s.own, &s.final} {
		*b = append(*b, make([]bool, n)...)
	}
}

func (m *machine) free() int {
	n := m.p.pages
	for _, s := range m.all {
		n -= s.held()
	}
	return n
}

func (m *machine) grow(t *rapid.T) {
	s, n := m.pick(t), rapid.IntRange(1, 3).Draw(t, "pages")
	err := s.lease.Grow(n)
	switch {
	case s.fenced:
		agree(t, "grow", err, ErrFenced)
	case m.free() < n:
		agree(t, "grow", err, ErrPoolFull)
	default:
		agree(t, "grow", err, nil)
		s.grew(n)
	}
}

func (m *machine) land(t *rapid.T) {
	s := m.pick(t)
	i := rapid.IntRange(0, len(s.tags)).Draw(t, "ordinal")
	other := m.pick(t)
	tag := other.tags[rapid.IntRange(0, len(other.tags)-1).Draw(t, "tag")]
	if i < len(s.tags) && rapid.Bool().Draw(t, "right tag") {
		tag = s.tags[i]
	}
	good := rapid.IntRange(0, 4).Draw(t, "mac") > 0
	frame := content(m.p.pageBytes, s.number, i)
	sum := m.keys[s.number].Sum(mac.Page, uint64(i), frame)
	if !good {
		sum[0] ^= 1
	}
	err := s.lease.Land(i, tag, frame, m.keys[s.number], sum)
	switch {
	case s.fenced || s.sealed:
		agree(t, "land", err, ErrFenced)
	case i >= s.granted || s.tags[i] != tag:
		agree(t, "land", err, ErrTag)
	case s.tried[i] || s.own[i]:
		agree(t, "land", err, ErrTwice)
	default:
		s.tried[i], s.landed[i] = true, good
		if good {
			agree(t, "land", err, nil)
		} else {
			agree(t, "land", err, ErrMAC)
		}
	}
}

func (m *machine) sealPrompt(t *rapid.T) {
	s := m.pick(t)
	tokens := rapid.IntRange(1, 16*len(s.tags)+1).Draw(t, "tokens")
	n := shape.Pages(tokens)
	err := s.lease.SealPrompt(tokens)
	whole, pinned := true, false
	for i := range min(n, len(s.tags)) {
		whole = whole && s.landed[i]
		pinned = pinned || s.pinned(i) && !s.final[i]
	}
	switch {
	case s.fenced:
		agree(t, "seal", err, ErrFenced)
	case n > s.granted:
		agree(t, "seal", err, ErrRange)
	case s.sealed:
		agree(t, "seal", err, ErrTwice)
	case pinned:
		agree(t, "seal", err, ErrPinned)
	case !whole:
		agree(t, "seal", err, ErrUnwritten)
	default:
		agree(t, "seal", err, nil)
		s.sealed, s.tail = true, n-1
		for i := range n - 1 {
			s.final[i] = true
		}
	}
}

func (m *machine) sealOwn(t *rapid.T) {
	s := m.pick(t)
	i := rapid.IntRange(0, len(s.tags)-1).Draw(t, "ordinal")
	got, err := s.lease.SealOwn(i, m.keys[s.number])
	switch {
	case s.fenced:
		agree(t, "seal own", err, ErrFenced)
	case s.final[i]:
		agree(t, "seal own", err, ErrTwice)
	case s.pinned(i):
		agree(t, "seal own", err, ErrPinned)
	case !s.own[i] || i == s.tail:
		agree(t, "seal own", err, ErrUnwritten)
	default:
		agree(t, "seal own", err, nil)
		s.final[i] = true
		if want := m.keys[s.number].Sum(mac.Page, uint64(i), content(m.p.pageBytes, s.number, i)); got != want {
			t.Fatalf("the MAC of ordinal %d is of something else", i)
		}
	}
}

func (m *machine) copyOut(t *rapid.T) {
	s := m.pick(t)
	i := rapid.IntRange(0, len(s.tags)-1).Draw(t, "ordinal")
	out := make([]byte, m.p.pageBytes)
	n, err := s.lease.CopyOut(out, i)
	switch {
	case s.fenced:
		agree(t, "copy out", err, ErrFenced)
	case !s.final[i]:
		agree(t, "copy out", err, ErrUnsealed)
	default:
		agree(t, "copy out", err, nil)
		if n != len(out) || !bytes.Equal(out, content(n, s.number, i)) {
			t.Fatalf("ordinal %d came out as something else", i)
		}
	}
}

func (m *machine) view(t *rapid.T) {
	s := m.pick(t)
	tokens := rapid.IntRange(1, 16*len(s.tags)+1).Draw(t, "tokens")
	from := rapid.IntRange(0, tokens).Draw(t, "write from")
	v := &shadowView{pages: shape.Pages(tokens)}
	err := s.lease.View(&v.v, tokens, from)
	want := m.mayView(s, tokens, from)
	agree(t, "view", err, want)
	if want != nil {
		return
	}
	for i, tag := range s.tags[:v.pages] {
		if from < tokens && i >= from/16 { // the step's compute
			s.own[i] = true
			copy(m.p.arena.bytes(tag.ID), content(m.p.pageBytes, s.number, i))
		}
	}
	s.views = append(s.views, v)
}

// mayView is the rule of View: sealed, or own and written, is read; own, or the tail, is written.
func (m *machine) mayView(s *shadow, tokens, from int) error {
	n := shape.Pages(tokens)
	switch {
	case s.fenced:
		return ErrFenced
	case n > len(s.tags):
		return ErrRange
	}
	for i := range n {
		write := from < tokens && i >= from/16
		switch {
		case write && (s.final[i] || s.tried[i] && i != s.tail):
			return ErrRange
		case !write && !s.final[i] && i != s.tail && (s.tried[i] || !s.own[i]):
			return ErrUnsealed
		}
	}
	return nil
}

func (m *machine) done(t *rapid.T) {
	s := m.pick(t)
	if len(s.views) == 0 {
		return
	}
	i := rapid.IntRange(0, len(s.views)-1).Draw(t, "view")
	v := s.views[i]
	for j := range v.pages {
		if !bytes.Equal(m.p.arena.bytes(s.tags[j].ID), content(m.p.pageBytes, s.number, j)) {
			t.Fatalf("a step read another's page at ordinal %d", j)
		}
	}
	v.v.Done()
	s.views = append(s.views[:i:i], s.views[i+1:]...)
	m.settle(s)
}

func (m *machine) fence(t *rapid.T) {
	s := m.pick(t)
	s.lease.Fence()
	s.fenced = true
}

func (m *machine) release(t *rapid.T) {
	s := m.pick(t)
	again := s.released
	s.lease.Release()
	s.fenced, s.released = true, true
	if !again {
		m.settle(s)
	}
}

// settle waits until the pages that a release or a Done gave back are free, and forgets leases that are over.
func (m *machine) settle(s *shadow) {
	awaitFree(m.p, m.free())
	if s.released && len(s.views) == 0 {
		await(s.lease.Done())
		if m.over = append(m.over, s); len(m.over) > 2 { // the last two stay: they may still be asked for things
			m.all = slices.DeleteFunc(m.all, func(x *shadow) bool { return x == m.over[0] })
			m.over = m.over[1:]
		}
	}
}

// check holds the pool to the shadows after every step.
func (m *machine) check(t *rapid.T) {
	var pins, reserved, fenced int
	for _, s := range m.all {
		for _, v := range s.views {
			pins += v.pages
		}
		if s.fenced {
			fenced += s.held()
		} else {
			reserved += s.held()
		}
	}
	got := m.p.Stats()
	if got.Pins != pins || got.Reserved != reserved || got.Fenced != fenced || got.Free != got.Total-reserved-fenced {
		t.Fatalf("%+v, want %d pins, %d reserved, %d fenced", got, pins, reserved, fenced)
	}
}

// TestAgainstAShadow runs random histories on a pool and on shadows of its leases: every answer, every byte that a step reads, and
// the accounting after each step must agree.
func TestAgainstAShadow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		reuseLast := rapid.Bool().Draw(r, "reuse last")
		m := &machine{t: t, p: newPool(t, 12, func(c *Config) { c.ReuseLast = reuseLast }), keys: map[uint32]*mac.Key{}}
		r.Repeat(map[string]func(*rapid.T){
			"reserve": m.reserve, "grow": m.grow, "land": m.land, "land again": m.land, "land more": m.land,
			"seal prompt": m.sealPrompt, "seal own": m.sealOwn, "copy out": m.copyOut, "view": m.view, "view more": m.view,
			"done": m.done, "fence": m.fence, "release": m.release, "": m.check,
		})
		for _, s := range m.all {
			s.lease.Release()
			for _, v := range s.views {
				v.v.Done()
			}
			await(s.lease.Done())
		}
		if n := m.p.ScanFree(); n != 0 {
			r.Fatalf("%d bytes are left", n)
		}
	})
}
