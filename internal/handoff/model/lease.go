package model

import "fmt"

// Lease is what a pool knows of one attempt's pages, as counts: pages have ordinals, and what is true of them is true from ordinal 0 up.
//
// A page of it goes: handed over (zeroed, new generation) · landing · written · sealed, or written by its own · fenced · being zeroed ·
// free. Views read what is sealed or the lease's own, and write what is its own, or the tail.
type Lease[N Count] struct {
	Pages    N    // handed over, ever
	Granted  N    // of them: those that a peer may write; set once, when the attempt's machine hears of them
	Landing  N    // copies under way, each with a pin
	Written  N    // landed, and verified
	Final    N    // sealed
	Own      N    // ordinals below it may hold what the lease's own compute wrote
	Views    N    // steps under way, each with a pin on every page that it reads or writes
	Viewed   N    // steps done
	Reads    N    // readings of one page under way, for its MAC or for sending
	Sealed   bool // by SealPrompt: nothing lands any more, and the last sealed page is the tail
	Fenced   N    // pages revoked
	Scrubbed N    // pages being zeroed, or free
	Freed    N    // pages free
}

// Op names what a pool does. The numbers are those of recorded traces.
type Op uint8

const (
	OpReserve   Op = 40
	OpLandBegin Op = 41
	OpLandEnd   Op = 42
	OpSeal      Op = 43
	OpSealOwn   Op = 44
	OpViewBegin Op = 45
	OpViewEnd   Op = 46
	OpFence     Op = 47
	OpScrub     Op = 48
	OpFree      Op = 49
)

// Do takes a transition of n pages, of which a view may write the last writes. on is the guards that are in their places; the gate and
// the pins also ask which page it is, and that is for whoever knows pages to ask. The error says what the pool did that it may not do.
func (l Lease[N]) Do(on Guard, op Op, n, writes N, good bool) (Lease[N], error) {
	live := l.Fenced == 0
	var ok bool
	switch op {
	case OpReserve:
		ok = n > 0 && live
		l.Pages += n
	case OpLandBegin:
		ok = n == 1 && (live && !l.Sealed && l.Written+l.Landing < l.Granted || !on.Has(GuardGate))
		l.Landing++
	case OpLandEnd:
		// Overtaken by a fence it is not written, whatever the bytes are.
		ok = n == 1 && l.Landing > 0 && !(good && !live && on.Has(GuardFence))
		l.Landing--
		if good {
			l.Written++
		}
	case OpSeal:
		ok = n > 0 && live && !l.Sealed && l.Final == 0 && n <= l.Granted && l.Landing == 0 && (l.Written == n || !on.Has(GuardCount))
		l.Sealed, l.Final = true, n
	case OpSealOwn:
		ok = n == 1 && live && !l.Sealed && l.Written == 0 && l.Final < l.Own && l.Views == 0
		l.Final++
	case OpViewBegin:
		ok = l.mayView(n, writes) && (live || !on.Has(GuardTag))
		if writes == 0 {
			l.Reads++
		} else {
			l.Views++
			l.Own = max(l.Own, n)
		}
	case OpViewEnd:
		if writes == 0 {
			ok = l.Reads > 0
			l.Reads--
		} else {
			ok = l.Views > 0
			l.Views--
			l.Viewed++
		}
	case OpFence:
		ok = n > 0 && l.Fenced+n <= l.Pages
		l.Fenced += n
	case OpScrub:
		ok = n > 0 && (l.Scrubbed+n <= l.Fenced || !on.Has(GuardFence) && l.Scrubbed+n <= l.Pages)
		l.Scrubbed += n
	case OpFree:
		ok = n > 0 && l.Freed+n <= l.Scrubbed
		l.Freed += n
	}
	if !ok {
		return l, fmt.Errorf("a pool did %s of %d pages (%d to write) to %+v", op, n, writes, l)
	}
	return l, nil
}

// mayView is the rule of reading: below what is sealed, or what is own; and of writing: from the tail, or the first own page, on.
func (l Lease[N]) mayView(n, writes N) bool {
	if n == 0 || n > l.Pages || writes > n {
		return false
	}
	if writes == 0 {
		return n == 1 && l.Final > 0
	}
	from := n - writes
	if l.Sealed {
		return from+1 >= l.Final && from <= max(l.Own, l.Final)
	}
	return l.Written == 0 && l.Landing == 0 && from >= l.Final && from <= max(l.Own, l.Final)
}

// Gone reports whether all pages are back.
func (l Lease[N]) Gone() bool { return l.Freed == l.Pages }

var opNames = map[Op]string{OpReserve: "reserve", OpLandBegin: "land-begin", OpLandEnd: "land-end", OpSeal: "seal", OpSealOwn: "seal-own",
	OpViewBegin: "view-begin", OpViewEnd: "view-end", OpFence: "fence", OpScrub: "scrub", OpFree: "free"}

func (o Op) String() string { return opNames[o] }
