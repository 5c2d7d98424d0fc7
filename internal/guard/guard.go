// Package guard names the guards and, in the unsafe build alone, takes them out.
//
// In the release build Off is the constant false: the compiler drops every branch behind it, and no flag, variable or
// message can turn a guard off. Under the build tag unsafe_guards, Disable can. Such a binary listens on loopback only
// and says UNSAFE (drills, mutants and benchmarks are its use).
package guard

import (
	"fmt"
	"strings"
)

// Guard is one of the guards of the native handoff.
type Guard uint16

const (
	Admission Guard = 1 << iota // the limit, at the gateway and again at each worker
	Verdict                     // prefill's refusal is heard by every layer
	Gate                        // bytes land only under a live grant, into the tag it names
	MAC                         // a page's bytes are the ones its sender sealed
	Count                       // pages written and tokens computed add up to the plan
	Tag                         // a view reads only pages that are still this lease's
	Zero                        // pages are zeroed on release and verified zero at grant
	Pin                         // a page under a copy or a read is not handed over
	Fence                       // no page returns before its grant is revoked
	Hold                        // no byte leaves the gateway before both verdicts are in
	Echo                        // decode recomputes the last position and compares
)

// Mark is in the version of every binary that can take guards out. A node that cannot refuses such a peer: its replies carry no warning.
const Mark = "+UNSAFE"

// All guards.
const All = Echo<<1 - 1

var names = []string{"admission", "verdict", "gate", "mac", "count", "tag", "zero", "pin", "fence", "hold", "echo"}

func (g Guard) String() string {
	var s []string
	for i, n := range names {
		if g&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, ",")
}

// Names of all guards, in the order of a request's walk.
func Names() []string { return append([]string(nil), names...) }

// Parse reads a comma-separated list of guard names, or "all".
func Parse(list string) (g Guard, err error) {
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		if s == "all" {
			g = All
			continue
		}
		found := false
		for i, n := range names {
			if n == s {
				g |= 1 << i
				found = true
			}
		}
		if !found {
			return 0, fmt.Errorf("guard: no guard is named %q; there are %s, or all", s, strings.Join(names, ", "))
		}
	}
	return g, nil
}
