package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Chunks is a prompt whose pages go out in chunks, each with a completion of its own. Completions may come in any order, twice, or
// before their bytes; what decode knows of the whole is what it counts. Counting them by name is enough (all-chunks); waiting for the
// last, or for as many as there are, is not.
type Chunks struct {
	On     Guard
	Faults Fault
}

const chunks = 3

type chunkState struct {
	Sent, Landed, Told, Known [chunks]bool // the chunk: sent, landed, its completion sent, its completion heard
	Again                     uint8        // completions heard twice
	Heard                     uint8
	Last                      bool
	Read                      bool
}

// Init implements check.System.
func (w Chunks) Init() (s chunkState) { return s }

// Rests implements check.System.
func (w Chunks) Rests(s chunkState) bool { return s.Read }

// Holds implements check.System.
func (w Chunks) Holds(chunkState) error { return nil }

// Next implements check.System.
func (w Chunks) Next(s chunkState, yield func(check.Act, chunkState, error)) {
	n := steps[chunkState]{s, yield}
	for k := range int8(chunks) {
		inOrder := k == 0 || s.Sent[k-1]
		n.may(!s.Sent[k] && inOrder, "prefill sends chunk", -1, k, func(t *chunkState) { t.Sent[k] = true })
		n.may(s.Sent[k] && !s.Landed[k], "all pages have landed of chunk", -1, k, func(t *chunkState) { t.Landed[k] = true })
		n.may(s.Landed[k] && !s.Told[k], "prefill completes chunk", -1, k, func(t *chunkState) { t.Told[k] = true })
		next := k == 0 || s.Known[k-1] || w.Faults.Has(FaultReorder)
		hear := func(t *chunkState) {
			t.Known[k] = true
			t.Heard++
			t.Last = t.Last || k == chunks-1
		}
		n.may(s.Told[k] && !s.Known[k] && next, "decode hears the completion of chunk", -1, k, hear)
		n.may(s.Known[k] && s.Again == 0 && !s.Read && w.Faults.Has(FaultAckTwice), "decode hears once more the completion of chunk", -1, k, func(t *chunkState) {
			hear(t)
			t.Again++
		})
	}
	whole := s.Known == [chunks]bool{true, true, true}
	if !w.On.Has(GuardAllChunks) {
		whole = s.Last || s.Heard >= chunks
	}
	if whole && !s.Read {
		n.do("decode seals and reads", -1, -1, func(t *chunkState) error {
			t.Read = true
			for k := range t.Landed {
				if !t.Landed[k] {
					return fmt.Errorf("decode reads chunk %d, of which nothing has landed", k)
				}
			}
			return nil
		})
	}
}

func (s chunkState) tell() string {
	return fmt.Sprintf("landed %v, completions heard %d", s.Landed, s.Heard)
}
