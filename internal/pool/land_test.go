package pool

import (
	"bytes"
	"testing"

	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

func TestLandWritesThePageOfItsTag(t *testing.T) {
	p := newPool(t, 4)
	l, s := reserve(t, p, 3), newSender(1)
	for _, i := range []int{2, 0, 1} { // any order
		if err := s.land(l, i, byte(0x10+i)); err != nil {
			t.Fatal(err)
		}
		want(t, p, l.Tags()[i].ID, byte(0x10+i))
	}
	if st := p.Stats(); st.Landed != 3 || st.Refused != 0 || st.Pins != 0 || st.Reserved != 3 {
		t.Fatalf("%+v", st)
	}
	free(l)
}

// TestGate: what a frame may not do. Each case says what it tries; the page it aims at and all others stay as they were.
func TestGate(t *testing.T) {
	type try struct {
		ordinal int
		tag     page.Tag
		frame   []byte
		key     *mac.Key
		mac     mac.Tag
	}
	for _, c := range []struct {
		name string
		err  error
		try  func(p *Pool, l, other *Lease, s sender) try
	}{
		{"another lease's tag", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			return try{0, other.Tags()[0], f, s.key, m}
		}},
		{"another boot's tag", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			tag := l.Tags()[0]
			tag.Boot++
			return try{0, tag, f, s.key, m}
		}},
		{"an older generation", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			tag := l.Tags()[0]
			tag.Gen--
			return try{0, tag, f, s.key, m}
		}},
		{"a page that the pool does not have", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			tag := l.Tags()[0]
			tag.ID = 1 << 30
			return try{0, tag, f, s.key, m}
		}},
		{"its own tag at another ordinal", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 1, 0xbb)
			return try{1, l.Tags()[0], f, s.key, m}
		}},
		{"an ordinal past the grant", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 5, 0xbb)
			return try{5, l.Tags()[0], f, s.key, m}
		}},
		{"a negative ordinal", ErrRange, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			return try{-1, l.Tags()[0], f, s.key, m}
		}},
		{"a short frame", ErrRange, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			return try{0, l.Tags()[0], f[1:], s.key, m}
		}},
		{"a long frame", ErrRange, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			return try{0, l.Tags()[0], append(f, 0), s.key, m}
		}},
		{"a grown page", ErrTag, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 2, 0xbb)
			return try{2, l.Tags()[2], f, s.key, m}
		}},
		{"another attempt's key", ErrMAC, func(p *Pool, l, other *Lease, s sender) try {
			f, m := newSender(99).frame(p, 0, 0xbb)
			return try{0, l.Tags()[0], f, s.key, m}
		}},
		{"another page's MAC", ErrMAC, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 1, 0xbb)
			return try{0, l.Tags()[0], f, s.key, m}
		}},
		{"a flipped bit", ErrMAC, func(p *Pool, l, other *Lease, s sender) try {
			f, m := s.frame(p, 0, 0xbb)
			f[len(f)-1] ^= 1
			return try{0, l.Tags()[0], f, s.key, m}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, 6)
			other := filled(t, p, 1, 0xaa)
			l, s := reserve(t, p, 2), newSender(1)
			if err := l.Grow(1); err != nil {
				t.Fatal(err)
			}
			x := c.try(p, l, other, s)
			wantErr(t, l.Land(x.ordinal, x.tag, x.frame, x.key, x.mac), c.err)
			want(t, p, other.Tags()[0].ID, 0xaa)
			for _, tag := range l.Tags() {
				want(t, p, tag.ID, 0)
			}
			if st := p.Stats(); st.Pins != 0 || st.Landed != 1 || st.Reserved != 4 {
				t.Fatalf("%+v", st)
			}
			wantErr(t, l.SealPrompt(32), ErrUnwritten)
			free(l)
			free(other)
		})
	}
}

func TestATagLetsOneFrameIn(t *testing.T) {
	p := newPool(t, 2)
	l, s := reserve(t, p, 2), newSender(1)
	if err := s.land(l, 0, 1); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.land(l, 0, 2), ErrTwice)
	want(t, p, 0, 1)

	f, m := s.frame(p, 1, 3)
	m[0] ^= 1
	wantErr(t, l.Land(1, l.Tags()[1], f, s.key, m), ErrMAC)
	wantErr(t, s.land(l, 1, 3), ErrTwice) // also the right MAC: a peer has one try
	want(t, p, 1, 0)
	if st := p.Stats(); st.Refused != 3 || st.Landed != 1 {
		t.Fatalf("%+v", st)
	}
	free(l)
}

func TestNothingLandsAfterTheSeal(t *testing.T) {
	p := newPool(t, 2)
	l, s := reserve(t, p, 2), newSender(1)
	if err := s.land(l, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.SealPrompt(16); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.land(l, 0, 2), ErrFenced)
	wantErr(t, s.land(l, 1, 2), ErrFenced) // reserved for generation
	want(t, p, 0, 1)
	want(t, p, 1, 0)
	free(l)
}

