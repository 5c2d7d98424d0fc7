package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func readAll(r io.Reader, bound int) (events []string, err error) {
	rd := NewReader(r, bound)
	for {
		ev, err := rd.Next()
		if err != nil {
			if _, again := rd.Next(); again != err {
				return events, errors.New("the error did not stay")
			}
			return events, err
		}
		events = append(events, ev.Type+"|"+string(ev.Data))
	}
}

func TestReader(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want string
		err  error
	}{
		"empty":           {"", "", io.EOF},
		"one":             {"data: a\n\n", "|a", io.EOF},
		"a mark inside":   {"data: a\n\n\xef\xbb\xbfdata: b\n\n", "|a", io.EOF}, // of byte order: nothing but at the start
		"crlf":            {"data: a\r\ndata: b\r\n\r\ndata:c\r\n\r\n", "|a\nb,|c", io.EOF},
		"cr":              {"data: a\r\rdata: b\r\r", "|a,|b", io.EOF},
		"bom":             {"\xef\xbb\xbfdata: a\n\n", "|a", io.EOF},
		"comment, id":     {": hi\n\nid: 1\nretry: 2\nevent: error\ndata: x\nother: y\n\n", "error|x", io.EOF},
		"one space only":  {"data:  a\n\n", "| a", io.EOF},
		"empty data":      {"data\n\n", "|", io.EOF},
		"type is dropped": {"event: a\n\ndata: b\n\n", "|b", io.EOF},
		"cut after line":  {"data: a\n\ndata: b\n", "|a", ErrTruncated},
		"cut in line":     {"data: a\n\ndata: b", "|a", ErrTruncated},
		"cut comment":     {"data: a\n\n: b\n", "|a", ErrTruncated},
		"invalid utf8":    {"data: \xff\n\n", "", ErrEncoding},
		"long line":       {"data: " + strings.Repeat("x", 100) + "\n\n", "", ErrTooLong},
		"long event":      {strings.Repeat("data: 123456789\n", 10) + "\n", "", ErrTooLong},
		"long, no end":    {strings.Repeat("x", 1000), "", ErrTooLong},
		"bound is of one": {strings.Repeat("data: 123456789\n\n", 3), "|123456789,|123456789,|123456789", io.EOF},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
			events, err := readAll(r, 64)
			if got := strings.Join(events, ","); got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%s: got %q, %v; want %q, %v", name, got, err, c.want, c.err)
			}
		}
	}
}

func TestAppend(t *testing.T) {
	got := string(AppendDone(AppendComment(AppendData(nil, []byte("a\r\nb\nc\rd")), "x\ny")))
	if want := "data: a\ndata: b\ndata: c\ndata: d\n\n: xy\n\ndata: [DONE]\n\n"; got != want {
		t.Errorf("got %q", got)
	}
}

// What is written is read back, whatever follows; what is read never holds more than its bound.
func FuzzReader(f *testing.F) {
	f.Add([]byte("data: a\n\n"), []byte("x\ny"))
	f.Add([]byte("event: e\r\ndata: a\r\r\n:\n"), []byte(""))
	f.Fuzz(func(t *testing.T, stream, data []byte) {
		const bound = 256
		rd := NewReader(bytes.NewReader(stream), bound)
		for {
			ev, err := rd.Next()
			if err != nil {
				break
			}
			if len(ev.Data) > bound {
				t.Fatalf("an event of %d bytes", len(ev.Data))
			}
		}
		rd = NewReader(bytes.NewReader(AppendData(nil, data)), 8*len(data)+64)
		ev, err := rd.Next()
		norm := bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		if err == nil && !bytes.Equal(ev.Data, norm) {
			t.Fatalf("wrote %q, read %q", norm, ev.Data)
		}
		if err != nil && !errors.Is(err, ErrEncoding) {
			t.Fatalf("wrote %q, read %v", data, err)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	in := bytes.Repeat(AppendData(nil, bytes.Repeat([]byte("x"), 250)), 1000)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		rd := NewReader(bytes.NewReader(in), 4096)
		for {
			if _, err := rd.Next(); err != nil {
				break
			}
		}
	}
}
