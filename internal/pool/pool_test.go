package pool

import (
	"bytes"
	"errors"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// shape of the tests' pages: 16 tokens, 1024 bytes.
var shape = page.Geometry{Tokens: 16, Layers: 1, KVHeads: 2, HeadDim: 8, Layout: page.LayoutPairs16}

func newPool(t testing.TB, pages int, edit ...func(*Config)) *Pool {
	t.Helper()
	cfg := Config{Role: "test", Boot: page.NewBoot(), Geometry: shape, Pages: pages}
	for _, e := range edit {
		e(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ticket admits a new attempt.
func ticket(t testing.TB) admission.Ticket {
	t.Helper()
	p := admission.Plan{Attempt: attempt.New(), PromptTokens: 1, MaxTokens: 1, Budget: 1}
	tk, v := admission.Admit(p, capacity.Limit{Tokens: 1 << 20})
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

func TestWalk(t *testing.T) {
	p := newPool(t, 8)
	l := reserve(t, p, 3)
	s := newSender(1)
	for i := range 2 {
		if err := s.land(l, i, byte('a'+i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SealPrompt(20); err != nil {
		t.Fatal(err)
	}
	var v View
	if err := l.View(&v, 33, 19); !errors.Is(err, ErrRange) && err != nil {
		t.Fatal(err)
	}
	if len(v.Pages()) != 3 {
		t.Fatal(len(v.Pages()))
	}
	v.Done()
	l.Release()
	<-l.Done()
	if got := p.Stats(); got.Free != 8 || got.Fenced != 0 || got.Reserved != 0 || got.Pins != 0 || got.Landed != 2 {
		t.Fatalf("%+v", got)
	}
	if n := p.ScanFree(); n != 0 {
		t.Fatal(n)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}
