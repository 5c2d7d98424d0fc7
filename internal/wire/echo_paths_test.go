package wire_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/wire"
)

// bench is a model and one pool that both legs take their pages from.
type bench struct {
	t      testing.TB
	model  *llm.Model
	runner *llm.CPU
	pool   *pool.Pool
	key    *mac.Key
	logits []float32
}

const benchPage = 16 // tokens

func newBench(t testing.TB, f *gguf.File) *bench {
	t.Helper()
	m, err := llm.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pool.New(pool.Config{Role: "test", Boot: page.NewBoot(), Geometry: m.Geometry(benchPage), Pages: 256})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, model: m, pool: p, runner: llm.NewRunner(m, llm.RunnerOptions{MaxRows: 128}), key: mac.New([32]byte{1}),
		logits: make([]float32, m.Config().Vocab)}
	t.Cleanup(func() {
		b.runner.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) lease(ids []int32) *pool.Lease {
	b.t.Helper()
	ticket, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: uint32(len(ids)), MaxTokens: 1}, capacity.Limit{Tokens: 1 << 20})
	if !v.IsZero() {
		b.t.Fatal(v)
	}
	l, err := b.pool.Reserve(ticket, capacity.PagesFor(len(ids), benchPage))
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *bench) forward(l *pool.Lease, ids []int32, from int) {
	b.t.Helper()
	for at := from; at < len(ids); at += 128 {
		end := min(at+128, len(ids))
		var v pool.View
		if err := l.View(&v, end, at); err != nil {
			b.t.Fatal(err)
		}
		err := b.runner.Forward([]llm.Chunk{{Tokens: ids[at:end], Pos: at, KV: &v, Logits: b.logits}})
		v.Done()
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) echo() wire.Echo {
	b.t.Helper()
	e, err := wire.EchoOf(b.logits)
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// prefill computes a prompt and returns what it would send: the pages, and the echo.
func (b *bench) prefill(path string, ids []int32) ([][]byte, wire.Echo) {
	b.t.Helper()
	b.use(path)
	l := b.lease(ids)
	b.forward(l, ids, 0)
	e := b.echo()
	pages := make([][]byte, l.Len())
	for i := range pages {
		if _, err := l.SealOwn(i, b.key); err != nil {
			b.t.Fatal(err)
		}
		pages[i] = make([]byte, b.pool.Geometry().Bytes())
		if _, err := l.CopyOut(pages[i], i); err != nil {
			b.t.Fatal(err)
		}
	}
	l.Release()
	<-l.Done()
	return pages, e
}

// decode lands pages and computes the last position from them.
func (b *bench) decode(path string, ids []int32, pages [][]byte) wire.Echo {
	b.t.Helper()
	b.use(path)
	l := b.lease(ids)
	for i, tag := range l.Tags() {
		if err := l.Land(i, tag, pages[i], b.key, b.key.Sum(mac.Page, uint64(i), pages[i])); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := l.SealPrompt(len(ids)); err != nil {
		b.t.Fatal(err)
	}
	b.forward(l, ids, len(ids)-1)
	e := b.echo()
	l.Release()
	<-l.Done()
	return e
}

func (b *bench) use(path string) {
	b.t.Helper()
	if err := kernel.SetPath(path); err != nil {
		b.t.Fatal(err)
	}
}

// paths of this machine; the one that runs is put back.
func paths(t testing.TB) []string {
	was := kernel.Path()
	t.Cleanup(func() {
		if err := kernel.SetPath(was); err != nil {
			t.Error(err)
		}
	})
	return kernel.Paths()
}

// The built-in model answers with what it attends to. So with the page it attends to replaced by another prompt's, its echo is
// another, on one path and across two; untouched, the echo is the same bits on one path and near across two.
func TestEchoSeesAForeignPage(t *testing.T) {
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1}))
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, f)
	ask := func(code string) []int32 {
		ids := []int32{recall.BOS}
		// The planted line fills the page with ordinal 1 alone.
		for _, c := range fmt.Sprintf("%-15s%-16s%-32scode is ", "A text of ours:", "code is "+code, "and more text that says nothing.") {
			ids = append(ids, c)
		}
		return ids
	}
	mine, theirs := ask("QZ71"), ask("xw58")
	for _, sender := range paths(t) {
		pages, echo := b.prefill(sender, mine)
		foreign, _ := b.prefill(sender, theirs)
		mixed := slices.Clone(pages)
		mixed[1] = foreign[1]
		for _, own := range kernel.Paths() {
			exact := sender == own
			if err := echo.Agrees(b.decode(own, mine, pages), exact); err != nil {
				t.Errorf("%s to %s, the right pages: %v", sender, own, err)
			}
			for _, exact := range []bool{exact, false} {
				if err := echo.Agrees(b.decode(own, mine, mixed), exact); !errors.Is(err, wire.ErrEcho) {
					t.Errorf("%s to %s, a foreign page, exact %v: %v", sender, own, exact, err)
				}
			}
		}
	}
}

