//go:build !race

package pool

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool/outside"
)

// TestSeenFromOutside: whoever reads /proc/self/mem at the arena's name finds the planted bytes, where they were planted, and
// nothing after the release.
func TestSeenFromOutside(t *testing.T) {
	p := newPool(t, 100, func(c *Config) { c.Role = "outside" })
	look := func() (found []byte, at uint64) {
		size, err := outside.Walk(os.Getpid(), "outside", func(offset uint64, b []byte) error {
			for i, x := range b {
				if x != 0 {
					if len(found) == 0 {
						at = offset + uint64(i)
					}
					found = append(found, x)
				}
			}
			return nil
		})
		if err != nil || size != uint64(100*p.arena.stride) {
			t.Fatal(size, err)
		}
		return found, at
	}
	if found, _ := look(); len(found) != 0 {
		t.Fatalf("a fresh arena holds %d bytes", len(found))
	}
	gap := reserve(t, p, 40)
	l, s := reserve(t, p, 2), newSender(1)
	planted := bytes.Repeat([]byte("PLANTED-"), p.pageBytes/8)
	if err := l.Land(0, l.Tags()[0], planted, s.key, s.key.Sum(1, 0, planted)); err != nil {
		t.Fatal(err)
	}
	found, at := look()
	if !bytes.Equal(found, planted) || at != uint64(40*p.arena.stride) {
		t.Fatalf("found %d bytes from %d", len(found), at)
	}
	if size, n, err := outside.Scan(os.Getpid(), "outside"); size != uint64(100*p.arena.stride) || n != uint64(len(planted)) || err != nil {
		t.Fatal(size, n, err)
	}
	free(l)
	free(gap)
	if found, _ := look(); len(found) != 0 {
		t.Fatalf("%d bytes are left after the release", len(found))
	}
}

// TestTwoArenasOfOneRole: both are read, each with its own holes.
func TestTwoArenasOfOneRole(t *testing.T) {
	role := func(c *Config) { c.Role = "twice" }
	a, b := newPool(t, 3, role), newPool(t, 5, role)
	la, lb := filled(t, a, 1, 1), filled(t, b, 5, 2)
	size, n, err := outside.Scan(os.Getpid(), "twice")
	if err != nil || size != uint64(8*a.arena.stride) || n != uint64(6*a.pageBytes) {
		t.Fatal(size, n, err)
	}
	free(la)
	free(lb)
}

// TestAnIdleArenaTakesNoMemory: neither New, nor a scan from inside or outside, touches 4 GiB of pages that nobody used.
func TestAnIdleArenaTakesNoMemory(t *testing.T) {
	before := resident(t)
	p := newPool(t, 1<<20, func(c *Config) { c.Role, c.Trace = "idle", nil })
	l := filled(t, p, 3, 9)
	if n := p.ScanFree(); n != 0 {
		t.Fatal(n)
	}
	if size, n, err := outside.Scan(os.Getpid(), "idle"); size != 4<<30 || n != uint64(3*p.pageBytes) || err != nil {
		t.Fatal(size, n, err)
	}
	free(l)
	// The slots are 32 MiB and the bitmap is small; the arena would be 4096.
	if grown := resident(t) - before; grown > 200<<20 {
		t.Fatalf("the process grew by %d MiB", grown>>20)
	}
}

// resident is the process's resident bytes, shared ones included.
func resident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}

// TestNeighboursOfTheArena: unmapped room before and behind, and the arena itself kept out of core dumps.
func TestNeighboursOfTheArena(t *testing.T) {
	p := newPool(t, 4, func(c *Config) { c.Role = "fences" })
	start := uint64(uintptr(p.arena.base(0)))
	end := start + uint64(len(p.arena.mem))
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before, behind, dump bool
	var lo, hi uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		var from, to uint64
		var perms string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perms); n == 3 {
			lo, hi = from, to
			none := strings.HasPrefix(perms, "---")
			before = before || none && hi == start && hi-lo >= guardBytes
			behind = behind || none && lo == end && hi-lo >= guardBytes
			continue
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && lo >= start && hi <= end {
			dump = dump || strings.Contains(flags+" ", " dd ")
			if !strings.Contains(flags+" ", " sh ") {
				t.Errorf("%x-%x is not shared: %s", lo, hi, flags)
			}
		}
	}
	if !before || !behind || !dump {
		t.Fatalf("unmapped before %t, behind %t, kept out of dumps %t", before, behind, dump)
	}
}

func TestRunsOfNeighbours(t *testing.T) {
	tag := func(ids ...page.ID) (tags []page.Tag) {
		for _, id := range ids {
			tags = append(tags, page.Tag{ID: id})
		}
		return tags
	}
	got := ""
	for run := range runs(tag(3, 4, 5, 9, 8, 7, 8)) {
		got += fmt.Sprint(run[0].ID, "x", len(run), " ")
	}
	if got != "3x3 9x1 8x1 7x2 " {
		t.Fatal(got)
	}
}
