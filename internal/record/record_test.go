package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func full() Record {
	r := Record{Attempt: "0a", Request: "r", Scope: "s", Model: "m", Revision: "v", TestTraffic: true, Pair: Pair{"p0", "d0"}, Digest: Hash{1}, ManifestRoot: Hash{2},
		Verdict: verdict.Served(verdict.Decode), Spoke: []Guard{{"hold", true, "1 != 2"}}, Start: time.Unix(1, 0).UTC()}
	r.Boots[0], r.Boots[1] = 1, 1<<63
	r.Tokens.Planned, r.Tokens.Completion, r.Pages.Held = 3, 4, 5
	r.Times[PhaseDecode] = 7 * time.Microsecond
	return r
}

func TestRecordSurvivesJSON(t *testing.T) {
	want := full()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Record
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s\n%s", d, b)
	}
}

func TestRing(t *testing.T) {
	r := NewRing(3)
	names := func(rs []Record) string {
		var s []string
		for _, r := range rs {
			s = append(s, r.Request)
		}
		return strings.Join(s, " ")
	}
	if got := names(r.Last(9, nil)); got != "" {
		t.Errorf("empty: %q", got)
	}
	var slots []Slot
	for i := range 5 {
		slots = append(slots, r.Put(Record{Request: fmt.Sprint(i)}))
	}
	if got := names(r.Last(9, nil)); got != "4 3 2" {
		t.Errorf("all: %q", got)
	}
	if got := names(r.Last(2, func(r *Record) bool { return r.Request != "4" })); got != "3 2" {
		t.Errorf("matching: %q", got)
	}
	r.Update(slots[1], Record{Request: "gone"})
	r.Update(slots[2], Record{Request: "2'"})
	if got := names(r.Last(9, nil)); got != "4 3 2'" {
		t.Errorf("updated: %q", got)
	}
	var none Ring
	none.Update(none.Put(Record{}), Record{})
	if none.Last(1, nil) != nil {
		t.Error("the zero ring holds something")
	}
}

func TestWriterAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	for range 2 {
		w, err := Open(path, func(lost int, err error) { t.Errorf("lost %d: %v", lost, err) })
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			w.Write(full())
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if n, lost := w.Counts(); n != 300 || lost != 0 {
			t.Errorf("%d written, %d lost", n, lost)
		}
		w.Write(full())
		if _, lost := w.Counts(); lost != 1 {
			t.Errorf("a record after Close is counted lost, got %d", lost)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte{'\n'}); n != 600 {
		t.Errorf("%d lines", n)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
}

// disk takes room bytes and is then full until it is emptied.
type disk struct {
	bytes.Buffer
	room  int
	wrote chan error
}

var errFull = errors.New("no space left")

func (d *disk) Write(b []byte) (n int, err error) {
	n = len(b)
	if n > d.room {
		n, err = d.room, errFull
	}
	d.room -= n
	d.Buffer.Write(b[:n])
	d.wrote <- err
	return n, err
}

// A disk that does not answer does not hold up who writes.
func TestWriterNeverBlocks(t *testing.T) {
	d := &disk{room: 1 << 30, wrote: make(chan error)}
	w := NewWriter(d, nil)
	const n = queueLength + 200
	for range n {
		w.Write(Record{})
	}
	go func() {
		for range d.wrote {
		}
	}()
	w.Close()
	close(d.wrote)
	written, lost := w.Counts()
	if written+lost != n || lost == 0 {
		t.Errorf("%d written, %d lost of %d", written, lost, n)
	}
}
