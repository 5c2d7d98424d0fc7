package outside

import (
	"errors"
	"os"
	"strings"
	"testing"
)

const sample = `00400000-0052c000 r-xp 00000000 fe:00 1234                               /usr/bin/sluice
7f3a00000000-7f3a00010000 ---p 00000000 00:00 0
7f3a00010000-7f3a00012000 rw-s 00000000 00:01 77                         /memfd:sluice-pool-decode (deleted)
7f3a00012000-7f3a00013000 ---s 00002000 00:01 77                         /memfd:sluice-pool-decode (deleted)
7f3a00020000-7f3a00022000 rw-s 00000000 00:01 78                         /memfd:sluice-pool-prefill (deleted)
7f3a00030000-7f3a00032000 rw-s 00000000 00:01 79                         /memfd:sluice-pool-decode-2 (deleted)
`

func TestParseMaps(t *testing.T) {
	got, err := parseMaps(strings.NewReader(sample), name("decode"))
	if err != nil {
		t.Fatal(err)
	}
	want := []mapped{{0x7f3a00010000, 0x7f3a00012000, 0, 77}, {0x7f3a00012000, 0x7f3a00013000, 0x2000, 77}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{
		"7f3a00010000 rw-s 00000000 00:01 77 /memfd:sluice-pool-x (deleted)",
		"2-1 rw-s 00000000 00:01 77 /memfd:sluice-pool-x (deleted)",
		"1-2 rw-s 00000000 00:01 7z /memfd:sluice-pool-x (deleted)",
		"1-2 rw-s 00000000 /memfd:sluice-pool-x (deleted)",
	} {
		if r, err := parseMaps(strings.NewReader(bad), name("x")); err == nil {
			t.Errorf("%q was read as %+v", bad, r)
		}
	}
}

func TestNoArena(t *testing.T) {
	if _, _, err := Scan(os.Getpid(), "nobody"); !errors.Is(err, ErrNoArena) {
		t.Fatal(err)
	}
	if _, _, err := Scan(-1, "decode"); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestCount(t *testing.T) {
	b := make([]byte, 100)
	for i := range b {
		if got := count(b); got != uint64(i) {
			t.Fatalf("%d, want %d", got, i)
		}
		b[(i*37)%100] = byte(i + 1)
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add(sample)
	f.Fuzz(func(t *testing.T, text string) {
		ranges, err := parseMaps(strings.NewReader(text), name("decode"))
		for _, r := range ranges {
			if err == nil && r.end <= r.start {
				t.Fatalf("%+v", r)
			}
		}
	})
}