// With SLUICE_ECHO_MODEL=FILE.gguf and SLUICE_ECHO_TEXT=FILE: how far two honest paths are apart on that model, and how far damage
// moves the echo, in parts of the largest logit. echoNear must lie above the first; how much of the rest lies below it is what a
// pair on two paths does not see.
func TestEchoAcrossPaths(t *testing.T) {
	file, text := os.Getenv("SLUICE_ECHO_MODEL"), os.Getenv("SLUICE_ECHO_TEXT")
	if file == "" || text == "" {
		t.Skip("SLUICE_ECHO_MODEL and SLUICE_ECHO_TEXT name no files")
	}
	f, err := gguf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	words, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	encoder, err := prompt.New(f)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := encoder.Text(string(words[:min(len(words), 8000)]), 0)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, f)
	all := paths(t)
	if len(all) < 2 {
		t.Skip("this machine has one path")
	}
	moved := map[string][]float64{}
	unseen := map[string]int{}
	note := func(what string, e, own wire.Echo, exact bool) {
		moved[what] = append(moved[what], distance(e, own))
		if e.Agrees(own, exact) == nil {
			unseen[what]++
		}
	}
	const length = 100
	for at := 0; at+2*length < len(ids); at += length / 2 {
		mine, theirs := ids[at:at+length], ids[at+length:at+2*length]
		pages, echo := b.prefill(all[0], mine)
		foreign, _ := b.prefill(all[0], theirs)
		note("two paths, honest", echo, b.decode(all[1], mine, pages), false)
		i := 1 + at%5
		damage := map[string][]byte{"foreign": foreign[i], "missing": make([]byte, len(pages[i])), "doubled": pages[i-1], "torn": slices.Clone(pages[i])}
		clear(damage["torn"][len(pages[i])/2:])
		for name, bytes := range damage {
			with := slices.Clone(pages)
			with[i] = bytes
			note("one path, "+name, echo, b.decode(all[0], mine, with), true)
			note("two paths, "+name, echo, b.decode(all[1], mine, with), false)
		}
	}
	for _, what := range slices.Sorted(func(yield func(string) bool) {
		for k := range moved {
			if !yield(k) {
				return
			}
		}
	}) {
		d := moved[what]
		slices.Sort(d)
		t.Logf("%-20s n %d, moved by min %.4f median %.4f max %.4f; agreed %d", what, len(d), d[0], d[len(d)/2], d[len(d)-1], unseen[what])
	}
	if n := len(moved["two paths, honest"]); unseen["two paths, honest"] != n {
		t.Errorf("false alarms: %d of %d", n-unseen["two paths, honest"], n)
	}
}

// distance is how far two echoes are apart at least, in parts of the largest logit.
func distance(a, b wire.Echo) float64 {
	magnitude, d := 0.0, 0.0
	for _, e := range []wire.Echo{a, b} {
		magnitude = max(magnitude, math.Abs(float64(e.Logits[0])))
	}
	for _, pair := range [][2]wire.Echo{{a, b}, {b, a}} {
		for i, id := range pair[0].IDs {
			l := float64(pair[0].Logits[i])
			if j := slices.Index(pair[1].IDs[:], id); j >= 0 {
				d = max(d, math.Abs(l-float64(pair[1].Logits[j])))
			} else {
				d = max(d, l-float64(pair[1].Logits[wire.EchoWidth-1]))
			}
		}
	}
	return d / magnitude
}
