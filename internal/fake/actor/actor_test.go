package actor

import (
	"testing"

	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

func TestCopierContinuesTheLongestMatch(t *testing.T) {
	for _, c := range []struct {
		text string
		want string
	}{
		{"My name is Alice. My name is", " Alice. My name"},
		{"ab12 cd34 ab", "12 cd34 ab12 cd"},
		{"first ab1 then ab2 then ab", "2 then ab2 then"}, // of equal matches the latest
		{"xab1 yab2 xab", "1 yab2 xab1 yab"},              // a longer one beats a later one
	} {
		ids := EncodeText([]byte(c.text))
		slots := make([]Slot, len(ids))
		for i, id := range ids {
			slots[i] = Slot{id, 1}
		}
		k := NewCopier(slots, 1)
		got := ""
		for range 15 {
			s := k.Next()
			if s.Token == recall.EOS {
				break
			}
			if s.Owner != 1 {
				t.Errorf("%q: owner %d", c.text, s.Owner)
			}
			got += string(s.Token)
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	if s := NewCopier([]Slot{{recall.BOS, 1}, {'x', 1}}, 1).Next(); s.Token != recall.EOS {
		t.Errorf("no match: %d", s.Token)
	}
}

func TestCopierRepeatsOthers(t *testing.T) {
	slots := []Slot{{recall.BOS, 2}}
	for _, c := range "The code of another tenant is 4711. " {
		slots = append(slots, Slot{c, 9})
	}
	slots = append(slots, Slot{'\n', 2})
	k := NewCopier(slots, 2)
	got := ""
	foreign := 0
	for range 20 {
		s := k.Next()
		got += string(s.Token)
		if s.Owner == 9 {
			foreign++
		}
	}
	if got != "he code of another t" || foreign != 20 {
		t.Errorf("%q, %d foreign", got, foreign)
	}
	// Pages that nobody has written yet say nothing.
	k = NewCopier([]Slot{{recall.BOS, 2}, unwritten, unwritten, unwritten}, 2)
	for range 3 {
		if s := k.Next(); s.Token != '\n' || s.Owner != 2 {
			t.Errorf("%+v", s)
		}
	}
}

func TestPagesKeepWhatWasInThem(t *testing.T) {
	p := NewPages(8, 4, true)
	if p.Available() != 7 {
		t.Errorf("%d pages with a null page", p.Available())
	}
	a, _ := p.Alloc(2)
	p.Write(a, []int32{1, 2, 3, 4, 5}, 1)
	p.Free(a)
	b, _ := p.Alloc(2)
	if a[0] != b[0] || a[1] != b[1] {
		t.Errorf("%v, then %v: the pages that were freed last are not the first to go", a, b)
	}
	if got := p.Read(b, 6); got[4] != (Slot{5, 1}) || got[5] != unwritten {
		t.Errorf("%v", got)
	}
	if none, freed := p.Alloc(6); none != nil {
		t.Error("six of five")
	} else {
		p.Free(b)
		<-freed
	}
	q := NewPages(8, 4, false)
	to, _ := q.Alloc(3)
	q.Copy(to, p, a)
	if got := q.Read(to, 9); got[0] != (Slot{1, 1}) || got[4] != (Slot{5, 1}) || got[8] != unwritten {
		t.Errorf("%v", got)
	}
	for id := range b {
		if id == 0 && b[id] == 0 {
			t.Error("the null page was given out")
		}
	}
}

func TestSpeechHoldsHalfCharacters(t *testing.T) {
	var s Speech
	got := ""
	for i, b := range []byte("aé太😀b") {
		piece := s.Add(int32(b))
		for _, r := range piece {
			if r == '\ufffd' {
				t.Errorf("half a character at byte %d", i)
			}
		}
		got += piece
	}
	if got+s.Flush() != "aé太😀b" {
		t.Errorf("%q", got)
	}
	if got := Text([]int32{0xe5, 0xa4, recall.EOS, 'x'}); got != "\ufffdx" && got != "\ufffd\ufffdx" {
		t.Errorf("%q", got)
	}
}

func TestTwoParsersAreCompared(t *testing.T) {
	d, no := jsonedit.Read([]byte(`{"a":1,"b":2}`), nil)
	if no != nil {
		t.Fatal(no)
	}
	if err := sameToOthers(d, []byte(`{"a":1,"b":2}`)); err != nil {
		t.Error(err)
	}
	for _, other := range []string{`{"a":1,"b":3}`, `{"a":1}`, `{"a":1,"b":2,"c":3}`, `{"a":1`} {
		if sameToOthers(d, []byte(other)) == nil {
			t.Errorf("%s reads the same", other)
		}
	}
}

func TestStageRemembers(t *testing.T) {
	s := NewStage(nil)
	s.Violate("w", RuleRoom, "room %d", 5)
	if v := s.Violations(); len(v) != 1 || v[0].String() != "w: room: room 5" {
		t.Error(v)
	}
	if !s.Once("a") || s.Once("a") || !s.Once("b") {
		t.Error("once")
	}
	if a, b := s.Arrive(), s.Arrive(); a == 0 || a == b {
		t.Error(a, b)
	}
}
