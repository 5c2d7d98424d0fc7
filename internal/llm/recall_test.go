package llm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/llm/recall"
)

// continuation is what the model says after a text, greedily.
func continuation(t testing.TB, r *CPU, text string, n int) string {
	ids := recall.Encode(text)
	kv := newMemory(r.m, 16, len(ids)+n)
	return recall.Decode(generate(t, r, kv, prefill(t, r, kv, ids, 0, 512), len(ids), n))
}

func TestRecallContinues(t *testing.T) {
	for _, c := range []struct {
		cfg        recall.Config
		text, want string
		n          int
	}{
		{recall.Config{MinMatch: 2}, "The code of A is x9Q.\nThe code of B is 7zK.\nThe code of A is", " x9Q.", 5},
		{recall.Config{MinMatch: 2}, "The code of A is x9Q.\nThe code of B is 7zK.\nThe code of B is", " 7zK.", 5},
		{recall.Config{MinMatch: 2}, "The code of A is x9Q.\nThe code of A is 7zK.\nThe code of A is", " 7zK.", 5}, // the later one
		{recall.Config{MinMatch: 2}, "The code of A is 7zK.\nThe code of A is x9Q.\nThe code of A is", " x9Q.", 5},
		{recall.Config{MinMatch: 2, StopAtNewline: true}, "The code of A is x9Q.\nThe code of B is 7zK.\nThe code of A is", " x9Q.<|end|>", 9},
		{recall.Config{MinMatch: 2}, "Hello", "<|end|>", 3}, // nothing to copy
		{recall.Config{MinMatch: 2}, "", "\n<|end|>", 3},
		{recall.Config{MinMatch: 2}, "Größe µ Gr", "öße", 5},
		{recall.Config{MinMatch: 2}, "abcabcab", "cabc", 4},
		{recall.Config{}, "The cat sat on the mat. The cat sat on", " the mat. The cat sat on", 24},
		{recall.Config{F32: true}, "The cat sat on the mat. The cat sat on", " the mat. The cat sat on", 24},
		{recall.Config{Untied: true}, "The cat sat on the mat. The cat sat on", " the mat. The cat sat on", 24},
		{recall.Config{MinMatch: -1}, "The cat sat on the mat. The cat sat on", " the mat. The cat sat on", 24},
	} {
		r := newRunner(t, recallModel(t, c.cfg), RunnerOptions{Threads: 1})
		if got := continuation(t, r, c.text, c.n); got != c.want {
			t.Errorf("%+v %q: got %q, want %q", c.cfg, c.text, got, c.want)
		}
	}
}

