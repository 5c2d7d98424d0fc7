package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Errors of a Reader. After one, the stream is over.
var (
	ErrTooLong   = errors.New("sse: an event is over its bound")
	ErrTruncated = errors.New("sse: the stream ended inside an event")
	ErrEncoding  = errors.New("sse: the stream is not UTF-8")
)

// Event of a stream. Data is valid until the next call of Next.
type Event struct {
	Type string // "" is "message"
	Data []byte
}

// Reader reads events. It holds one event and at most one read buffer.
type Reader struct {
	r     *bufio.Reader
	bound int
	data  []byte
	line  []byte
	err   error
	begun bool // a byte of the stream was read
	cr    bool // the last line ended in CR: a LF that follows belongs to it
}

// NewReader reads r. bound is the most bytes of one event, field names and comments counted.
func NewReader(r io.Reader, bound int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 4096), bound: bound}
}

// Next returns the next event that has data. The end of a stream between events is io.EOF.
func (r *Reader) Next() (Event, error) {
	if r.err != nil {
		return Event{}, r.err
	}
	ev, err := r.next()
	if err != nil {
		r.err = err
		return Event{}, err
	}
	return ev, nil
}

func (r *Reader) next() (ev Event, err error) {
	r.data = r.data[:0]
	read, has := 0, false
	for {
		line, err := r.readLine(r.bound - read)
		if err != nil {
			switch {
			case errors.Is(err, io.EOF) || errors.Is(err, ErrTruncated):
				if data, ok := r.last(); ok {
					return Event{Data: data}, nil
				}
				if read > 0 {
					err = ErrTruncated
				}
			}
			return Event{}, err
		}
		if len(line) == 0 {
			if !has {
				// An event without data is nothing, but it has ended.
				read, ev.Type = 0, ""
				continue
			}
			ev.Data = r.data[:len(r.data)-1] // the last line end is not data
			return ev, nil
		}
		read += len(line) + 1
		name, value, _ := bytes.Cut(line, []byte{':'})
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch string(name) {
		case "data":
			has = true
			r.data = append(append(r.data, value...), '\n')
		case "event":
			ev.Type = string(value)
		case "", "id", "retry":
			// A comment, or fields of reconnection: these streams are never resumed.
		default:
			// The standard ignores unknown fields. A stream of ours has none, but engines' extensions pass.
		}
	}
}

// last is the end mark, if that alone is what a stream ends in: it needs no empty line behind it, since nothing can follow.
func (r *Reader) last() (data []byte, ok bool) {
	line := bytes.TrimPrefix(r.line, []byte("data:"))
	if len(r.line) == 0 {
		line = bytes.TrimSuffix(r.data, []byte{'\n'})
	} else if len(r.data) > 0 || len(line) == len(r.line) {
		return nil, false
	}
	if string(bytes.TrimPrefix(line, []byte{' '})) != Done {
		return nil, false
	}
	r.line, r.data = r.line[:0], r.data[:0]
	return []byte(Done), true
}

// readLine reads one line of at most most bytes, without its end: LF, CR or CRLF. It lies in the read buffer where that holds it whole,
// and is valid until the next call.
func (r *Reader) readLine(most int) ([]byte, error) {
	r.line = r.line[:0]
	for {
		b, err := r.r.Peek(max(r.r.Buffered(), 1))
		if err != nil {
			if err == io.EOF && len(r.line) > 0 {
				err = ErrTruncated
			}
			return nil, err
		}
		if r.cr {
			if r.cr = false; b[0] == '\n' {
				r.r.Discard(1)
				continue
			}
		}
		n := endOfLine(b)
		if len(r.line)+n > most {
			return nil, fmt.Errorf("%w of %d bytes", ErrTooLong, r.bound)
		}
		if n == len(b) {
			r.line = append(r.line, b...)
			r.r.Discard(n)
			continue
		}
		r.cr = b[n] == '\r'
		line := b[:n:n]
		if len(r.line) > 0 {
			r.line = append(r.line, line...)
			line = r.line
		}
		r.r.Discard(n + 1)
		return r.checked(line)
	}
}

// endOfLine is the offset of the first LF or CR, or len(b).
func endOfLine(b []byte) int {
	if n := bytes.IndexByte(b, '\n'); n >= 0 {
		b = b[:n]
	}
	if n := bytes.IndexByte(b, '\r'); n >= 0 {
		return n
	}
	return len(b)
}

func (r *Reader) checked(line []byte) ([]byte, error) {
	if !utf8.Valid(line) {
		return nil, ErrEncoding
	}
	if !r.begun {
		r.begun = true
		return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")), nil
	}
	return line, nil
}
