package pool

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// kv is what package llm asks of a view; declared there, repeated here so that a change shows.
var _ interface {
	Pages() []kernel.Page
	Slot(pos int) kernel.Slot
	PageTokens() int
} = (*View)(nil)

func view(t testing.TB, l *Lease, tokens, writeFrom int) *View {
	t.Helper()
	v := new(View)
	if err := l.View(v, tokens, writeFrom); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestViewYieldsThePagesOfItsTokens(t *testing.T) {
	p := newPool(t, 8)
	hole := reserve(t, p, 2)
	l := filled(t, p, 3, 0x11)
	for _, tokens := range []int{1, 16, 17, 33, 48} {
		v := view(t, l, tokens, tokens)
		n := shape.Pages(tokens)
		if len(v.Pages()) != n || v.PageTokens() != 16 || p.Stats().Pins != n {
			t.Fatalf("%d tokens: %d pages, %d pins", tokens, len(v.Pages()), p.Stats().Pins)
		}
		for i, pg := range v.Pages() {
			if pg != kernel.PageAt(p.arena.base(page.ID(2+i))) {
				t.Fatalf("page %d of the view is another", i)
			}
		}
		v.Done()
		v.Done() // harmless
		if v.Pages() != nil || p.Stats().Pins != 0 {
			t.Fatal("Done left something")
		}
	}
	free(l)
	free(hole)
}

func TestViewRefuses(t *testing.T) {
	p := newPool(t, 8)
	l := filled(t, p, 2, 0x11) // pages 0 sealed, 1 tail
	if err := l.Grow(2); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name              string
		tokens, writeFrom int
		err               error
	}{
		{"no tokens", 0, 0, ErrRange},
		{"a negative write", 16, -1, ErrRange},
		{"a write past the end", 16, 17, ErrRange},
		{"more pages than the lease has", 65, 65, ErrRange},
		{"a write into a sealed page", 16, 15, ErrRange},
		{"a write across sealed pages", 40, 0, ErrRange},
		{"a page that holds nothing", 40, 40, ErrUnsealed},
		{"a page that holds nothing, before the written one", 60, 50, ErrUnsealed},
	} {
		v := new(View)
		wantErr(t, l.View(v, c.tokens, c.writeFrom), c.err)
		if p.Stats().Pins != 0 || v.Pages() != nil {
			t.Fatalf("%s: refused, and pinned %d pages", c.name, p.Stats().Pins)
		}
	}
	other, s := reserve(t, p, 2), newSender(2)
	if err := s.land(other, 1, 2); err != nil {
		t.Fatal(err)
	}
	wantErr(t, other.View(new(View), 32, 0), ErrRange) // page 1 is a peer's
	if err := s.land(other, 0, 2); err != nil {
		t.Fatal("a refused view marked page 0 as written:", err)
	}
	free(other)
	free(l)
	wantErr(t, l.View(new(View), 1, 1), ErrFenced)
}

