package page

import (
	"fmt"
	"math"

	"github.com/sluicekv/sluice/internal/attempt"
)

// State says what is true of a page's content, who may leave the state, and where to.
type State uint8

const (
	// Free: nobody's, and every byte is zero. Left by Reserve alone, to Reserved, under a new generation.
	Free State = iota

	// Reserved: one attempt's. Unwritten it is all zero, save for what the owner's own compute has put there since;
	// Written, it holds a whole landed page or own KV. No other attempt can read or write it. Left by the owner: Land to
	// Landing (unwritten only), Seal to Sealed, SealTail to Tail (both written and unpinned only), Fence to Fenced.
	Reserved

	// Landing: bytes from a peer are being copied in under exactly one pin; the content is nobody's to read. Left by the
	// copy itself, Landed or Refused, to Reserved; or by the owner, Fence to Fenced, which leaves the copy its pin.
	Landing

	// Sealed: the content is final and is what its sender sealed. It is read under pins, never written. Left by the owner: Hold
	// to Held, Fence to Fenced.
	Sealed

	// Tail: sealed up to the end of the prompt; the owner's own compute appends behind it (and recomputes the prompt's last
	// position). Left by the owner: Fence to Fenced.
	Tail

	// Held: sealed, and kept after its attempt as a prefix for others of the same scope, model revision and token chain. Read
	// under pins, never written. Left by whoever evicts it: Fence to Fenced.
	Held

	// Fenced: revoked. No copy and no read can begin; those under way are counted in Pins, and what they still put there is
	// read by nobody. Left by the pool when no pin is left: Scrub to Scrubbing.
	Fenced

	// Scrubbing: being zeroed, without the lock. Left by whoever zeroes it: Free to Free.
	Scrubbing

	numStates
)

var stateNames = [numStates]string{"free", "reserved", "landing", "sealed", "tail", "held", "fenced", "scrubbing"}

func (s State) String() string {
	if s >= numStates {
		return fmt.Sprintf("state(%d)", uint8(s))
	}
	return stateNames[s]
}

// Readable reports whether a view may begin on a page in this state, its being Written provided.
func (s State) Readable() bool { return readable>>s&1 != 0 }

// Final reports whether a page in this state was sealed: what it holds of the prompt is what its sender sealed.
func (s State) Final() bool { return final>>s&1 != 0 }

// Sets of states. leased is what some attempt, or the prefix store, holds.
const (
	final    = 1<<Sealed | 1<<Tail | 1<<Held
	readable = final | 1<<Reserved
	leased   = readable | 1<<Landing
)

// Slot is the state of one page. It is a comparable value: a move returns the slot after it, and whoever owns the
// memory stores it, under one lock, or explores it, without one.
//
// A move takes the tag it is asked for under. A tag of another generation, or a move that the state does not allow, is a
// broken invariant of this process, never a peer's doing: it panics with an IllegalMove.
type Slot struct {
	Owner   attempt.ID // zero when Free
	Gen     Generation // of the last hand-over; 0: never handed over
	Pins    uint16     // copies and reads under way
	State   State
	Written bool // the content is whole: landed and verified, or own KV
}

// IllegalMove is the value of the panic that a broken invariant of a page ends in.
type IllegalMove struct {
	Move string
	Tag  Tag // that the move was asked for under
	From Slot
	To   State
}

func (m IllegalMove) Error() string {
	return fmt.Sprintf("page: illegal move %s of %s: from %s (generation %d, %d pins, written %t, owner %s) to %s",
		m.Move, m.Tag, m.From.State, m.From.Gen, m.From.Pins, m.From.Written, m.From.Owner, m.To)
}

//go:noinline
func illegal(move string, at Tag, from Slot, to State) {
	panic(IllegalMove{move, at, from, to})
}

// Next is the generation of the page's next hand-over. It panics at the end of the numbers instead of wrapping: a reused
// generation would make an old tag good again.
func (s Slot) Next(boot Boot, id ID) Tag {
	if s.Gen == math.MaxUint64 {
		illegal("reserve", Tag{boot, id, s.Gen}, s, Reserved)
	}
	return Tag{boot, id, s.Gen + 1}
}

// Reserve hands the page to owner under a new generation: Free to Reserved. at is the tag that Next made.
func (s Slot) Reserve(at Tag, owner attempt.ID) Slot {
	if s.State != Free || s.Pins != 0 || s.Written || s.Gen == math.MaxUint64 || at.Gen != s.Gen+1 || owner.IsZero() {
		illegal("reserve", at, s, Reserved)
	}
	return Slot{Owner: owner, Gen: at.Gen, State: Reserved}
}

// Land begins a peer's copy and takes its pin: Reserved, unwritten and unpinned, to Landing.
func (s Slot) Land(at Tag) Slot {
	if s.State != Reserved || s.Pins != 0 || s.Written || at.Gen != s.Gen {
		illegal("land", at, s, Landing)
	}
	s.State, s.Pins = Landing, 1
	return s
}

