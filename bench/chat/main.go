// Command chat asks a real model through three processes, with every page size, chunk and crowd, and demands one text for each prompt.
//
//	go run ./bench/chat [-model FILE.gguf]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicekv/sluice/bench/trio"
)

var questions = []string{
	"What is gravity?",
	"Write two sentences about a river in autumn.",
	"List three uses of copper.",
	"Explain to a child why the sky is blue.",
	"What is the capital of France, and what is it known for?",
	"Give me a recipe for pancakes.",
	"Why do cats purr?",
	strings.Repeat("The river turned slowly past old mills and the boats lay tied under grey willows. ", 12) + "\nSummarize the text above in one sentence.",
}

func main() {
	model := flag.String("model", "models/SmolLM2-135M-Instruct.Q4_1.gguf", "a GGUF `file` with a chat template")
	tokens := flag.Int("tokens", 48, "length of a reply")
	flag.Parse()
	if err := run(context.Background(), *model, *tokens); err != nil {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, model string, tokens int) error {
	dir, err := os.MkdirTemp("", "sluice-chat")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := trio.Build(ctx, dir)
	if err != nil {
		return err
	}
	var texts []string // of the first setting: what all others must say
	ways, differ := 0, 0
	for _, page := range []int{16, 64} {
		for _, chunk := range []int{64, 512} {
			f, err := trio.Start(ctx, trio.Options{Binary: binary, Model: model, Both: []string{
				"--page-tokens", strconv.Itoa(page), "--prefill-chunk", strconv.Itoa(chunk), "--kv-memory", "1GiB",
			}})
			if err != nil {
				return err
			}
			for _, crowd := range []int{1, len(questions)} {
				got, err := ask(ctx, f, crowd, tokens)
				if err != nil {
					f.Close()
					return err
				}
				if texts == nil {
					texts = got
				}
				ways++
				for i := range got {
					if got[i] != texts[i] {
						differ++
						fmt.Printf("page %d, chunk %d, %d at once: question %d\n  %q\n  not %q\n", page, chunk, crowd, i+1, got[i], texts[i])
					}
				}
			}
			f.Close()
		}
	}
	for i, q := range questions {
		if len(q) > 100 {
			q = "…" + q[len(q)-100:]
		}
		fmt.Printf("\n> %s\n%s\n", q, texts[i])
	}
	fmt.Printf("\n%d prompts, %d ways (page 16 and 64, chunk 64 and 512, 1 and %d at once): ", len(questions), ways, len(questions))
	if differ > 0 {
		fmt.Println()
		return fmt.Errorf("%d replies differ", differ)
	}
	fmt.Println("one text each")
	return nil
}

// ask puts all questions, crowd of them at once.
func ask(ctx context.Context, f *trio.Fleet, crowd, tokens int) ([]string, error) {
	texts, errs := make([]string, len(questions)), make([]error, len(questions))
	slots := make(chan struct{}, crowd)
	var wg sync.WaitGroup
	for i, q := range questions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r, err := f.Stream(ctx, trio.Request{Messages: []trio.Message{{Role: "user", Content: q}}, MaxTokens: tokens}, nil)
			if errs[i] = err; err == nil {
				texts[i] = r.Text()
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", i+1, err)
		}
	}
	return texts, nil
}
