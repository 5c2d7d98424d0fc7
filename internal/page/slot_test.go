package page

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicekv/sluice/internal/attempt"
)

var (
	alice = attempt.ID{0xa}
	bob   = attempt.ID{0xb}
)

// moves are the edges by name, as something that can be tried on any slot.
var moves = map[string]func(Slot, Tag) Slot{
	"reserve":   func(s Slot, at Tag) Slot { return s.Reserve(at, bob) },
	"land":      Slot.Land,
	"landed":    Slot.Landed,
	"refused":   Slot.Refused,
	"write":     Slot.Write,
	"seal":      Slot.Seal,
	"seal tail": Slot.SealTail,
	"hold":      Slot.Hold,
	"pin":       Slot.Pin,
	"unpin":     Slot.Unpin,
	"fence":     Slot.Fence,
	"scrub":     Slot.Scrub,
	"free":      Slot.Free,
}

// legal is the picture of the edges, written a second time: what each demands of the slot, and what it makes of it.
// "·" stands for the same state.
var legal = []struct {
	move, from, to string
	pins           func(uint16) bool
	written        []bool
	after          func(*Slot)
}{
	{"reserve", "free", "reserved", none, no, func(s *Slot) { s.Owner = bob; s.Gen++ }},
	{"land", "reserved", "landing", none, no, func(s *Slot) { s.Pins = 1 }},
	{"landed", "landing", "reserved", one, either, func(s *Slot) { s.Pins, s.Written = 0, true }},
	{"refused", "landing", "reserved", one, either, func(s *Slot) { s.Pins = 0 }},
	{"write", "reserved tail", "·", some, either, func(s *Slot) { s.Written = true }},
	{"seal", "reserved", "sealed", none, yes, nil},
	{"seal tail", "reserved", "tail", none, yes, nil},
	{"hold", "sealed", "held", free, either, nil},
	{"pin", "reserved sealed tail held", "·", room, either, func(s *Slot) { s.Pins++ }},
	{"unpin", "reserved sealed tail held fenced", "·", some, either, func(s *Slot) { s.Pins-- }},
	{"fence", "reserved landing sealed tail held", "fenced", free, either, nil},
	{"scrub", "fenced", "scrubbing", none, either, nil},
	{"free", "scrubbing", "free", none, either, func(s *Slot) { s.Owner, s.Written = attempt.ID{}, false }},
}

var no, yes, either = []bool{false}, []bool{true}, []bool{false, true}

func none(p uint16) bool { return p == 0 }
func one(p uint16) bool  { return p == 1 }
func some(p uint16) bool { return p > 0 }
func room(p uint16) bool { return p < math.MaxUint16 }
func free(uint16) bool   { return true }

// expect looks a move up in the picture.
func expect(move string, s Slot, at Tag) (after Slot, ok bool) {
	for _, e := range legal {
		gen := s.Gen
		if move == "reserve" {
			gen++
		}
		if e.move != move || !strings.Contains(" "+e.from+" ", " "+s.State.String()+" ") || !e.pins(s.Pins) ||
			(!e.written[0] && len(e.written) == 1 && s.Written) || (e.written[0] && !s.Written) || at.Gen != gen {
			continue
		}
		after = s
		for st := range numStates {
			if st.String() == e.to {
				after.State = st
			}
		}
		if e.after != nil {
			e.after(&after)
		}
		return after, true
	}
	return s, false
}

// try makes a move and catches the panic of an illegal one.
func try(move string, s Slot, at Tag) (after Slot, illegal *IllegalMove) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case IllegalMove:
			illegal = &r
		default:
			panic(r)
		}
	}()
	return moves[move](s, at), nil
}

func TestEveryMoveFromEveryState(t *testing.T) {
	tried, done := 0, 0
	for move := range moves {
		for state := range numStates {
			for _, pins := range []uint16{0, 1, 2, math.MaxUint16 - 1, math.MaxUint16} {
				for _, written := range either {
					for _, gen := range []Generation{0, 6, 7, 8, 9, math.MaxUint64} {
						s := Slot{Owner: alice, Gen: 7, Pins: pins, State: state, Written: written}
						at := Tag{Boot: 0xb007, ID: 42, Gen: gen}
						want, ok := expect(move, s, at)
						got, illegal := try(move, s, at)
						tried++
						if ok {
							done++
						}
						switch {
						case ok && illegal != nil:
							t.Fatalf("%s of %+v under %s: %v", move, s, at, illegal)
						case ok && got != want:
							t.Fatalf("%s of %+v: %+v, want %+v", move, s, got, want)
						case !ok && illegal == nil:
							t.Fatalf("%s of %+v under %s was let through: %+v", move, s, at, got)
						case !ok && (illegal.Tag != at || illegal.From != s || illegal.Move != move):
							t.Fatalf("%s of %+v under %s panicked about something else: %v", move, s, at, illegal)
						}
					}
				}
			}
		}
	}
	if len(moves) != len(legal) || done == 0 || done == tried {
		t.Fatalf("%d moves, %d drawn; %d of %d tries were legal", len(moves), len(legal), done, tried)
	}
}

// TestPinsInPlace holds the two moves in place to the moves they stand for.
func TestPinsInPlace(t *testing.T) {
	for state := range numStates {
		for _, pins := range []uint16{0, 1, math.MaxUint16 - 1, math.MaxUint16} {
			for _, gen := range []Generation{6, 7, 8} {
				s := Slot{Owner: alice, Gen: 7, Pins: pins, State: state, Written: true}
				at := Tag{Boot: 1, ID: 1, Gen: gen}
				for move, inPlace := range map[string]func(*Slot, Generation) bool{"pin": (*Slot).TryPinFinal, "unpin": (*Slot).TryUnpin} {
					want, illegal := try(move, s, at)
					ok := illegal == nil && (move == "unpin" || strings.Contains("sealed tail held", state.String()))
					if !ok {
						want = s
					}
					got := s
					if said := inPlace(&got, gen); said != ok || got != want {
						t.Fatalf("%s of %+v under generation %d: %t and %+v, want %t and %+v", move, s, gen, said, got, ok, want)
					}
				}
			}
		}
	}
}

