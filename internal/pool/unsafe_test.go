//go:build unsafe_guards && !electricfence && !race

package pool

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// What each guard is for: these tests take it out and show, on content, what then gets through. The same histories with the
// guard in are in the tests of the release build.

// without makes a pool of a build that never had the guards. Its end is not checked: it leaks.
func without(t *testing.T, off guard.Guard, pages int) *Pool {
	t.Helper()
	p, err := New(Config{Role: "unsafe", Boot: page.NewBoot(), Geometry: shape, Pages: pages, ReuseLast: true})
	if err != nil {
		t.Fatal(err)
	}
	guard.Disable(off)
	t.Cleanup(func() { guard.Disable(0) })
	return p
}

// held is what a step of the lease would attend to in its first page.
func held(t *testing.T, l *Lease, tokens int) []byte {
	t.Helper()
	v := view(t, l, tokens, tokens)
	defer v.Done()
	return bytes.Clone(l.p.arena.bytes(v.tags[0].ID))
}

func allOf(b []byte, fill byte) bool { return bytes.Count(b, []byte{fill}) == len(b) }

func TestWithoutGateALateWriteLandsInAnothersPage(t *testing.T) {
	p := without(t, guard.Gate, 1)
	a, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	tag := a.Tags()[0]
	free(a)
	b := filled(t, p, 1, 0xbb)
	if err := a.Land(0, tag, f, s.key, m); err != nil {
		t.Fatal(err)
	}
	if got := held(t, b, 16); !allOf(got, 0xaa) {
		t.Fatalf("B reads %x", got[:8])
	}
}

func TestWithoutGateAnyTagWillDo(t *testing.T) {
	p := without(t, guard.Gate, 2)
	b := filled(t, p, 1, 0xbb)
	a, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	if err := a.Land(0, b.Tags()[0], f, s.key, m); err != nil {
		t.Fatal(err)
	}
	if got := held(t, b, 16); !allOf(got, 0xaa) {
		t.Fatalf("B reads %x", got[:8])
	}
	wantErr(t, a.SealPrompt(16), ErrUnwritten) // and A has nothing: the count says so
	bad := b.Tags()[0]
	bad.ID = 7
	wantErr(t, a.Land(0, bad, f, s.key, m), ErrRange)
	// The MAC is still asked: another key's frame does not land anywhere.
	f, m = newSender(2).frame(p, 0, 0xcc)
	wantErr(t, a.Land(0, b.Tags()[0], f, s.key, m), ErrMAC)
	wantErr(t, a.Land(0, a.Tags()[0], f, s.key, m), ErrMAC)
	if got := held(t, b, 16); !allOf(got, 0xaa) {
		t.Fatalf("B reads %x", got[:8])
	}
}