// TestDecodeAppends: the tail and grown pages are written, and what was written is read in the next step.
func TestDecodeAppends(t *testing.T) {
	p := newPool(t, 8)
	l := filled(t, p, 2, 0x11)
	var v View
	for pos := 31; pos < 50; pos++ { // from the prompt's last position on
		if pos == 32 {
			if err := l.Grow(2); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.View(&v, pos+1, pos); err != nil {
			t.Fatal(pos, err)
		}
		if got, want := v.Slot(pos), kernel.SlotAt(p.arena.base(page.ID(pos/16)), pos%16); got != want {
			t.Fatalf("position %d is written at %v, want %v", pos, got, want)
		}
		for _, outside := range []int{pos - 1, pos + 1, -1} {
			if got := panics(func() { v.Slot(outside) }); !strings.Contains(got, "write range") {
				t.Fatalf("position %d may be written in a step of %d", outside, pos)
			}
		}
		v.Done()
	}
	if got := panics(func() { v.Slot(49) }); got == "" {
		t.Fatal("a view that is done may be written")
	}
	free(l)
}

// TestPrefillWritesSealsAndSends walks the other leg: own compute into reserved pages, a MAC when a page is full, a copy for
// sending.
func TestPrefillWritesSealsAndSends(t *testing.T) {
	p := newPool(t, 4)
	l, key := reserve(t, p, 3), mac.New([32]byte{5})
	_, err := l.SealOwn(0, key)
	wantErr(t, err, ErrUnwritten)
	var v View
	for from := 0; from < 40; from += 8 {
		to := min(from+8, 40)
		if err := l.View(&v, to, from); err != nil {
			t.Fatal(err)
		}
		id := page.ID(from / 16)
		fill := p.arena.bytes(id)
		half := fill[from%16/8*512:][:512]
		copy(half, bytes.Repeat([]byte{byte(from)}, 512))
		_, err := l.SealOwn(int(id), key)
		wantErr(t, err, ErrPinned) // still being written
		v.Done()
		_, err = l.CopyOut(make([]byte, 2048), int(id))
		wantErr(t, err, ErrUnsealed)
		if to%16 != 0 && to != 40 {
			continue
		}
		m, err := l.SealOwn(int(id), key)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]byte, 2048)
		n, err := l.CopyOut(out, int(id))
		if err != nil || n != 1024 {
			t.Fatal(n, err)
		}
		if !bytes.Equal(out[:n], fill) || m != key.Sum(mac.Page, uint64(id), fill) || bytes.Count(out[n:], []byte{0}) != 1024 {
			t.Fatal("what is sent is not what was sealed")
		}
		_, err = l.SealOwn(int(id), key)
		wantErr(t, err, ErrTwice)
		wantErr(t, l.View(&v, to, to-1), ErrRange) // sealed: written no more
	}
	_, err = l.CopyOut(make([]byte, 1023), 0)
	wantErr(t, err, ErrRange)
	for _, ordinal := range []int{-1, 3} {
		_, err = l.CopyOut(make([]byte, 1024), ordinal)
		wantErr(t, err, ErrRange)
		_, err = l.SealOwn(ordinal, key)
		wantErr(t, err, ErrRange)
	}
	free(l)
	_, err = l.SealOwn(0, key)
	wantErr(t, err, ErrFenced)
}

// TestSealOwnIsForOwnPages: a page that a peer wrote is not sealed as the lease's own compute.
func TestSealOwnIsForOwnPages(t *testing.T) {
	p := newPool(t, 1)
	l, s := reserve(t, p, 1), newSender(1)
	if err := s.land(l, 0, 1); err != nil {
		t.Fatal(err)
	}
	_, err := l.SealOwn(0, s.key)
	wantErr(t, err, ErrUnwritten)
	free(l)
}