func TestIllegalMoveNamesTheTagAndBothStates(t *testing.T) {
	s := Slot{Owner: alice, Gen: 3, Pins: 2, State: Fenced}
	_, illegal := try("scrub", s, Tag{Boot: 1, ID: 9, Gen: 3})
	if illegal == nil {
		t.Fatal("a page with pins was scrubbed")
	}
	for _, want := range []string{"scrub", "0000000000000001/9@3", "from fenced", "to scrubbing", "2 pins", alice.String()} {
		if !strings.Contains(illegal.Error(), want) {
			t.Errorf("%q does not say %q", illegal, want)
		}
	}
	var err error = *illegal
	if !errors.As(err, new(IllegalMove)) {
		t.Error("IllegalMove is no error")
	}
}

// TestAbortDuringALanding is the edge that a late write needs: the fence leaves the copy its pin, and the pin keeps the
// page from everybody else.
func TestAbortDuringALanding(t *testing.T) {
	at := Tag{Boot: 1, ID: 0, Gen: 1}
	s := Slot{}.Reserve(at, alice).Land(at).Fence(at)
	if s.State != Fenced || s.Pins != 1 {
		t.Fatalf("%+v", s)
	}
	for _, move := range []string{"scrub", "free", "landed", "refused", "pin", "reserve", "land", "seal"} {
		if after, illegal := try(move, s, at); illegal == nil {
			t.Errorf("%s while the copy runs: %+v", move, after)
		}
	}
	if s = s.Unpin(at).Scrub(at).Free(at); s != (Slot{Gen: 1}) {
		t.Fatalf("%+v", s)
	}
}

func TestTheLastGenerationPanics(t *testing.T) {
	s := Slot{Gen: math.MaxUint64 - 1}
	at := s.Next(1, 2)
	s = s.Reserve(at, alice)
	if s.Gen != math.MaxUint64 {
		t.Fatalf("%+v", s)
	}
	s = s.Fence(at).Scrub(at).Free(at)
	for what, f := range map[string]func(){
		"next":            func() { s.Next(1, 2) },
		"wrapped reserve": func() { s.Reserve(Tag{Boot: 1, ID: 2, Gen: 0}, alice) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(IllegalMove); !ok {
					t.Errorf("%s: a generation was reused", what)
				}
			}()
			f()
		}()
	}
}

func TestReserveWantsAnOwner(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("a page was handed to nobody")
		}
	}()
	Slot{}.Reserve(Tag{Boot: 1, Gen: 1}, attempt.ID{})
}

// TestWalks takes random legal and illegal steps and holds every slot on the way to what the states say of it.
func TestWalks(t *testing.T) {
	names := make([]string, 0, len(moves))
	for _, e := range legal {
		names = append(names, e.move)
	}
	rapid.Check(t, func(t *rapid.T) {
		var s Slot
		grants, owed := 0, 0 // owed: pins taken and not given back since the page was handed over
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			move := rapid.SampledFrom(names).Draw(t, "move")
			at := Tag{Boot: 1, ID: 5, Gen: s.Gen}
			if move == "reserve" {
				at.Gen++
			}
			after, illegal := try(move, s, at)
			if illegal != nil {
				continue
			}
			switch move {
			case "reserve":
				grants++
			case "land", "pin":
				owed++
			case "landed", "refused", "unpin":
				owed--
			}
			s = after
			switch {
			case s.Gen != Generation(grants):
				t.Fatalf("generation %d after %d grants", s.Gen, grants)
			case int(s.Pins) != owed:
				t.Fatalf("%d pins, %d owed", s.Pins, owed)
			case s.State == Free && s != (Slot{Gen: s.Gen}):
				t.Fatalf("a free page kept something: %+v", s)
			case s.State != Free && s.Owner != bob:
				t.Fatalf("a page without its owner: %+v", s)
			case s.State == Landing && (s.Pins != 1 || s.Written):
				t.Fatalf("a landing page: %+v", s)
			case s.State == Scrubbing && s.Pins != 0:
				t.Fatalf("a page is zeroed under a pin: %+v", s)
			case (s.State == Sealed || s.State == Tail || s.State == Held) && !s.Written:
				t.Fatalf("sealed without content: %+v", s)
			}
		}
	})
}

func TestWhatIsFinalAndWhatMayBeRead(t *testing.T) {
	for s := range numStates {
		final := s == Sealed || s == Tail || s == Held
		if s.Final() != final || s.Readable() != (final || s == Reserved) {
			t.Errorf("%s: final %v, readable %v", s, s.Final(), s.Readable())
		}
	}
}

func TestStateNames(t *testing.T) {
	seen := map[string]bool{}
	for s := range numStates {
		if seen[s.String()] || s.String() == "" {
			t.Errorf("state %d has the name %q", s, s)
		}
		seen[s.String()] = true
	}
	if got := fmt.Sprint(numStates); got != "state(8)" {
		t.Error(got)
	}
	for s, want := range map[State]bool{Free: false, Reserved: true, Landing: false, Sealed: true, Tail: true, Held: true, Fenced: false, Scrubbing: false} {
		if s.Readable() != want {
			t.Errorf("%s readable: %t", s, !want)
		}
	}
}
