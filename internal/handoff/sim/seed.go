package sim

import "math/rand/v2"

// Walk takes steps acts from a seed, leaning toward the dangerous, and returns the schedule that it took.
func (w *World) Walk(seed uint64, steps int, keep bool) (schedule []Act) {
	r := rand.New(rand.NewPCG(seed, 17))
	var may []Act
	starved, until := int8(-1), 0
	for n := range steps {
		if n >= until { // one lane gets nothing for a while, or none does
			starved, until = int8(r.IntN(3*len(w.lanes))), n+10+r.IntN(40)
		}
		may = w.Possible(may)
		a, best := Act{}, -1
		for _, x := range may {
			score := r.IntN(100)
			switch {
			case x.Lane == starved:
				score -= 80
			case x.What == "decode-is-aborted" || x.What == "prefill-is-aborted":
				score -= 55
			case x.What == "link-breaks":
				score -= 60
			case lies[x.What].do != nil:
				score -= 75
			case (x.What == "decode-takes" || x.What == "decode-lands") && w.lanes[x.Lane].d.Over():
				score -= 40 // held back after the abort, until the pages are another's
			case x.What == "decode-copied" || x.What == "decode-reads":
				score -= 25 // in the middle, for whatever may overtake it
			}
			if score > best || best == -1 {
				a, best = x, max(score, 0)
			}
		}
		if len(may) == 0 {
			return schedule
		}
		if keep {
			schedule = append(schedule, a)
		}
		w.Do(a)
		if w.wrong != nil {
			return schedule
		}
	}
	return schedule
}
