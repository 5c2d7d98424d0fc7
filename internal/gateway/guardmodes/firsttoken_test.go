package guardmodes

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/gateway"
)

const (
	ours   = "The key of the door is K7. The key of the door is"
	theirs = "The code of the safe is 3QY9DPNCRFU8 and nobody may know. The code of the safe is"
	leaked = "3QY9DPNCRFU8"
)

var vllms = []string{fake.VLLMNixl, fake.VLLMMooncake}

func firstToken(m gateway.Mode) map[string]gateway.Mode {
	return map[string]gateway.Mode{"first-token": m}
}

// Decode answers from pages that hold another tenant's prompt and says everything right: with the guard off the text leaks (the
// positive control), observed it leaks and is counted, enforced no byte of it leaves.
func TestFirstTokenSeesPagesOfAnotherPrompt(t *testing.T) {
	for _, engine := range vllms {
		kinds(t, func(t *testing.T, chat, stream bool) {
			for _, mode := range []gateway.Mode{gateway.Off, gateway.Observe, gateway.Enforce} {
				r := newRig(t, fake.Options{Engine: engine}, firstToken(mode))
				if a := r.ask(chat, stream, theirs, ""); a.status != 200 || !strings.Contains(a.text(), leaked) {
					t.Fatalf("%s %s: the first tenant got %d %s", engine, mode, a.status, a.body)
				}
				r.Tell(fake.Lie{Kind: actor.StalePages, Leg: actor.Decode})
				a := r.ask(chat, stream, theirs[:40]+strings.Repeat("x", 30)+theirs[:11], "")
				if !r.leaked() {
					t.Fatalf("%s %s: the fake leaked nothing: nothing was tested", engine, mode)
				}
				if mode == gateway.Enforce {
					if a.status != 502 || strings.Contains(a.body, "choices") || !strings.Contains(a.body, "echo_mismatch") {
						t.Errorf("%s enforced: %d %s", engine, a.status, a.body)
					}
				} else if a.status != 200 || a.text() == "" {
					t.Errorf("%s %s: %d %s", engine, mode, a.status, a.body)
				}
				if mode == gateway.Off {
					if n := r.metric("sluice_incidents_total{"); n != 0 {
						t.Errorf("%s off: %v incidents", engine, n)
					}
				} else if !r.incident("first-token", mode) {
					t.Errorf("%s %s: no incident: %s", engine, mode, r.admin("/admin/incidents"))
				}
			}
		})
	}
}

// Honest legs agree, whatever the client asked of logprobs, and the client gets the bytes that it would get without the guard.
func TestFirstTokenLeavesRepliesAsTheyAre(t *testing.T) {
	for _, engine := range vllms {
		kinds(t, func(t *testing.T, chat, stream bool) {
			off := newRig(t, fake.Options{Engine: engine}, firstToken(gateway.Off))
			on := newRig(t, fake.Options{Engine: engine}, firstToken(gateway.Enforce))
			wishes := []string{``, `,"temperature":0`, `,"min_tokens":3`, `,"return_token_ids":true`, `,"logprobs":null`, `,"stop":["K"]`}
			if chat {
				wishes = append(wishes, `,"logprobs":true,"top_logprobs":3`, `,"logprobs":true,"top_logprobs":0`, `,"logprobs":true`, `,"logprobs":false`,
					`,"top_logprobs":0`, `,"logprobs":true,"top_logprobs":20`, `,"logprobs":true,"top_logprobs":2,"return_tokens_as_token_ids":true`)
			} else {
				wishes = append(wishes, `,"logprobs":0`, `,"logprobs":1`, `,"logprobs":7`, `,"echo":true`, `,"logprobs":2,"return_tokens_as_token_ids":true`)
			}
			if stream {
				for _, w := range wishes {
					wishes = append(wishes, w+`,"stream_options":{"include_usage":true}`, w+`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
				}
			}
			compared := 0.0
			for _, w := range wishes {
				a, b := off.ask(chat, stream, ours, w), on.ask(chat, stream, ours, w)
				if a.status != 200 || a.text() == "" || a.same() != b.same() {
					t.Errorf("%s %s:\nwithout %d %s\nwith    %d %s", engine, w, a.status, a.body, b.status, b.body)
				}
				if asked := strings.Contains(w, `"logprobs":`) && !strings.Contains(w, `:null`) && !strings.Contains(w, `:false`); !asked && strings.Contains(b.body, "top_logprobs") {
					t.Errorf("%s %s: logprobs reach a client that did not ask: %s", engine, w, b.body)
				}
				if !strings.Contains(w, "echo") {
					compared++
				}
			}
			if n := on.metric("sluice_incidents_total{"); n != 0 {
				t.Errorf("%s: %v false alarms: %s", engine, n, on.admin("/admin/incidents"))
			}
			if n := on.metric("sluice_first_token_total{", `outcome="compared"`); n != compared {
				t.Errorf("%s: %v replies were compared, want %v", engine, n, compared)
			}
		})
	}
}

// A prompt's pages replaced in part are seen too: the position after the prompt attends to all of them.
func TestFirstTokenSeesAHandleThatNamesOtherBlocks(t *testing.T) {
	kinds(t, func(t *testing.T, chat, stream bool) {
		for _, mode := range []gateway.Mode{gateway.Off, gateway.Enforce} {
			r := newRig(t, fake.Options{Engine: fake.VLLMNixl}, firstToken(mode))
			if a := r.ask(chat, stream, theirs, ""); a.status != 200 {
				t.Fatal(a.body)
			}
			r.Tell(fake.Lie{Kind: actor.HandleBlocks, Leg: actor.Prefill})
			a := r.ask(chat, stream, theirs[:len(theirs)-12]+strings.Repeat("y", 12), "")
			if mode == gateway.Off {
				if a.status != 200 || !r.leaked() {
					t.Errorf("off: %d %s, and no leak: nothing was tested", a.status, a.body)
				}
				continue
			}
			if a.status != 502 || strings.Contains(a.body, leaked) || !strings.Contains(a.body, "echo_mismatch") {
				t.Errorf("enforced: %d %s", a.status, a.body)
			}
		}
	})
}

// The guard belongs to engines whose decode computes that position: elsewhere naming it changes nothing on the wire.
func TestFirstTokenAsksNothingOfOtherEngines(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.Plain} {
		r := newRig(t, fake.Options{Engine: engine}, firstToken(gateway.Enforce))
		if a := r.ask(true, false, ours, ""); a.status != 200 || strings.Contains(a.body, "top_logprobs") {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		if n := r.metric("sluice_first_token_total{"); n != 0 {
			t.Errorf("%s: %v replies were compared", engine, n)
		}
	}
}
