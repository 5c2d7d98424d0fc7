package wire

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func logits(min, max float32) *rapid.Generator[[]float32] {
	return rapid.SliceOfN(rapid.Float32Range(min, max), 1, 200)
}

// sorted is the echo by the book.
func sorted(l []float32) (e Echo) {
	ids := make([]int32, len(l))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(l[b], l[a]) })
	for i := range EchoWidth {
		e.IDs[i] = -1
		if i < len(ids) {
			e.IDs[i], e.Logits[i] = ids[i], l[ids[i]]
		}
	}
	return e
}

func TestEchoOfIsTheLargestInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few distinct values, so that ties are common.
		l := rapid.SliceOfN(rapid.Map(rapid.IntRange(-6, 6), func(i int) float32 { return float32(i) / 2 }), 1, 60).Draw(t, "logits")
		got, err := EchoOf(l)
		if err != nil || got != sorted(l) {
			t.Fatalf("%v, %v, want %v", got, err, sorted(l))
		}
		if !got.wellFormed() || got.IsZero() {
			t.Fatalf("%v is not well formed", got)
		}
	})
}

func TestEchoOfRefusesWhatIsNotANumber(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	long := make([]float32, 100)
	for name, bad := range map[string]float32{"NaN": nan, "+Inf": inf} {
		for _, at := range []int{0, 7, 8, 99} {
			l := slices.Clone(long)
			l[at] = bad
			if e, err := EchoOf(l); !errors.Is(err, ErrNotFinite) || !e.IsZero() {
				t.Errorf("%s at %d: %v, %v", name, at, e, err)
			}
		}
	}
	if _, err := EchoOf(nil); !errors.Is(err, ErrNotFinite) {
		t.Errorf("no logits: %v", err)
	}
	if _, err := EchoOf([]float32{-inf, -inf}); !errors.Is(err, ErrNotFinite) {
		t.Errorf("all masked: %v", err)
	}
	e, err := EchoOf([]float32{-inf, 3, -inf, 4})
	if want := (Echo{IDs: [8]int32{3, 1, -1, -1, -1, -1, -1, -1}, Logits: [8]float32{4, 3}}); err != nil || e != want {
		t.Errorf("some masked: %v, %v", e, err)
	}
}

func TestEchoesThatEchoOfCannotMake(t *testing.T) {
	good := sorted([]float32{9, 8, 7, 6, 5, 4, 3, 2})
	for name, change := range map[string]func(*Echo){
		"rising":            func(e *Echo) { e.Logits[3] = 100 },
		"tie, falling ids":  func(e *Echo) { e.Logits[0], e.Logits[1], e.IDs[0], e.IDs[1] = 9, 9, 5, 4 },
		"an id twice":       func(e *Echo) { e.IDs[7] = e.IDs[0] },
		"NaN":               func(e *Echo) { e.Logits[7] = float32(math.NaN()) },
		"infinite":          func(e *Echo) { e.Logits[0] = float32(math.Inf(1)) },
		"an id after -1":    func(e *Echo) { e.IDs[3], e.Logits[3] = -1, 0 },
		"-2":                func(e *Echo) { e.IDs[7], e.Logits[7] = -2, 0 },
		"a logit for no id": func(e *Echo) { e.IDs[7], e.Logits[7] = -1, 1 },
		"nothing":           func(e *Echo) { *e = Echo{} },
		"only -1":           func(e *Echo) { *e = Echo{IDs: [8]int32{-1, -1, -1, -1, -1, -1, -1, -1}} },
	} {
		e := good
		change(&e)
		if e.wellFormed() {
			t.Errorf("%s: well formed", name)
		}
		for _, exact := range []bool{true, false} {
			if err := e.Agrees(good, exact); !errors.Is(err, ErrEcho) {
				t.Errorf("%s agrees, exact %v: %v", name, exact, err)
			}
			if err := good.Agrees(e, exact); !errors.Is(err, ErrEcho) {
				t.Errorf("agrees with %s, exact %v: %v", name, exact, err)
			}
		}
		// Not even two of a kind: nothing agrees with nothing.
		if err := e.Agrees(e, true); !errors.Is(err, ErrEcho) {
			t.Errorf("%s agrees with itself: %v", name, err)
		}
	}
}

func TestExactEchoesAgreeBitForBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := logits(-30, 30).Draw(t, "logits")
		e := sorted(l)
		if err := e.Agrees(e, true); err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, e.width()-1).Draw(t, "rank")
		off := e
		off.Logits[at] = math.Float32frombits(math.Float32bits(off.Logits[at]) ^ 1)
		if err := off.Agrees(e, true); !errors.Is(err, ErrEcho) {
			t.Fatalf("one bit of rank %d: %v", at+1, err)
		}
	})
	e := sorted([]float32{3, 2, 1})
	swapped := sorted([]float32{2, 3, 1})
	if err := e.Agrees(swapped, true); !errors.Is(err, ErrEcho) || !strings.Contains(err.Error(), "2 of 8 ids and 0 of 8 logits") {
		t.Error(err)
	}
}

// Two computations whose every logit is within the tolerance agree, whatever the order of near ties and whatever falls off the end.
func TestNearEchoesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := logits(-30, 30).Draw(t, "logits")
		e := sorted(l)
		most := tolerance(e, e) * 0.9
		noisy := slices.Clone(l)
		for i := range noisy {
			noisy[i] += float32(most * rapid.Float64Range(-1, 1).Draw(t, "noise"))
		}
		own := sorted(noisy)
		if err := e.Agrees(own, false); err != nil {
			t.Fatalf("%v\n%v\n%v", err, e, own)
		}
		if err := own.Agrees(e, false); err != nil {
			t.Fatalf("one way only: %v", err)
		}
	})
}

func TestAgreementIsSymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := logits(-5, 5).Draw(t, "logits")
		other := slices.Clone(l)
		for i := range other {
			other[i] += rapid.Float32Range(-0.5, 0.5).Draw(t, "noise")
		}
		a, b := sorted(l), sorted(other)
		if there, back := a.Agrees(b, false), b.Agrees(a, false); (there == nil) != (back == nil) {
			t.Fatalf("%v but %v", there, back)
		}
	})
}

func TestFarEchoesDisagree(t *testing.T) {
	base := []float32{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	change := func(f func([]float32)) Echo { l := slices.Clone(base); f(l); return sorted(l) }
	own := sorted(base)
	// The largest magnitude is 12: the tolerance is 0.48.
	for name, c := range map[string]struct {
		e    Echo
		text string
	}{
		"the first moved":         {change(func(l []float32) { l[0] += 0.6 }), "rank 1 is 0.6"},
		"the eighth moved":        {change(func(l []float32) { l[7] += 0.6 }), "rank 8 is 0.6"},
		"a stranger on top":       {change(func(l []float32) { l[11] = 13 }), "rank 1 is not among the other's 8"},
		"a stranger at the end":   {change(func(l []float32) { l[11] = 5.6 }), "rank 8 is not among"},
		"one of ours fell far":    {change(func(l []float32) { l[3] = -9 }), "rank 4 is not among the other's 8, and"},
		"all moved together":      {change(func(l []float32) { shift(l, 1) }), "rank 1 is 1"},
		"another vocabulary size": {sorted(base[:7]), "7 ids against 8"},
	} {
		if err := c.e.Agrees(own, false); !errors.Is(err, ErrEcho) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := change(func(l []float32) { l[0] += 0.4; l[7] -= 0.4 }).Agrees(own, false); err != nil {
		t.Errorf("inside the tolerance: %v", err)
	}
	near := []float32{12, 11, 10, 9, 8, 7, 6, 5.01, 5}
	flipped := []float32{12, 11, 10, 9, 8, 7, 6, 5, 5.01}
	if err := sorted(near).Agrees(sorted(flipped), false); err != nil {
		t.Errorf("a near tie that swapped at the edge: %v", err)
	}
	small := sorted([]float32{3, 2, 1})
	for rank := range 3 {
		other := small
		other.IDs[rank] = 7
		if err := small.Agrees(other, false); !errors.Is(err, ErrEcho) {
			t.Errorf("another id at rank %d in a small vocabulary: %v", rank+1, err)
		}
	}
}

func shift(l []float32, by float32) {
	for i := range l {
		l[i] += by
	}
}