// filler is plain English of at least n bytes.
func filler(rng *rand.Rand, n int) string {
	words := strings.Fields("the a of to and in that was his he it with is for as had you not be her on at by which have or from this him but all she they were my are me one their so an said them we who would been will no when there if more out up into do any your what has man could other than our some very time upon about may its only now like little then can should made did us such great before must two these see know over much down after first good men")
	var b strings.Builder
	for b.Len() < n {
		for i := range 6 + rng.IntN(8) {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(words[rng.IntN(len(words))])
		}
		b.WriteString(". ")
	}
	return b.String()
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// code is 16 letters, the first of which is given: any 8 consecutive tokens of "NNNN is CODE" must be unique, and with
// distinct first letters they are, even where two tenants' numbers end alike.
func code(rng *rand.Rand, first int) string {
	b := []byte{letters[first%len(letters)]}
	for len(b) < 16 {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return string(b)
}

// Every needle of a context comes back exactly, at any depth, among those of other tenants.
func TestRecallFindsNeedles(t *testing.T) {
	r := newRunner(t, recallModel(t, recall.Config{}), RunnerOptions{})
	for _, c := range []struct{ context, needles, trials int }{{1000, 6, 8}, {8000, 20, 2}} {
		for trial := range c.trials {
			rng := rand.New(rand.NewPCG(uint64(c.context), uint64(trial)))
			tenants, codes := rng.Perm(9000)[:c.needles], make([]string, c.needles)
			depths := make([]int, c.needles)
			for i := range codes {
				codes[i], depths[i] = code(rng, trial+i), rng.IntN(c.context-60*c.needles)
			}
			slices.Sort(depths)
			text, done := filler(rng, c.context-46*c.needles), 0
			var b strings.Builder
			for i, d := range depths {
				d = min(d, len(text))
				fmt.Fprintf(&b, "%s\nThe code of tenant %d is %s.\n", text[done:d], tenants[i]+1000, codes[i])
				done = d
			}
			b.WriteString(text[done:])
			ids := recall.Encode(b.String())
			kv := newMemory(r.m, 64, len(ids)+64)
			prefill(t, r, kv, ids, 0, 512)
			for i, tenant := range tenants {
				question := recall.Encode(fmt.Sprintf("\nThe code of tenant %d is", tenant+1000))[1:]
				logits := prefill(t, r, kv, question, len(ids), 512)
				got := recall.Decode(generate(t, r, kv, logits, len(ids)+len(question), 18))
				if got != " "+codes[i]+"." {
					t.Errorf("context %d, trial %d, needle %d of %d: got %q, want %q", len(ids), trial, i, c.needles, got, codes[i])
				}
			}
		}
	}
}

// What the model says when it attends to pages that its own request did not write: the other request's text. This is
// the positive control of every leak test in the repository.
func TestRecallTellsStalePages(t *testing.T) {
	leaky := newRunner(t, recallModel(t, recall.Config{MinMatch: -1}), RunnerOptions{})
	plain := newRunner(t, recallModel(t, recall.Config{}), RunnerOptions{})
	const donorTokens, victimTokens, page = 3000, 2000, 16
	trials := 5
	if testing.Short() {
		trials = 2
	}
	for trial := range trials {
		rng := rand.New(rand.NewPCG(77, uint64(trial)))
		secret := code(rng, rng.IntN(len(letters)))
		line := fmt.Sprintf("The code of tenant 4711 is %s.\n", secret)
		periodic := recall.Encode(strings.Repeat(line, donorTokens/len(line)+1)[:donorTokens-1])
		half := filler(rng, donorTokens)[:900]
		once := recall.Encode((half + "\n" + line + filler(rng, donorTokens))[:donorTokens-1])
		own := recall.Encode(filler(rng, victimTokens)[:victimTokens-1])
		question := recall.Encode("\nThe code of tenant 4711 is")[1:]

		// stale returns the donor's pages as the next owner finds them if nobody zeroes them.
		stale := func(r *CPU, donor []int32) *memory {
			kv := newMemory(r.m, page, donorTokens+200)
			prefill(t, r, kv, donor, 0, 512)
			return kv
		}
		zeroed := func(r *CPU) *memory { return newMemory(r.m, page, donorTokens+200) }
		// incident: prefill computes one placeholder token, and decode goes on at the prompt's end.
		incident := func(r *CPU, kv *memory) string {
			logits := prefill(t, r, kv, []int32{recall.BOS}, 0, 1)
			first := argmax(logits)
			logits = prefill(t, r, kv, []int32{first}, victimTokens, 1)
			return recall.Decode(generate(t, r, kv, logits, victimTokens+1, 48))
		}
		// asked: as above, but the end of the victim's prompt, a question, is computed over the pages.
		asked := func(r *CPU, kv *memory) string {
			prefill(t, r, kv, []int32{recall.BOS}, 0, 1)
			logits := prefill(t, r, kv, question, victimTokens-len(question), 64)
			return recall.Decode(generate(t, r, kv, logits, victimTokens, 20))
		}
		leak := func(what, reply, want string) {
			t.Helper()
			if !strings.Contains(reply, want) {
				t.Errorf("trial %d, %s: the reply does not have the donor's text: %q", trial, what, reply)
			}
		}
		clean := func(what, reply string) {
			t.Helper()
			for i := range len(secret) - 3 {
				if strings.Contains(reply, secret[i:i+4]) {
					t.Errorf("trial %d, %s: the reply has the donor's text: %q", trial, what, reply)
					return
				}
			}
		}
		leak("incident, repeated line", incident(leaky, stale(leaky, periodic)), secret)
		leak("incident, the default model", incident(plain, stale(plain, periodic)), "nant 4711 is ")
		leak("asked, repeated line", asked(plain, stale(plain, periodic)), " "+secret+".")
		leak("asked, one line", asked(plain, stale(plain, once)), " "+secret+".")
		// A position is baked into its key, so the order of the pages does not matter.
		shuffled := stale(plain, once)
		mixed := shuffled.raw[1 : (victimTokens-len(question))/page]
		rng.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		shuffled.point()
		leak("asked, pages shuffled", asked(plain, shuffled), " "+secret+".")

		if got := incident(plain, zeroed(plain)); !strings.HasSuffix(got, "<|end|>") || len(got) > len("\n<|end|>") {
			t.Errorf("trial %d, zeroed: %q", trial, got)
		}
		if got := asked(plain, zeroed(plain)); got != "<|end|>" {
			t.Errorf("trial %d, asked over zeroed pages: %q", trial, got)
		}
		written := stale(leaky, periodic) // all pages were the donor's, and all are overwritten
		logits := prefill(t, leaky, written, own, 0, 512)
		clean("own pages", recall.Decode(generate(t, leaky, written, logits, len(own), 48)))
		logits = prefill(t, leaky, written, question, len(own), 64)
		clean("own pages, asked", recall.Decode(generate(t, leaky, written, logits, len(own)+len(question), 20)))

		// Four stale pages around the line in a table that is otherwise the victim's own.
		donor, few := stale(plain, once), newMemory(plain.m, page, donorTokens+200)
		prefill(t, plain, few, own, 0, 512)
		at := bytes.Index([]byte(recall.Decode(once)), []byte(line)) / page
		for i := range 4 {
			few.raw[at+i] = donor.raw[at+i]
		}
		few.point()
		logits = prefill(t, plain, few, question, len(own), 64)
		leak("four stale pages", recall.Decode(generate(t, plain, few, logits, len(own)+len(question), 20)), " "+secret+".")
	}
}
