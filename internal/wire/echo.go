package wire

import (
	"errors"
	"fmt"
	"math"
)

// EchoWidth is the number of logits in an echo.
const EchoWidth = 8

// Errors of echoes.
var (
	ErrEcho      = errors.New("wire: the echoes disagree")
	ErrNotFinite = errors.New("wire: a logit is not finite")
)

// Echo is the last prompt token's largest logits, in falling order (equal ones by rising id), as one leg computed them. Decode computes
// the same position itself from the transferred pages and compares: a check of content on every request.
//
// A vocabulary of fewer than EchoWidth ids fills the rest with id -1 and logit 0. The zero Echo is no echo: prefill did not get so far.
type Echo struct {
	IDs    [EchoWidth]int32
	Logits [EchoWidth]float32
}

// IsZero reports whether e is no echo.
func (e Echo) IsZero() bool { return e == Echo{} }

// EchoOf picks the echo of one position's logits. Ids at minus infinity (masked) are left out. NaN and plus infinity are ErrNotFinite,
// as are logits that are all masked.
func EchoOf(logits []float32) (Echo, error) {
	var e Echo
	n := 0
	for id, l := range logits {
		// The common case first: most logits are below the smallest of the eight. A NaN fails every comparison, so it comes through here.
		if n == EchoWidth && l <= e.Logits[EchoWidth-1] {
			continue
		}
		switch {
		case l != l || math.IsInf(float64(l), 1):
			return Echo{}, fmt.Errorf("%w: of %d", ErrNotFinite, len(logits))
		case math.IsInf(float64(l), -1):
			continue
		}
		if n < EchoWidth {
			n++
		}
		at := n - 1
		for at > 0 && e.Logits[at-1] < l { // equal ones stay before: their ids are smaller
			e.IDs[at], e.Logits[at] = e.IDs[at-1], e.Logits[at-1]
			at--
		}
		e.IDs[at], e.Logits[at] = int32(id), l
	}
	if n == 0 {
		return Echo{}, fmt.Errorf("%w: none of %d", ErrNotFinite, len(logits))
	}
	for ; n < EchoWidth; n++ {
		e.IDs[n] = -1
	}
	return e, nil
}

// width is the number of ids before the filling.
func (e Echo) width() int {
	for i, id := range e.IDs {
		if id < 0 {
			return i
		}
	}
	return EchoWidth
}

// wellFormed reports whether EchoOf could have made e.
func (e Echo) wellFormed() bool {
	n := e.width()
	for i := range EchoWidth {
		id, l := e.IDs[i], e.Logits[i]
		if i >= n {
			if id != -1 || math.Float32bits(l) != 0 {
				return false
			}
			continue
		}
		if l != l || math.IsInf(float64(l), 0) {
			return false
		}
		for j := range i {
			if e.IDs[j] == id {
				return false
			}
		}
		if i > 0 && (l > e.Logits[i-1] || (l == e.Logits[i-1] && id < e.IDs[i-1])) {
			return false
		}
	}
	return n > 0
}

// echoNear is the tolerance between two numeric paths, in parts of the largest logit's magnitude. Weights of few bits are multiplied with
// activations rounded to 8 bits, so the last bits of two paths become steps that are far larger: TestEchoAcrossPaths prints how far
// two honest paths are apart, and how far a foreign, missing, doubled or torn page moves the echo, for a model of choice.
const echoNear = 4e-2

// Agrees compares the sender's echo with one's own computation of the same position. It returns an ErrEcho that names the rule broken,
// with counts and distances, never ids.
//
// exact, when both ends name the same numeric path: ids and the bits of the logits are the same. A page of another prompt, or one that is
// missing, torn or there twice, moves the low bits even where the choice of words stays; so the legs of a pair should run one path.
// (Pages of one prompt that swapped places do not: the position is in the keys, so attention over them is the same sum in another
// order. The gate and the manifest's root see those.)
//
// Else the two agree when they could be two computations whose every logit differs by at most t, echoNear of the largest
// magnitude: an id in both echoes has logits at most t apart, and an id in only one of them, which in the other lies at or below
// its last, is at most t above that last. The rule is symmetric, and ties that swap their order agree. It sees gross damage only:
// what a quantized model's own rounding could have done must pass, or odd prompts would take honest pairs out of service.
func (e Echo) Agrees(own Echo, exact bool) error {
	switch {
	case !e.wellFormed():
		return fmt.Errorf("%w: the sender's is none", ErrEcho)
	case !own.wellFormed():
		return fmt.Errorf("%w: the own one is none", ErrEcho)
	}
	if exact {
		ids, bits := 0, 0
		for i := range EchoWidth {
			if e.IDs[i] != own.IDs[i] {
				ids++
			}
			if math.Float32bits(e.Logits[i]) != math.Float32bits(own.Logits[i]) {
				bits++
			}
		}
		if ids+bits > 0 {
			return fmt.Errorf("%w: %d of %d ids and %d of %d logits differ on one numeric path", ErrEcho, ids, EchoWidth, bits, EchoWidth)
		}
		return nil
	}
	if e.width() != own.width() {
		return fmt.Errorf("%w: %d ids against %d", ErrEcho, e.width(), own.width())
	}
	t := tolerance(e, own)
	if err := e.within(own, t); err != nil {
		return err
	}
	return own.within(e, t)
}

func tolerance(a, b Echo) float64 {
	magnitude := 0.0
	for _, e := range [...]Echo{a, b} {
		magnitude = max(magnitude, math.Abs(float64(e.Logits[0])), math.Abs(float64(e.Logits[e.width()-1])))
	}
	return echoNear * magnitude
}

// within holds each of e's logits against o's.
func (e Echo) within(o Echo, t float64) error {
	n := e.width()
	last := float64(o.Logits[n-1])
	if n < EchoWidth {
		last = math.Inf(-1) // o names every id there is
	}
	for i := range n {
		l, at := float64(e.Logits[i]), -1
		for j := range n {
			if o.IDs[j] == e.IDs[i] {
				at = j
			}
		}
		if at < 0 {
			if !(l <= last+t) {
				return fmt.Errorf("%w: rank %d is not among the other's %d, and %.4g above its last (tolerance %.4g)", ErrEcho, i+1, n, l-last, t)
			}
		} else if d := math.Abs(l - float64(o.Logits[at])); !(d <= t) {
			return fmt.Errorf("%w: rank %d is %.4g from the other's (tolerance %.4g)", ErrEcho, i+1, d, t)
		}
	}
	return nil
}
