package record

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTimesAndHashesAsText(t *testing.T) {
	var all, some Times
	for i := range all {
		all[i] = time.Duration(i+1) * time.Millisecond
	}
	some[PhaseEncode] = time.Nanosecond // reached: not nothing
	for _, in := range []Times{{}, some, all} {
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := all // what was there is gone
		if err := json.Unmarshal(b, &out); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		for i := range in {
			if want := in[i].Round(time.Microsecond); out[i] != max(want, min(in[i], 1)*time.Microsecond) {
				t.Errorf("%s: %s is %v, not %v", b, Phase(i), out[i], want)
			}
		}
	}
	var keep Times
	keep[PhaseEncode] = time.Second
	if err := json.Unmarshal([]byte(`{"encode_us":"x"}`), &keep); err == nil || keep[PhaseEncode] != time.Second {
		t.Errorf("%v, %v", err, keep)
	}
	h := Hash{1, 31: 2}
	for in, want := range map[Hash]string{{}: "", h: hex.EncodeToString(h[:])} {
		b, err := in.MarshalText()
		out := Hash{9}
		if err != nil || string(b) != want || out.UnmarshalText(b) != nil || out != in {
			t.Errorf("%x: %q, %v, back %x", in, b, err, out)
		}
	}
	for _, bad := range []string{"00", strings.Repeat("0", 62), strings.Repeat("0", 66), strings.Repeat("x", 64)} {
		if err := new(Hash).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is a hash", bad)
		}
	}
}

// partial is a disk that takes what it is told to of each write.
type partial struct {
	takes []int // of each write; -1: all
	got   []byte
	calls int
	gate  chan struct{} // before each write
	wrote chan struct{} // after it; nil: nobody waits
}

func (d *partial) Write(b []byte) (int, error) {
	<-d.gate
	if d.wrote != nil {
		defer func() { d.wrote <- struct{}{} }()
	}
	n := len(b)
	if d.calls < len(d.takes) && d.takes[d.calls] >= 0 {
		n = min(n, d.takes[d.calls])
	}
	d.calls++
	d.got = append(d.got, b[:n]...)
	if n < len(b) {
		return n, errors.New("no space")
	}
	return n, nil
}

// A disk that fills up in the middle of a line, stays full, and has room again: one line is lost for each that was cut, and every other
// can be read.
func TestALineThatWasCutTakesNoOtherAlong(t *testing.T) {
	line := func(i int) string {
		b, err := json.Marshal(Record{Attempt: fmt.Sprint("a", i)})
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	}
	d := &partial{gate: make(chan struct{}), wrote: make(chan struct{}), takes: []int{10, 0, 1 + len(line(2)), len(line(3)) - 1, -1}}
	var heard []string
	w := NewWriter(d, func(lost int, err error) { heard = append(heard, fmt.Sprint(lost, " ", err)) })
	for i := range 6 { // one write each
		w.Write(Record{Attempt: fmt.Sprint("a", i)})
		d.gate <- struct{}{}
		<-d.wrote
	}
	close(d.gate)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := line(0)[:10] + "\n" + line(2) + line(3)[:len(line(3))-1] + "\n" + line(4) + line(5)
	if string(d.got) != want {
		t.Errorf("the file holds\n%s\nnot\n%s", d.got, want)
	}
	if written, lost := w.Counts(); written != 3 || lost != 3 {
		t.Errorf("%d written, %d lost", written, lost)
	}
	if got := strings.Join(heard, ", "); got != "1 no space, 1 no space, 1 no space" {
		t.Errorf("heard: %s", got)
	}
	w.Write(Record{})
	if _, lost := w.Counts(); lost != 4 {
		t.Errorf("after Close: %d lost", lost)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// What waits goes out in batches of 64 KiB, and nobody needs to listen to losses.
func TestBatchesAreBounded(t *testing.T) {
	d := &partial{gate: make(chan struct{}), takes: []int{0}}
	w := NewWriter(d, nil)
	big := strings.Repeat("x", 32<<10)
	for range 9 {
		w.Write(Record{Model: big})
	}
	close(d.gate)
	w.Close()
	written, lost := w.Counts()
	if written+lost != 9 || lost < 1 || lost > 2 || d.calls < 5 {
		t.Errorf("%d written, %d lost in %d writes", written, lost, d.calls)
	}
	r := NewRing(0)
	r.Update(r.Put(Record{}), Record{})
	if got := r.Last(1, nil); len(got) != 0 {
		t.Errorf("a ring of none: %v", got)
	}
}
