// Package faultconn is a connection that misbehaves as told: at a byte of the stream, in one direction, in one way. The same
// faults on the same bytes do the same again.
//
// It is for drills and tests, and needs no build tag: it acts only on connections that a drill wraps on purpose.
package faultconn

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Kind of a fault.
type Kind uint8

// The kinds. At is the offset in the stream, Len and Wait as said here.
const (
	Delay     Kind = iota // Wait passes before the byte at At moves
	Tear                  // from At on, bytes move at most Len at a time, with Wait between
	Drop                  // Len bytes are lost; what follows arrives
	Duplicate             // Len bytes come twice
	Flip                  // in each of Len bytes a bit is flipped
	Stall                 // nothing moves from At on, until a deadline or Close
	HalfClose             // the stream ends at At; the other direction goes on
	Reset                 // the connection is reset at At
	numKinds
)

var kindNames = [numKinds]string{"delay", "tear", "drop", "duplicate", "flip", "stall", "halfclose", "reset"}

func (k Kind) String() string {
	if k >= numKinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Side is the direction, as the holder of the connection sees it.
type Side uint8

const (
	Out Side = iota // what is written
	In              // what is read
)

func (s Side) String() string {
	if s == In {
		return "in"
	}
	return "out"
}

// Fault is one misbehaviour. It fires once; Tear stays.
type Fault struct {
	Side Side
	Kind Kind
	At   int64         // bytes of this direction that pass before it
	Len  int           // Tear, Drop, Duplicate, Flip: at least 1
	Wait time.Duration // Delay, Tear
}

// lengths reports whether the kind has a Len, waits whether it has a Wait.
func (k Kind) lengths() bool { return k == Tear || k == Drop || k == Duplicate || k == Flip }
func (k Kind) waits() bool   { return k == Delay || k == Tear }

// String is what Parse reads.
func (f Fault) String() string {
	s := fmt.Sprintf("%s %s@%d", f.Side, f.Kind, f.At)
	if f.Kind.lengths() {
		s += fmt.Sprintf("+%d", f.Len)
	}
	if f.Kind.waits() && f.Wait != 0 {
		s += "=" + f.Wait.String()
	}
	return s
}

// maxLen bounds Len, and with it what Duplicate holds.
const maxLen = 1 << 20

// Parse reads faults, separated by semicolons: SIDE KIND@AT[+LEN][=WAIT], for example "out flip@4096+8; in stall@100; out tear@0+7=1ms".
func Parse(s string) ([]Fault, error) {
	var faults []Fault
	for part := range strings.SplitSeq(s, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		f, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("faultconn: %q: %w", strings.TrimSpace(part), err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func parse(s string) (f Fault, err error) {
	side, rest, _ := strings.Cut(s, " ")
	switch side {
	case "in":
		f.Side = In
	case "out":
	default:
		return f, fmt.Errorf("begins with neither in nor out")
	}
	kind, rest, found := strings.Cut(strings.TrimSpace(rest), "@")
	if !found {
		return f, fmt.Errorf("has no @")
	}
	for f.Kind = 0; f.Kind < numKinds && kindNames[f.Kind] != kind; f.Kind++ {
	}
	if f.Kind == numKinds {
		return f, fmt.Errorf("no fault is named %q; there are %s", kind, strings.Join(kindNames[:], ", "))
	}
	rest, wait, waits := strings.Cut(rest, "=")
	at, length, long := strings.Cut(rest, "+")
	if f.At, err = strconv.ParseInt(at, 10, 64); err != nil || f.At < 0 {
		return f, fmt.Errorf("the offset is not a number")
	}
	if f.Kind.lengths() {
		f.Len = 1
	}
	if long {
		if f.Len, err = strconv.Atoi(length); err != nil || f.Len < 1 || f.Len > maxLen || !f.Kind.lengths() {
			return f, fmt.Errorf("a length here is 1 to %d, for tear, drop, duplicate and flip", maxLen)
		}
	}
	if waits {
		if f.Wait, err = time.ParseDuration(wait); err != nil || f.Wait < 0 || !f.Kind.waits() {
			return f, fmt.Errorf("a time here is a duration, for delay and tear")
		}
	}
	return f, nil
}

// Random draws n faults that fire within the first so many bytes of either direction. The same seed draws the same.
func Random(seed uint64, n int, within int64) []Fault {
	r := rand.New(rand.NewPCG(seed, 0x736c75696365))
	faults := make([]Fault, n)
	for i := range faults {
		f := Fault{Side: Side(r.IntN(2)), Kind: Kind(r.IntN(int(numKinds))), At: r.Int64N(max(within, 1))}
		if f.Kind.lengths() {
			f.Len = 1 + r.IntN(64)
		}
		if f.Kind == Delay {
			f.Wait = time.Duration(r.IntN(20)) * time.Millisecond
		}
		faults[i] = f
	}
	return faults
}
