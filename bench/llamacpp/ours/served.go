package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sluicekv/sluice/bench/trio"
	"github.com/sluicekv/sluice/internal/prompt"
)

// compareServed asks for the same replies over the API of a fleet of three processes. Where ours went llama.cpp's way token by token
// (same), the text must be llama.cpp's; elsewhere the two are printed beside each other.
func compareServed(e *prompt.Encoder, model string, c cases, p peer, same []bool) (wrong int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sluice-llamacpp")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary, err := trio.Build(ctx, dir)
	if err != nil {
		return 0, err
	}
	f, err := trio.Start(ctx, trio.Options{Binary: binary, Model: model, Both: []string{"--kv-memory", "3GiB"}})
	if err != nil {
		return 0, err
	}
	defer f.Close()
	equal := 0
	for i, chat := range c.Chats {
		theirs := text(e, p.Chats[i].Reply)
		var ms []trio.Message
		for _, m := range chat.Messages {
			ms = append(ms, trio.Message(m))
		}
		r, err := f.Stream(ctx, trio.Request{Messages: ms, MaxTokens: len(p.Chats[i].Reply)}, nil)
		if err != nil {
			return wrong, fmt.Errorf("chat %d: %w", i, err)
		}
		if got := r.Text(); got == theirs {
			equal++
		} else {
			at := 0
			for at < len(got) && at < len(theirs) && got[at] == theirs[at] {
				at++
			}
			fmt.Printf("  chat %d served: after %q ours says %.40q, llama.cpp %.40q\n", i, theirs[max(at-30, 0):at], got[at:], theirs[at:])
			if same[i] {
				wrong++
			}
		}
	}
	fmt.Printf("served by three processes: %d of %d texts equal\n", equal, len(c.Chats))
	return wrong, nil
}

// text of a reply's ids.
func text(e *prompt.Encoder, ids []int32) string {
	d := e.Detokenizer()
	s := ""
	for _, id := range ids {
		s += d.Add(id)
	}
	return s + d.Flush()
}
