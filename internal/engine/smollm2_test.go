package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	encoding "github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// spoken collects a reply as token ids.
type spoken struct {
	decodeSink
	ids []int32
}

func (s *spoken) Token(id int32) bool { s.ids = append(s.ids, id); return true }

// A real model says the same whatever the page size, the chunk and the company. SLUICE_SMOLLM2 names its file (make model).
func TestSmolLM2SaysTheSame(t *testing.T) {
	path := os.Getenv("SLUICE_SMOLLM2")
	if path == "" {
		t.Skip("SLUICE_SMOLLM2 does not name the model's file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	enc, err := encoding.New(f)
	if err != nil {
		t.Fatal(err)
	}
	m, err := llm.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	var prompts [][]int32
	for _, q := range []string{"What is gravity?", "List three colours.", "Why is the sky blue?", "Write a haiku.", "Größe? 日本 😀", "Count to ten.",
		strings.Repeat("The train leaves at nine. ", 40) + "When does the train leave?", "Hi"} {
		ids, err := enc.Chat([]encoding.Message{{Role: "user", Content: q}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, ids)
	}
	const most = 24
	want := make([]string, len(prompts))
	for _, pageTokens := range []int{16, 64} {
		for _, chunk := range []int{64, 512} {
			for _, together := range []int{1, 8} {
				p := newPool(t, m, pageTokens, 2*8*400/pageTokens)
				pre, dec := llm.NewRunner(m, llm.RunnerOptions{MaxRows: chunk}), llm.NewRunner(m, llm.RunnerOptions{MaxRows: 8})
				pf := NewPrefill(PrefillConfig{Runner: pre, Vocab: m.Config().Vocab, PageTokens: pageTokens, Chunk: chunk})
				dc := NewDecode(DecodeConfig{Runner: dec, Vocab: m.Config().Vocab, EOS: enc.EOS(), PageTokens: pageTokens, MaxBatch: 8, Freed: p.Freed})
				for from := 0; from < len(prompts); from += together {
					group := prompts[from : from+together]
					var sinks []*prefillSink
					var tickets []admission.Ticket
					var leases []*pool.Lease
					for _, ids := range group {
						tk := ticket(t, ids, most, admission.Sampling{})
						l, err := p.Reserve(tk, p.Geometry().Pages(len(ids)))
						if err != nil {
							t.Fatal(err)
						}
						s := &prefillSink{out: make(chan prefillEnd, 1)}
						if err := pf.Submit(PrefillJob{Ticket: tk, Lease: l, Tokens: ids, Key: mac.New([32]byte{1}), Sink: s}); err != nil {
							t.Fatal(err)
						}
						sinks, tickets, leases = append(sinks, s), append(tickets, tk), append(leases, l)
					}
					var outs []*spoken
					for i, s := range sinks {
						end := wait(t, s.out)
						l := handOver(t, p, tickets[i], leases[i], s.macs, len(group[i]))
						leases = append(leases, l)
						d := &spoken{decodeSink: decodeSink{out: make(chan reply, 1), check: func(own wire.Echo) verdict.Verdict {
							if err := end.echo.Agrees(own, true); err != nil {
								return verdict.Of(verdict.EchoMismatch, verdict.Echo, "%v", err)
							}
							return verdict.Verdict{}
						}}}
						if err := dc.Submit(DecodeJob{Ticket: tickets[i], Lease: l, Sink: d}); err != nil {
							t.Fatal(err)
						}
						outs = append(outs, d)
					}
					for i, d := range outs {
						r := wait(t, d.out)
						text := ""
						detok := enc.Detokenizer()
						for _, id := range d.ids {
							text += detok.Add(id)
						}
						text += detok.Flush()
						if want[from+i] == "" {
							want[from+i] = text
							t.Logf("%q", text)
						}
						if !r.v.OK() || text != want[from+i] || text == "" {
							t.Errorf("page %d, chunk %d, %d at once: prompt %d: %v, %q, first %q", pageTokens, chunk, together, from+i, r.v, text, want[from+i])
						}
					}
					for _, l := range leases {
						l.Release()
						<-l.Done()
					}
				}
				pf.Close()
				dc.Close()
				pre.Close()
				dec.Close()
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
