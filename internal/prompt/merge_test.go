package prompt

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// randomBPE has merges in an order no trainer would give: a low rank may appear only after a high one.
func randomBPE(r *rand.Rand, merges int) *bpe {
	v := &vocabulary{ids: map[string]int32{}}
	add := func(s string) {
		v.ids[s] = int32(len(v.text))
		v.text = append(v.text, s)
		v.kind = append(v.kind, kindNormal)
	}
	for b := range v.bytes {
		v.bytes[b] = int32(b)
		add(string([]byte{byte(b)}))
	}
	letters := "abc"
	pool := strings.Split(letters, "")
	var list []string
	for len(list) < merges {
		l, r := pool[r.IntN(len(pool))], pool[r.IntN(len(pool))]
		if _, ok := v.ids[l+r]; ok || len(l+r) > 9 {
			merges--
			continue
		}
		add(l + r)
		pool = append(pool, l+r)
		list = append(list, l+" "+r)
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	b, err := newBPE(v, list, preGPT2)
	if err != nil {
		panic(err)
	}
	return b
}

// byDefinition is byte-pair encoding as its definition says.
func (b *bpe) byDefinition(w string) []int32 {
	var ids []int32
	for i := range len(w) {
		ids = append(ids, b.v.bytes[w[i]])
	}
	for {
		best, at := merging{rank: ^uint32(0)}, -1
		for i := range max(len(ids)-1, 0) {
			if m, ok := b.merges[pairOf(ids[i], ids[i+1])]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = best.id
		ids = slices.Delete(ids, at+1, at+2)
	}
}

func TestMergeIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := randomBPE(r, 40)
		w := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 120, -1).Draw(t, "w")
		if got, want := b.merge(newScratch(), w), b.byDefinition(w); !slices.Equal(got, want) {
			t.Fatalf("%q: got %v, want %v", w, got, want)
		}
	})
}

// A long word that is encoded by pieces has the tokens that it has as a whole.
func TestLongWordsByPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		b := randomBPE(r, 60)
		w := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 30, 400, -1).Draw(t, "w")
		if rapid.Bool().Draw(t, "periodic") {
			w = strings.Repeat(w[:1+r.IntN(7)], 60)
		}
		want := b.byDefinition(w)
		for _, b.piece = range []int{12, 40, 100} {
			out := output{keep: true}
			if !b.long(newScratch(), w, &out) || !slices.Equal(out.ids, want) {
				t.Fatalf("%q by pieces of %d: got %v, want %v", w, b.piece, out.ids, want)
			}
		}
	})
}

func TestLongWordStopsAtTheLimit(t *testing.T) {
	e := spec{pre: "gpt-2", merges: 60}.encoder(t)
	out := output{limit: 100}
	if e.bpe.encode(strings.Repeat("z", 1<<22), &out) || out.n < 101 || out.n > 101+longWord {
		t.Errorf("%d tokens were counted for a limit of 100", out.n)
	}
	out = output{limit: 100}
	if e.bpe.encode(strings.Repeat("the fox ", 1000), &out) || out.n != 101 {
		t.Errorf("%d tokens were counted for a limit of 100", out.n)
	}
}

func TestMergesThatAreNoPairsAreRefused(t *testing.T) {
	v := &vocabulary{ids: map[string]int32{}}
	for _, m := range []string{"", "a", "ab", " "} {
		if _, err := newBPE(v, []string{m}, preGPT2); err == nil {
			t.Errorf("merge %q was taken", m)
		}
	}
}