func TestNothingLandsWhereTheLeaseComputes(t *testing.T) {
	p := newPool(t, 1)
	l, s := reserve(t, p, 1), newSender(1)
	var v View
	if err := l.View(&v, 3, 0); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.land(l, 0, 2), ErrTwice)
	v.Done()
	wantErr(t, s.land(l, 0, 2), ErrTwice)
	want(t, p, 0, 0)
	free(l)
}

// TestLateLand is the late write after reuse: A's frame arrives when the page is B's.
func TestLateLand(t *testing.T) {
	for _, end := range []struct {
		name string
		end  func(*Lease)
	}{{"release", free}, {"fence", (*Lease).Fence}} {
		t.Run(end.name, func(t *testing.T) {
			p := newPool(t, 1, func(c *Config) { c.ReuseLast = true })
			a, s := reserve(t, p, 1), newSender(1)
			f, m := s.frame(p, 0, 0xaa)
			tag := a.Tags()[0]
			end.end(a)
			wantErr(t, a.Land(0, tag, f, s.key, m), ErrFenced)
			want(t, p, 0, 0)
			free(a)
			b := filled(t, p, 1, 0xbb)
			wantErr(t, a.Land(0, tag, f, s.key, m), ErrFenced)
			want(t, p, 0, 0xbb)
			free(b)
			wantErr(t, a.Land(0, tag, f, s.key, m), ErrFenced)
		})
	}
}

// TestReleaseInTheMiddleOfACopy: A's frame is being copied when A's lease goes. The page is nobody's until the copy has ended,
// whoever asks for it, and comes to B zero.
func TestReleaseInTheMiddleOfACopy(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		p := newPool(t, 1)
		inside, goOn := make(chan struct{}), make(chan struct{})
		p.midCopy = func(page.Tag) { close(inside); <-goOn }
		a, s := reserve(t, p, 1), newSender(1)
		landed := make(chan error)
		go func() {
			f, m := s.frame(p, 0, 0xaa)
			if wrong {
				m[3] ^= 4
			}
			landed <- a.Land(0, a.Tags()[0], f, s.key, m)
		}()
		await(inside)
		a.Release()
		a.Release() // idempotent, also now
		if st := p.Stats(); st.Fenced != 1 || st.Pins != 1 || st.Free != 0 {
			t.Fatalf("%+v", st)
		}
		_, err := p.Reserve(ticket(t), 1)
		wantErr(t, err, ErrPoolFull)
		select {
		case <-a.Done():
			t.Fatal("the page is free while a copy into it runs")
		default:
		}
		freed := p.Freed()
		close(goOn)
		if wrong {
			wantErr(t, <-landed, ErrMAC)
		} else {
			wantErr(t, <-landed, ErrFenced)
		}
		await(freed)
		await(a.Done())
		p.midCopy = nil
		b := reserve(t, p, 1)
		want(t, p, 0, 0)
		free(b)
	}
}

// TestFencedCopyIsReadByNobody: after a fence in mid-copy the bytes are in the page, and no seal and no view reaches them.
func TestFencedCopyIsReadByNobody(t *testing.T) {
	p := newPool(t, 1)
	a, s := reserve(t, p, 1), newSender(1)
	p.midCopy = func(page.Tag) { a.Fence() }
	wantErr(t, s.land(a, 0, 0xaa), ErrFenced)
	wantErr(t, a.SealPrompt(16), ErrFenced)
	wantErr(t, a.View(new(View), 16, 16), ErrFenced)
	_, err := a.CopyOut(make([]byte, p.pageBytes), 0)
	wantErr(t, err, ErrFenced)
	wantErr(t, a.Grow(1), ErrFenced)
	if st := p.Stats(); st.Fenced != 1 || st.Pins != 0 || st.Landed != 0 {
		t.Fatalf("%+v", st)
	}
	free(a)
	want(t, p, 0, 0)
}

func TestNoViewReachesALanding(t *testing.T) {
	p := newPool(t, 2)
	l, s := reserve(t, p, 2), newSender(1)
	if err := s.land(l, 0, 1); err != nil {
		t.Fatal(err)
	}
	p.midCopy = func(page.Tag) {
		wantErr(t, l.View(new(View), 32, 32), ErrUnsealed)
		wantErr(t, l.View(new(View), 32, 16), ErrUnsealed) // page 0 is landed, not sealed
		wantErr(t, l.View(new(View), 32, 0), ErrRange)     // and neither may be written
		wantErr(t, l.SealPrompt(32), ErrUnwritten)
		_, err := l.CopyOut(make([]byte, p.pageBytes), 1)
		wantErr(t, err, ErrUnsealed)
	}
	if err := s.land(l, 1, 2); err != nil {
		t.Fatal(err)
	}
	free(l)
}

func TestARefusedFrameLeavesNothing(t *testing.T) {
	p := newPool(t, 1)
	l, s := reserve(t, p, 1), newSender(1)
	f, m := s.frame(p, 0, 0xaa)
	m[15]++
	wantErr(t, l.Land(0, l.Tags()[0], f, s.key, m), ErrMAC)
	if !bytes.Equal(p.arena.bytes(0), make([]byte, p.pageBytes)) {
		t.Fatal("a refused frame's bytes stayed in the page")
	}
	free(l)
}