// Landed ends a copy whose MAC was right, and its pin: Landing to Reserved, written.
func (s Slot) Landed(at Tag) Slot {
	if s.State != Landing || s.Pins != 1 || at.Gen != s.Gen {
		illegal("landed", at, s, Reserved)
	}
	s.State, s.Pins, s.Written = Reserved, 0, true
	return s
}

// Refused ends a copy whose MAC was wrong, and its pin: Landing to Reserved, unwritten. The caller has zeroed the page
// while it still had the pin.
func (s Slot) Refused(at Tag) Slot {
	if s.State != Landing || s.Pins != 1 || at.Gen != s.Gen {
		illegal("refused", at, s, Reserved)
	}
	s.State, s.Pins = Reserved, 0
	return s
}

// Write says that the owner's own compute writes the page, under a pin that it has: Reserved or Tail, to the same, written.
func (s Slot) Write(at Tag) Slot {
	if (s.State != Reserved && s.State != Tail) || s.Pins == 0 || at.Gen != s.Gen {
		illegal("write", at, s, s.State)
	}
	s.Written = true
	return s
}

// Seal makes the content final: Reserved, written and unpinned, to Sealed.
func (s Slot) Seal(at Tag) Slot {
	if s.State != Reserved || s.Pins != 0 || !s.Written || at.Gen != s.Gen {
		illegal("seal", at, s, Sealed)
	}
	s.State = Sealed
	return s
}

// SealTail seals the page that holds the prompt's last position: Reserved, written and unpinned, to Tail.
func (s Slot) SealTail(at Tag) Slot {
	if s.State != Reserved || s.Pins != 0 || !s.Written || at.Gen != s.Gen {
		illegal("seal tail", at, s, Tail)
	}
	s.State = Tail
	return s
}

// Hold keeps a page beyond its attempt: Sealed to Held. Reads under way go on.
func (s Slot) Hold(at Tag) Slot {
	if s.State != Sealed || at.Gen != s.Gen {
		illegal("hold", at, s, Held)
	}
	s.State = Held
	return s
}

// Pin begins a read or an own write: Reserved, Sealed, Tail or Held, to the same, with one pin more. A page in Landing
// cannot be pinned by anyone but its copy.
func (s Slot) Pin(at Tag) Slot {
	if readable>>s.State&1 == 0 || s.Pins == math.MaxUint16 || at.Gen != s.Gen {
		illegal("pin", at, s, s.State)
	}
	s.Pins++
	return s
}

// TryPinFinal is Pin in place, of a page that is final under that generation: Sealed, Tail or Held. It reports false, and
// changes nothing, for every other page, for a page of another generation, and where Pin would panic. A decode step asks it of
// every page it reads, where a slot's way through a call and back would cost more than the check. (The mask by 7 takes no
// state away, and saves the shift its range check.)
func (s *Slot) TryPinFinal(gen Generation) bool {
	if s.Gen != gen || final>>(s.State&7)&1 == 0 || s.Pins == math.MaxUint16 {
		return false
	}
	s.Pins++
	return true
}

// TryUnpin is Unpin in place. It reports false, and changes nothing, where Unpin would panic.
func (s *Slot) TryUnpin(gen Generation) bool {
	if s.Gen != gen || (readable|1<<Fenced)>>(s.State&7)&1 == 0 || s.Pins == 0 {
		return false
	}
	s.Pins--
	return true
}

// Unpin ends a read, an own write, or a copy that a fence overtook: Reserved, Sealed, Tail, Held or Fenced, to the same, with
// one pin less.
func (s Slot) Unpin(at Tag) Slot {
	if (readable|1<<Fenced)>>s.State&1 == 0 || s.Pins == 0 || at.Gen != s.Gen {
		illegal("unpin", at, s, s.State)
	}
	s.Pins--
	return s
}

// Fence revokes the page: Reserved, Landing, Sealed, Tail or Held, to Fenced. It keeps the pins: what is under way ends by
// itself and unpins.
func (s Slot) Fence(at Tag) Slot {
	if leased>>s.State&1 == 0 || at.Gen != s.Gen {
		illegal("fence", at, s, Fenced)
	}
	s.State = Fenced
	return s
}

// Scrub begins the zeroing: Fenced, without a pin, to Scrubbing.
func (s Slot) Scrub(at Tag) Slot {
	if s.State != Fenced || s.Pins != 0 || at.Gen != s.Gen {
		illegal("scrub", at, s, Scrubbing)
	}
	s.State = Scrubbing
	return s
}

// Free ends the zeroing: Scrubbing to Free. The generation stays, so that the next hand-over has a new one.
func (s Slot) Free(at Tag) Slot {
	if s.State != Scrubbing || s.Pins != 0 || at.Gen != s.Gen {
		illegal("free", at, s, Free)
	}
	return Slot{Gen: s.Gen}
}
