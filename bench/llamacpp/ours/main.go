// Command ours is our side of the comparison with llama.cpp: see ../README.md.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/prompt"
)

// peer is what llama.cpp said.
type peer struct {
	Release string `json:"llamacpp"`
	Texts   []struct {
		Plain   []int32 `json:"plain"`
		Special []int32 `json:"special"`
	} `json:"texts"`
	Chats []struct {
		Prompt  []int32   `json:"prompt"`
		Reply   []int32   `json:"reply"`
		Margins []float64 `json:"margins"`
	} `json:"chats"`
}

func main() {
	write := flag.String("write-cases", "", "write the cases to this file and end")
	expanded := flag.String("expand", "", "write -model with F32 weights to this file and end")
	model := flag.String("model", "", "the model file")
	casesFile := flag.String("cases", "", "the cases")
	peerFile := flag.String("peer", "", "llama.cpp's answers to them")
	flag.Parse()
	var err error
	switch {
	case *write != "":
		err = writeCases(*write)
	case *expanded != "":
		err = expand(*model, *expanded)
	default:
		err = compare(*model, *casesFile, *peerFile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeCases(file string) error {
	c, err := makeCases([]string{"docs/architecture.md", "internal/prompt/merge.go", "internal/prompt/split.go", "Makefile", "LICENSE"})
	if err != nil {
		return err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

func read(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func compare(model, casesFile, peerFile string) error {
	var c cases
	var p peer
	if err := errors.Join(read(casesFile, &c), read(peerFile, &p)); err != nil {
		return err
	}
	if len(p.Texts) != len(c.Texts) || len(p.Chats) != len(c.Chats) {
		return errors.New("the answers are to other cases")
	}
	f, err := gguf.Open(model)
	if err != nil {
		return err
	}
	e, err := prompt.New(f)
	if err != nil {
		return err
	}
	m, err := llm.Load(f)
	if err != nil {
		return err
	}
	fmt.Printf("llama.cpp %s against kernels %s\n", p.Release, kernel.Path())
	bad := compareTokens(e, c, p)
	wrong, same, err := compareReplies(e, m, c, p)
	if err != nil {
		return err
	}
	astray, err := compareServed(e, model, c, p, same)
	if err != nil {
		return err
	}
	if astray > 0 {
		return fmt.Errorf("%d replies of the fleet differ from those of its own kernels", astray)
	}
	if bad+wrong > 0 {
		return fmt.Errorf("%d texts or prompts with other token ids, %d replies that differ by more than half a logit", bad, wrong)
	}
	return nil
}

func compareTokens(e *prompt.Encoder, c cases, p peer) (bad int) {
	tokens, took := 0, time.Duration(0)
	for i, text := range c.Texts {
		start := time.Now()
		ids, err := e.Text(text, 0)
		took += time.Since(start)
		if err != nil && !errors.Is(err, prompt.ErrEmpty) {
			fmt.Printf("  text %d: %v\n", i, err)
		}
		if len(ids) > 0 && ids[0] == e.BOS() && (len(p.Texts[i].Plain) == 0 || p.Texts[i].Plain[0] != e.BOS()) {
			ids = ids[1:]
		}
		tokens += len(ids)
		bad += differ("text", i, ids, p.Texts[i].Plain)
	}
	fmt.Printf("texts: %d of %d identical, %d tokens, %.1f million tokens/s\n", len(c.Texts)-bad, len(c.Texts), tokens, float64(tokens)/took.Seconds()/1e6)
	wrong := 0
	for i, chat := range c.Chats {
		ids, err := e.Chat(chat.prompt(), 0)
		if err != nil {
			fmt.Printf("  chat %d: %v\n", i, err)
		}
		wrong += differ("chat", i, ids, p.Chats[i].Prompt)
	}
	fmt.Printf("chat prompts: %d of %d identical\n", len(c.Chats)-wrong, len(c.Chats))
	return bad + wrong
}

func differ(what string, i int, ours, theirs []int32) int {
	if slices.Equal(ours, theirs) {
		return 0
	}
	at := 0
	for at < len(ours) && at < len(theirs) && ours[at] == theirs[at] {
		at++
	}
	fmt.Printf("  %s %d differs at token %d: %d tokens, llama.cpp %d\n", what, i, at, len(ours), len(theirs))
	return 1
}

// sequence runs one prompt through pages of a pool.
type sequence struct {
	run    *llm.CPU
	lease  *pool.Lease
	view   pool.View
	pos    int
	logits []float32
}

func (s *sequence) feed(ids []int32) error {
	for len(ids) > 0 {
		n := min(len(ids), s.run.MaxRows())
		if err := s.lease.View(&s.view, s.pos+n, s.pos); err != nil {
			return err
		}
		err := s.run.Forward([]llm.Chunk{{Tokens: ids[:n], Pos: s.pos, KV: &s.view, Logits: s.logits}})
		s.view.Done()
		if err != nil {
			return err
		}
		ids, s.pos = ids[n:], s.pos+n
	}
	return nil
}

// compareReplies follows llama.cpp's replies and says where ours would have gone elsewhere.
func compareReplies(e *prompt.Encoder, m *llm.Model, c cases, p peer) (wrong int, equals []bool, err error) {
	run := llm.NewRunner(m, llm.RunnerOptions{})
	defer run.Close()
	const pageTokens = 64
	equal := 0
	for i := range c.Chats {
		prompt, theirs := p.Chats[i].Prompt, p.Chats[i].Reply
		slots := len(prompt) + len(theirs)
		pl, err := pool.New(pool.Config{Role: "bench", Boot: page.NewBoot(), Geometry: m.Geometry(pageTokens), Pages: capacity.PagesFor(slots, pageTokens)})
		if err != nil {
			return wrong, nil, err
		}
		tk, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: uint32(len(prompt)), MaxTokens: uint32(len(theirs))}, capacity.Limit{Tokens: slots})
		if !v.IsZero() {
			return wrong, nil, v
		}
		lease, err := pl.Reserve(tk, pl.Stats().Total)
		if err != nil {
			return wrong, nil, err
		}
		s := sequence{run: run, lease: lease, logits: make([]float32, m.Config().Vocab)}
		same, large := true, false
		next := prompt
		for at, id := range theirs {
			if err := s.feed(next); err != nil {
				return wrong, nil, err
			}
			if own := best(s.logits); own != id {
				margin := float64(s.logits[own] - s.logits[id])
				fmt.Printf("  chat %d: token %d is %d, llama.cpp's %d; ours won by %.3f logits, theirs by %.3f\n", i, at, own, id, margin, p.Chats[i].Margins[at])
				same = false
				large = large || margin > 0.5 && p.Chats[i].Margins[at] > 0.5
			}
			next = []int32{id}
		}
		equals = append(equals, same)
		if same {
			equal++
		}
		if large {
			wrong++
		}
		fmt.Printf("  chat %d: %d tokens, smallest margin there %.3f: %.70q\n", i, len(theirs), slices.Min(p.Chats[i].Margins), text(e, theirs))
		lease.Release()
		<-lease.Done()
		if err := pl.Close(); err != nil {
			return wrong, nil, err
		}
	}
	fmt.Printf("greedy replies: %d of %d equal\n", equal, len(c.Chats))
	return wrong, equals, nil
}

func best(logits []float32) int32 {
	b := 0
	for i, l := range logits {
		if l > logits[b] {
			b = i
		}
	}
	return int32(b)
}