func TestWithoutGateAWrongOrdinalLands(t *testing.T) {
	p := without(t, guard.Gate, 2)
	l, s := reserve(t, p, 2), newSender(1)
	tags := l.Tags()
	for i := range 2 { // the right bytes in the other's place
		f, m := s.frame(p, i, byte(0x10+i))
		if err := l.Land(i, tags[1-i], f, s.key, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SealPrompt(32); err != nil {
		t.Fatal(err)
	}
	if got := held(t, l, 32); !allOf(got, 0x11) {
		t.Fatalf("ordinal 0 reads %x", got[:8])
	}
	if p.Stats().Landed != 2 {
		t.Fatalf("%+v", p.Stats())
	}
}

func TestWithoutMACAFlippedByteIsSealed(t *testing.T) {
	p := without(t, guard.MAC, 1)
	l, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	f[77] ^= 0xff
	if err := l.Land(0, l.Tags()[0], f, s.key, m); err != nil {
		t.Fatal(err)
	}
	if err := l.SealPrompt(16); err != nil {
		t.Fatal(err)
	}
	if got := held(t, l, 16); got[77] != 0x55 || !bytes.Equal(got, f) {
		t.Fatalf("the page holds %x", got[70:80])
	}
}

func TestWithoutCountAMissingPageIsSealed(t *testing.T) {
	p := without(t, guard.Count|guard.Zero, 2)
	free(filled(t, p, 2, 0xaa)) // A's prompt was here
	b, s := reserve(t, p, 2), newSender(1)
	if err := s.land(b, 1, 0xbb); err != nil { // one page of two
		t.Fatal(err)
	}
	if err := b.SealPrompt(32); err != nil {
		t.Fatal(err)
	}
	if got := held(t, b, 32); !allOf(got, 0xaa) {
		t.Fatalf("B attends to %x", got[:8])
	}
	// With the pages zeroed, what it attends to is nothing.
	guard.Disable(guard.Count)
	free(b)
	c, s := reserve(t, p, 2), newSender(2)
	if err := s.land(c, 1, 0xcc); err != nil {
		t.Fatal(err)
	}
	if err := c.SealPrompt(32); err != nil {
		t.Fatal(err)
	}
	if got := held(t, c, 32); !allOf(got, 0) {
		t.Fatalf("C attends to %x", got[:8])
	}
}

func TestWithoutTagAStaleLeaseReadsAnothersPage(t *testing.T) {
	p := without(t, guard.Tag|guard.Fence, 2)
	a := filled(t, p, 2, 0xaa)
	free(a) // without the fence the lease stays good
	b := filled(t, p, 1, 0xbb)
	v := view(t, a, 32, 32)
	if got := p.arena.bytes(v.tags[0].ID); len(v.Pages()) != 2 || !allOf(got, 0xbb) && !allOf(p.arena.bytes(v.tags[1].ID), 0xbb) {
		t.Fatalf("A reads %x", got[:8])
	}
	if n := p.Stats().Pins; n != 0 {
		t.Fatalf("A pinned %d of B's pages", n)
	}
	v.Done()
	free(b)
	// The tag check alone names it.
	guard.Disable(guard.Fence)
	c := filled(t, p, 2, 0xcc)
	wantErr(t, a.View(new(View), 32, 32), ErrTag)
	free(c)
}

func TestWithoutZeroAPageIsGrantedAsItWasLeft(t *testing.T) {
	p := without(t, guard.Zero, 1)
	free(filled(t, p, 1, 0xaa))
	b := reserve(t, p, 1)
	if got := p.arena.bytes(0); !allOf(got, 0xaa) {
		t.Fatalf("B was granted %x", got[:8])
	}
	free(b)
	if n := p.ScanFree(); n != uint64(p.pageBytes) {
		t.Fatalf("%d bytes of residue", n)
	}
}

func TestWithoutPinACopyEndsInAnothersPage(t *testing.T) {
	p := without(t, guard.Pin, 1)
	inside, goOn := make(chan struct{}), make(chan struct{})
	p.HoldCopies(func(page.Tag) { close(inside); <-goOn })
	a, s := reserve(t, p, 1), newSender(1)
	landed := make(chan error)
	go func() { landed <- s.land(a, 0, 0xaa) }()
	await(inside)
	free(a) // nobody waits for the copy
	p.HoldCopies(nil)
	b := filled(t, p, 1, 0xbb)
	close(goOn)
	<-landed
	if got := held(t, b, 16); !allOf(got, 0xaa) {
		t.Fatalf("B reads %x", got[:8])
	}
	if st := p.Stats(); st.Pins != 0 || st.Reserved != 1 {
		t.Fatalf("%+v", st)
	}
}

func TestWithoutPinAReadLosesItsPage(t *testing.T) {
	p := without(t, guard.Pin, 1)
	a := filled(t, p, 1, 0xaa)
	v := view(t, a, 16, 16)
	free(a)
	b := filled(t, p, 1, 0xbb)
	if got := p.arena.bytes(v.tags[0].ID); !allOf(got, 0xbb) {
		t.Fatalf("A's step reads %x", got[:8])
	}
	v.Done()
	if st := p.Stats(); st.Pins != 0 || st.Reserved != 1 {
		t.Fatalf("%+v", st)
	}
	free(b)
	// A source page that is copied out for sending goes the same way; its MAC then says so at the other end.
	c := reserve(t, p, 1)
	view(t, c, 16, 0).Done()
	copy(p.arena.bytes(0), bytes.Repeat([]byte{0xcc}, p.pageBytes))
	key := mac.New([32]byte{3})
	m, err := c.SealOwn(0, key)
	if err != nil {
		t.Fatal(err)
	}
	p.HoldCopies(func(page.Tag) { free(c) })
	out := make([]byte, p.pageBytes)
	if _, err := c.CopyOut(out, 0); err != nil {
		t.Fatal(err)
	}
	if mac.Equal(key.Sum(mac.Page, 0, out), m) || !allOf(out, 0) {
		t.Fatalf("what is sent is %x", out[:8])
	}
}

func TestWithoutFenceALateWriteLands(t *testing.T) {
	p := without(t, guard.Fence, 1)
	a, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	tag := a.Tags()[0]
	a.Fence()
	free(a)
	b := filled(t, p, 1, 0xbb)
	if err := a.Land(0, tag, f, s.key, m); err != nil { // the grant was never revoked
		t.Fatal(err)
	}
	if got := held(t, b, 16); !allOf(got, 0xaa) {
		t.Fatalf("B reads %x", got[:8])
	}
}

// TestZeroNamesAWriteIntoAFreePage: with the fence out, a late write that comes before the next grant is found at that grant.
func TestZeroNamesAWriteIntoAFreePage(t *testing.T) {
	p := without(t, guard.Fence, 1)
	a, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	tag := a.Tags()[0]
	free(a)
	if err := a.Land(0, tag, f, s.key, m); err != nil {
		t.Fatal(err)
	}
	_, err := p.Reserve(ticket(t), 1)
	wantErr(t, err, ErrNotZero)
	if !strings.Contains(err.Error(), "1024 bytes") {
		t.Fatal(err)
	}
	awaitFree(p, 1) // the page was scrubbed on its way back
	free(reserve(t, p, 1))
}

// TestTheIncident: prefill ships one page of three and says all is well; decode attends to all of them.
func TestTheIncident(t *testing.T) {
	p := without(t, guard.All, 3)
	a := filled(t, p, 3, 0xaa)
	free(a)
	b, s := reserve(t, p, 3), newSender(2)
	if err := s.land(b, 0, 0xbb); err != nil {
		t.Fatal(err)
	}
	if err := b.SealPrompt(40); err != nil {
		t.Fatal(err)
	}
	v := view(t, b, 40, 39)
	read := 0
	for _, tag := range v.tags {
		read += bytes.Count(p.arena.bytes(tag.ID), []byte{0xaa})
	}
	v.Done()
	if read != 2*p.pageBytes {
		t.Fatalf("B attends to %d bytes of A's", read)
	}
	free(b)
}

// TestEveryGuardOffSurvivesAStorm: the unsafe build leaks; it does not fall over.
func TestEveryGuardOffSurvivesAStorm(t *testing.T) {
	p := without(t, guard.All, 3)
	done := make(chan struct{})
	for w := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 200 {
				l, err := p.Reserve(ticket(t), 1+i%2)
				if err != nil {
					continue
				}
				s := newSender(byte(w))
				f, m := s.frame(p, 0, byte(i))
				go l.Land(0, l.Tags()[0], f, s.key, m)
				l.SealPrompt(16)
				var v View
				if l.View(&v, 16, 15) == nil {
					l.Release()
					v.Done()
				}
				l.Release()
				await(l.Done())
				l.Land(0, l.Tags()[0], f, s.key, m)
				if l.View(&v, 16, 16) == nil {
					v.Done()
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	if st := p.Stats(); st.Total != st.Free+st.Reserved+st.Fenced || st.Pins != 0 {
		t.Fatalf("%+v", st)
	}
}
