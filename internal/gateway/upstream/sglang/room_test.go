package sglang

import "testing"

// A room is a bearer secret: 63 bits that nobody can guess, never 0, with the remainder that chooses prefill's rank.
func TestRooms(t *testing.T) {
	seen := map[int64]bool{}
	var ones [63]int
	const n = 4000
	for i := range n {
		ranks := 1 + i%9
		rank := i % ranks
		room := Room(ranks, rank)
		if room <= 0 || room%int64(ranks) != int64(rank) || seen[room] {
			t.Fatalf("room %d for rank %d of %d (seen: %v)", room, rank, ranks, seen[room])
		}
		seen[room] = true
		for b := range ones {
			ones[b] += int(room >> b & 1)
		}
	}
	for b, k := range ones {
		if k < n*2/5 || k > n*3/5 { // 12 standard deviations
			t.Errorf("bit %d is set in %d of %d rooms", b, k, n)
		}
	}
}

func TestTheBootstrapPort(t *testing.T) {
	for said, want := range map[int]int{0: 8998, 1: 1, 9102: 9102} {
		if got := bootstrapPort(said); got != want {
			t.Errorf("%d: %d", said, got)
		}
	}
}

// Requests are spread over prefill's ranks.
func TestEveryRankIsChosen(t *testing.T) {
	var ranks [8]int
	for range 4000 {
		ranks[anyRank(len(ranks))]++
	}
	for r, n := range ranks {
		if n < 300 || n > 700 { // 500, and 9 standard deviations
			t.Errorf("rank %d: %d of 4000", r, n)
		}
	}
	if anyRank(1) != 0 {
		t.Error("a rank that is not there")
	}
}