func TestSealPromptCountsPages(t *testing.T) {
	p := newPool(t, 4)
	l, s := reserve(t, p, 4), newSender(1)
	for i, ordinal := range []int{0, 2} {
		wantErr(t, l.SealPrompt(33), ErrUnwritten)
		if err := s.land(l, ordinal, byte(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	err := l.SealPrompt(33)
	wantErr(t, err, ErrUnwritten)
	if !strings.Contains(err.Error(), "2 of the 3 pages of 33 tokens") {
		t.Fatal(err)
	}
	wantErr(t, l.View(new(View), 16, 16), ErrUnsealed) // nothing was sealed by halves
	for _, tokens := range []int{0, -1, 65} {
		wantErr(t, l.SealPrompt(tokens), ErrRange)
	}
	if err := s.land(l, 1, 3); err != nil {
		t.Fatal(err)
	}
	if err := l.SealPrompt(33); err != nil {
		t.Fatal(err)
	}
	wantErr(t, l.SealPrompt(33), ErrTwice)
	states := ""
	for id := range page.ID(4) {
		states += p.slots[id].State.String() + " "
	}
	if states != "sealed sealed tail reserved " {
		t.Fatal(states)
	}
	view(t, l, 33, 32).Done() // the last prompt position is computed again
	free(l)
}

// TestReleaseInTheMiddleOfAView: a step is reading when the lease goes; its pages stay as they are until it is done.
func TestReleaseInTheMiddleOfAView(t *testing.T) {
	p := newPool(t, 3)
	l := filled(t, p, 3, 0x33)
	first, second := view(t, l, 48, 48), view(t, l, 16, 16)
	l.Release()
	_, err := p.Reserve(ticket(t), 1)
	wantErr(t, err, ErrPoolFull)
	for id := range page.ID(3) {
		want(t, p, id, 0x33)
	}
	if st := p.Stats(); st.Fenced != 3 || st.Pins != 4 {
		t.Fatalf("%+v", st)
	}
	freed := p.Freed()
	first.Done()
	await(freed) // pages 1 and 2
	want(t, p, 0, 0x33)
	select {
	case <-l.Done():
		t.Fatal("a page is free while a step reads it")
	default:
	}
	second.Done()
	await(l.Done())
}

func TestReleaseInTheMiddleOfACopyOut(t *testing.T) {
	p := newPool(t, 1)
	l := reserve(t, p, 1)
	view(t, l, 16, 0).Done()
	copy(p.arena.bytes(0), bytes.Repeat([]byte{0x44}, 1024))
	if _, err := l.SealOwn(0, mac.New([32]byte{})); err != nil {
		t.Fatal(err)
	}
	p.midCopy = func(page.Tag) {
		l.Release()
		_, err := p.Reserve(ticket(t), 1)
		wantErr(t, err, ErrPoolFull)
	}
	out := make([]byte, 1024)
	if _, err := l.CopyOut(out, 0); err != nil {
		t.Fatal(err)
	}
	if bytes.Count(out, []byte{0x44}) != 1024 {
		t.Fatal("the page was taken away from under its copy")
	}
	await(l.Done())
}

// TestFenceInTheMiddleOfGrow: pages that were on their way to a lease when it was revoked go back.
func TestFenceInTheMiddleOfGrow(t *testing.T) {
	for range 100 {
		taken := make(chan struct{}, 2)
		p := newPool(t, 65, func(c *Config) {
			c.Geometry = large // verifying 64 MiB takes longer than a fence
			next := c.Trace
			c.Trace = func(e Event) {
				next(e)
				if e.Op == OpReserve {
					taken <- struct{}{}
				}
			}
		})
		l := reserve(t, p, 1)
		<-taken
		fenced := make(chan struct{})
		go func() {
			<-taken
			l.Fence()
			close(fenced)
		}()
		err := l.Grow(64)
		await(fenced)
		awaitFree(p, 64-len(l.Tags())+1)
		free(l)
		if err != nil {
			wantErr(t, err, ErrFenced)
			return
		}
	}
	t.Fatal("a fence was never quicker than a reservation of 64 MiB")
}

func TestAViewBeginsOnce(t *testing.T) {
	p := newPool(t, 1)
	l := filled(t, p, 1, 1)
	v := view(t, l, 16, 16)
	if got := panics(func() { l.View(v, 16, 16) }); !strings.Contains(got, l.Attempt().String()) {
		t.Fatalf("%q", got)
	}
	v.Done()
	free(l)
}

// TestStaleTagIsNoticed breaks the pool on purpose: a live lease whose page went to somebody else. The view's check is what
// is left between the two.
func TestStaleTagIsNoticed(t *testing.T) {
	p := newPool(t, 1, func(c *Config) { c.Trace = nil })
	a := filled(t, p, 1, 0xaa)
	p.mu.Lock()
	s := &p.slots[0]
	kept := *s
	s.Gen++ // as after a hand-over that skipped the fence
	p.mu.Unlock()
	v := new(View)
	err := a.View(v, 16, 16)
	wantErr(t, err, ErrTag)
	if !strings.Contains(err.Error(), "generation 2") || !strings.Contains(err.Error(), a.Tags()[0].String()) {
		t.Fatal(err)
	}
	if v.Pages() != nil || p.slots[0].Pins != 0 {
		t.Fatal("a stranger's page was yielded or pinned")
	}
	p.mu.Lock()
	*s = kept
	p.mu.Unlock()
	free(a)
}

// TestANonzeroPageIsNotGranted breaks the pool on purpose: a stray write into a free page.
func TestANonzeroPageIsNotGranted(t *testing.T) {
	p := newPool(t, 4, func(c *Config) { c.Trace = nil })
	free(reserve(t, p, 4))
	p.arena.open(2)
	p.arena.bytes(2)[100] = 7
	p.arena.bytes(2)[1000] = 7
	p.arena.shut(2)
	l := reserve(t, p, 2)
	tag := p.slots[2].Next(p.boot, 2)
	if got := refusal(func() error { _, err := p.Reserve(ticket(t), 2); return err }); !strings.Contains(got, tag.String()) || !strings.Contains(got, "2 bytes") {
		t.Fatalf("%q", got)
	}
	// The pages of the refused grant are out of use in this process; put them back so that the pool can end well.
	p.mu.Lock()
	for _, id := range []page.ID{2, 3} {
		if s := &p.slots[id]; s.State == page.Reserved {
			clear(p.arena.padded(id))
			*s = page.Slot{Gen: s.Gen}
			p.arena.shut(id)
			p.free.put(id)
			p.count.Reserved--
			p.count.Released++
		}
	}
	p.mu.Unlock()
	free(l)
}

// refusal is the text of a refusal, which is a panic in the release build and an error in the unsafe one.
func refusal(f func() error) string {
	var err error
	if text := panics(func() { err = f() }); text != "" {
		return text
	}
	return fmt.Sprint(err)
}
