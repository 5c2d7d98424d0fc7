package lyingtable

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicekv/sluice/internal/drill"
	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/guard"
)

// nativeRow is a lie of a native prefill worker: real workers, of the real model, and the prompt of a tenant A in decode's pages before.
type nativeRow struct {
	lie   liar.Lie
	cells []drill.Row
}

// native is what a lie comes to: the guards of which one speaks, and the client's status.
type native struct {
	status int
	guards []string
}

var natives = map[liar.Lie]native{
	liar.Placeholder:       {400, []string{"admission"}},
	liar.Overstated:        {502, []string{"verdict", "hold", "count"}},
	liar.Silent:            {502, []string{"count"}},
	liar.Short:             {502, []string{"count"}},
	liar.WrongTag:          {502, []string{"gate", "count"}},
	liar.WrongOrdinal:      {502, []string{"gate"}},
	liar.Permuted:          {502, []string{"echo"}},
	liar.OtherAttempt:      {502, []string{"mac"}},
	liar.Flipped:           {502, []string{"mac"}},
	liar.Late:              {200, []string{"gate"}},
	liar.NoManifest:        {502, []string{"protocol"}},
	liar.TwoManifests:      {502, []string{"protocol"}},
	liar.OtherManifest:     {502, []string{"count"}},
	liar.Replayed:          {200, []string{"gate"}},
	liar.Guessed:           {200, []string{"gate"}},
	liar.Doubled:           {502, []string{"gate"}},
	liar.ManifestFirst:     {502, []string{"count", "protocol"}},
	liar.HalfPages:         {502, []string{"protocol"}},
	liar.SwappedKV:         {502, []string{"echo"}},
	liar.OtherShape:        {502, []string{"hello"}},
	liar.OtherDType:        {502, []string{"hello"}},
	liar.RefusedInEngine:   {400, []string{"verdict"}},
	liar.RefusedInManifest: {400, []string{"verdict"}},
}

// nativeLies is every lie that a native prefill worker can be told.
func nativeLies() []liar.Lie { return append(liar.Lies(), liar.More()...) }

// tellNatives tells every native lie to B, in every kind of reply. There is nothing to observe: a native guard always enforces.
func tellNatives(t *testing.T, wg *sync.WaitGroup) []*nativeRow {
	busy, idle := newTurns(3), newTurns(8)
	var rows []*nativeRow
	var mu sync.Mutex
	for at, lie := range nativeLies() {
		r := &nativeRow{lie: lie}
		rows = append(rows, r)
		for _, k := range drill.Replies() {
			if testing.Short() && at%5 != 0 || !*full && k.Chat != (at%2 == 0 == k.Stream) {
				continue
			}
			turns := busy // computing
			if lie.Stranger() {
				turns = idle // waiting for a link that nobody lets it have
			}
			turns.run(wg, func() {
				got, err := drill.Incident(t.Context(), drill.Options{Seed: uint64(at), Lies: []liar.Lie{lie}, Replies: []drill.Reply{k}, Sets: []guard.Guard{guard.All}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				r.cells = append(r.cells, got.Rows...)
			})
		}
	}
	return rows
}

func (r *nativeRow) judge(t *testing.T) {
	want, known := natives[r.lie]
	for _, x := range r.cells {
		switch {
		case !known:
			t.Errorf("nobody says what is to come of the native lie %s", r.lie)
		case x.ForeignBytes != 0 || x.Nonzero != 0 || x.PoolFree != x.PoolTotal:
			t.Errorf("native, %s, %s: another's text, or pages: %+v", r.lie, x.Reply, x)
		case x.Status != want.status:
			t.Errorf("native, %s, %s: want %d: %+v", r.lie, x.Reply, want.status, x)
		case !slices.Contains(want.guards, x.Guard):
			t.Errorf("native, %s, %s: want one of %v to speak: %+v", r.lie, x.Reply, want.guards, x)
		case r.lie.Harmless() != x.Exact:
			t.Errorf("native, %s, %s: the reply is its own prompt's: %v: %+v", r.lie, x.Reply, x.Exact, x)
		}
	}
}

// line is the row as the table has it.
func (r *nativeRow) line() string {
	replies, status, guards, foreign := map[string]bool{}, map[string]bool{}, map[string]bool{}, 0
	for _, x := range r.cells {
		replies[map[bool]string{false: "whole", true: "stream"}[x.Reply.Stream]] = true
		status[fmt.Sprint(x.Status)], guards[x.Guard] = true, true
		foreign += x.ForeignBytes
	}
	return fmt.Sprintf("native\tprefill\t%s\t%s\t%s\t%d\t%s\talways enforced\t-", r.lie, list(replies), list(status), foreign, list(guards))
}

// With no guard at all the same lies put A's text into B's reply, of every kind: what the rows above show is the guards' doing.
func TestNativeLiesLeakWithoutGuards(t *testing.T) {
	if !guard.Unsafe {
		t.Skip("guards can be taken out in the unsafe build only")
	}
	replies := drill.Replies()
	if testing.Short() {
		replies = replies[3:]
	}
	got, err := drill.Incident(t.Context(), drill.Options{Seed: 3, Lies: []liar.Lie{liar.Placeholder, liar.Silent, liar.OtherAttempt}, Replies: replies, Sets: []guard.Guard{0}})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range got.Rows {
		if x.Status != 200 || x.ForeignBytes == 0 || strings.TrimSpace(x.Said) == "" {
			t.Errorf("%s, %s: %+v", x.Lie, x.Reply, x)
		}
	}
}
