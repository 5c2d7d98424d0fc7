package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func recallModel(t testing.TB) *llm.Model {
	t.Helper()
	f, err := gguf.Parse(recall.Build(recall.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	m, err := llm.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newPool(t testing.TB, m *llm.Model, pageTokens, pages int) *pool.Pool {
	t.Helper()
	p, err := pool.New(pool.Config{Role: "test", Boot: page.NewBoot(), Geometry: m.Geometry(pageTokens), Pages: pages})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func bytesOf(s string) []int32 {
	ids := []int32{256} // BOS
	for i := range len(s) {
		ids = append(ids, int32(s[i]))
	}
	return ids
}

func ticket(t testing.TB, ids []int32, maxTokens int, s admission.Sampling) admission.Ticket {
	t.Helper()
	tk, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: uint32(len(ids)), LastToken: ids[len(ids)-1],
		MaxTokens: uint32(maxTokens), Sampling: s}, capacity.Limit{Tokens: 1 << 20})
	if !v.IsZero() {
		t.Fatal(v)
	}
	return tk
}

type prefillEnd struct {
	computed int
	echo     wire.Echo
	v        verdict.Verdict
	sealed   int
}

type prefillSink struct {
	sealed int
	macs   []mac.Tag
	out    chan prefillEnd
}

func (s *prefillSink) Sealed(from int, macs []mac.Tag) {
	if from != s.sealed {
		panic("pages out of order")
	}
	s.sealed += len(macs)
	s.macs = append(s.macs, macs...)
}
func (s *prefillSink) Done(n int, e wire.Echo, v verdict.Verdict) {
	s.out <- prefillEnd{n, e, v, s.sealed}
}

type reply struct {
	text   string
	n      int
	finish Finish
	v      verdict.Verdict
	own    wire.Echo
}

type decodeSink struct {
	check func(wire.Echo) verdict.Verdict
	r     reply
	text  strings.Builder
	out   chan reply
}

func (s *decodeSink) Echo(own wire.Echo) verdict.Verdict {
	s.r.own = own
	if s.check != nil {
		return s.check(own)
	}
	return verdict.Verdict{}
}
func (s *decodeSink) Token(id int32) bool { s.text.WriteByte(byte(id)); return true }
func (s *decodeSink) Done(n int, f Finish, v verdict.Verdict) {
	s.r.text, s.r.n, s.r.finish, s.r.v = s.text.String(), n, f, v
	s.out <- s.r
}

func wait[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("no answer")
		panic(0)
	}
}

// handOver lands the pages of a prefilled lease in one of decode's, and seals them there.
func handOver(t testing.TB, to *pool.Pool, tk admission.Ticket, from *pool.Lease, macs []mac.Tag, tokens int) *pool.Lease {
	t.Helper()
	l, err := to.Reserve(tk, len(macs))
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, to.Geometry().Bytes())
	for i, tag := range l.Tags() {
		if _, err := from.CopyOut(frame, i); err != nil {
			t.Fatal(err)
		}
		if err := l.Land(i, tag, frame, mac.New([32]byte{1}), macs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SealPrompt(tokens); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAReplyIsTheSameHoweverTheWorkIsCut(t *testing.T) {
	m := recallModel(t)
	prompt := bytesOf(strings.Repeat("nothing here. ", 40) + "The code of tenant 4711 is bPlNFGdSC2wd8f2Q.\n" + strings.Repeat("and more of it. ", 20) + "The code of tenant 4711 is")
	const want = " bPlNFGdSC2wd8f2Q.\n"
	for _, pageTokens := range []int{16, 64} {
		for _, chunk := range []int{64, 512} {
			for _, together := range []int{1, 8} {
				p := newPool(t, m, pageTokens, 16*1400/pageTokens+16)
				pre := llm.NewRunner(m, llm.RunnerOptions{Threads: 1, MaxRows: chunk})
				dec := llm.NewRunner(m, llm.RunnerOptions{Threads: 1, MaxRows: 8})
				pf := NewPrefill(PrefillConfig{Runner: pre, Vocab: m.Config().Vocab, PageTokens: pageTokens, Chunk: chunk})
				dc := NewDecode(DecodeConfig{Runner: dec, Vocab: m.Config().Vocab, EOS: m.Config().EOS, PageTokens: pageTokens, MaxBatch: 8, Freed: p.Freed})
				var leases []*pool.Lease
				var tickets []admission.Ticket
				var sinks []*prefillSink
				for range together {
					tk := ticket(t, prompt, len(want), admission.Sampling{})
					l, err := p.Reserve(tk, p.Geometry().Pages(len(prompt)))
					if err != nil {
						t.Fatal(err)
					}
					s := &prefillSink{out: make(chan prefillEnd, 1)}
					if err := pf.Submit(PrefillJob{Ticket: tk, Lease: l, Tokens: prompt, Key: mac.New([32]byte{1}), Sink: s}); err != nil {
						t.Fatal(err)
					}
					leases, sinks, tickets = append(leases, l), append(sinks, s), append(tickets, tk)
				}
				var replies []*decodeSink
				for i, s := range sinks {
					e := wait(t, s.out)
					if !e.v.IsZero() || e.computed != len(prompt) || e.sealed != p.Geometry().Pages(len(prompt)) {
						t.Fatalf("page %d chunk %d: %+v", pageTokens, chunk, e)
					}
					l := handOver(t, p, tickets[i], leases[i], s.macs, len(prompt))
					leases = append(leases, l)
					d := &decodeSink{out: make(chan reply, 1), check: func(own wire.Echo) verdict.Verdict {
						if err := e.echo.Agrees(own, true); err != nil {
							return verdict.Of(verdict.EchoMismatch, verdict.Echo, "%v", err)
						}
						return verdict.Verdict{}
					}}
					if err := dc.Submit(DecodeJob{Ticket: tickets[i], Lease: l, Sink: d}); err != nil {
						t.Fatal(err)
					}
					replies = append(replies, d)
				}
				for _, d := range replies {
					if r := wait(t, d.out); r.text != want || r.n != len(want) || r.finish != FinishLength || !r.v.OK() {
						t.Fatalf("page %d chunk %d, %d at once: %+v", pageTokens, chunk, together, r)
					}
				}
				for _, l := range leases {
					l.Release()
					<-l.Done()
				}
				pf.Close()
				dc.Close()
				pre.Close()
				dec.Close()
				if st := p.Stats(); st.Free != st.Total || p.ScanFree() != 0 {
					t.Fatalf("%+v", st)
				}
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
