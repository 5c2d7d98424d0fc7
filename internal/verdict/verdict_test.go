package verdict

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
)

func TestEveryCodeAndLayerHasAnEntryAndSurvivesJSON(t *testing.T) {
	seen := map[string]Code{}
	for c := None; c < numCodes; c++ {
		a := c.About()
		if a.Name == "" || a.Status < 200 || (c != OK && a.Type == "") {
			t.Errorf("code %d has no entry: %+v", c, a)
		}
		if d, dup := seen[a.Name]; dup {
			t.Errorf("codes %d and %d are both called %q", c, d, a.Name)
		}
		seen[a.Name] = c
		b, _ := json.Marshal(c)
		var back Code
		if err := json.Unmarshal(b, &back); err != nil || back != c {
			t.Errorf("%s: %s read back as %v, %v", c, b, back, err)
		}
	}
	for l := NoLayer; l < numLayers; l++ {
		b, _ := json.Marshal(l)
		var back Layer
		if err := json.Unmarshal(b, &back); err != nil || back != l || layers[l] == "" {
			t.Errorf("%s read back as %v, %v", b, back, err)
		}
	}
}

// A retry must never follow something that could be proof of a leak, and proof is never a client's fault.
func TestProofIsNeverRetriedAndIsNoClientError(t *testing.T) {
	for c := None; c < numCodes; c++ {
		a := c.About()
		if a.Proof && (a.Retry || a.Status < 500) {
			t.Errorf("%s: proof %v, retry %v, status %d", c, a.Proof, a.Retry, a.Status)
		}
	}
}

func TestTheSameRefusalReadsTheSameFromEveryLayer(t *testing.T) {
	for l := Body; l < numLayers; l++ {
		v := TooLong(l, 9000, 0, false, 4096, "the KV pool of prefill p0")
		if v.Reason != TooLong(Admission, 9000, 0, false, 4096, "the KV pool of prefill p0").Reason || v.Status != 400 || v.Layer != l {
			t.Errorf("%s: %v", l, v)
		}
		for _, want := range []string{"9000", "4096", "the KV pool of prefill p0"} {
			if !strings.Contains(v.Reason, want) {
				t.Errorf("%q lacks %q", v.Reason, want)
			}
		}
	}
}

func TestACellTakesOneVerdict(t *testing.T) {
	var c Cell
	if _, ok := c.Get(); ok {
		t.Fatal("an empty cell has a verdict")
	}
	done := c.Done()
	first := Of(PeerLost, Gate, "prefill p0")
	if !c.Set(first) || c.Set(first) {
		t.Fatal("the first Set stores, a repetition does not")
	}
	select {
	case <-done:
	default:
		t.Fatal("Done is not closed")
	}
	if c.TrySet(Served(Decode)) {
		t.Fatal("TrySet replaced a verdict")
	}
	var got [2]Verdict
	c.Conflict = func(a, b Verdict) { got = [2]Verdict{a, b} }
	c.Set(Served(Decode))
	if got[0] != first || got[1].Code != OK {
		t.Fatalf("a second, different verdict was not reported: %v", got)
	}
	if v, _ := c.Get(); v != first {
		t.Fatalf("the verdict changed to %v", v)
	}
	c.Conflict = nil
	defer func() {
		if recover() == nil {
			t.Fatal("a second, different verdict did not panic")
		}
	}()
	c.Set(Served(Decode))
}

func TestTheZeroVerdictIsNeverStored(t *testing.T) {
	var c Cell
	for _, set := range []func(Verdict) bool{c.Set, c.TrySet} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			set(Verdict{})
		}()
	}
}

func TestOfManyRacingEndsOneIsFirst(t *testing.T) {
	for range 100 {
		var c Cell
		var wg sync.WaitGroup
		var mu sync.Mutex
		firsts := 0
		for i := range 8 {
			wg.Go(func() {
				if c.TrySet(Of(Deadline, Layer(1+i), "")) {
					mu.Lock()
					firsts++
					mu.Unlock()
				}
				<-c.Done()
			})
		}
		wg.Wait()
		if firsts != 1 {
			t.Fatalf("%d were first", firsts)
		}
	}
}
