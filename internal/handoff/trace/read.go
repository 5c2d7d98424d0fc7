package trace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
)

// Errors of Read. All name the line.
var (
	ErrSyntax = errors.New("trace: not a line of a trace")
	ErrOrder  = errors.New("trace: a line is missing, moved or changed")
	ErrCut    = errors.New("trace: the file has no last line: it was cut, or its process did not end well")
	ErrLost   = errors.New("trace: the recorder lost events: the disk did not keep up")
)

// Head is a file's first line.
type Head struct{ Sample uint64 }

// maxLine bounds a line of a recorded file.
const maxLine = 1024

// Read calls f with each event of a recorded file, in order, with its number, until the end or f's first error, which it
// returns. begin hears the first line. A file without its last line ends with ErrCut, after all its events.
func Read(r io.Reader, begin func(Head), f func(n uint64, e Event) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, maxLine), maxLine)
	if !s.Scan() {
		return fmt.Errorf("%w: nothing in it", errors.Join(ErrSyntax, s.Err()))
	}
	p := parser{rest: s.Bytes()}
	p.take(`{"sluice":"trace","version":`)
	version := p.number(math.MaxUint64)
	p.take(`,"sample":`)
	h := Head{Sample: p.number(math.MaxUint64)}
	p.take(`}`)
	var check Encoder // makes each line again: a line that is not exactly what a writer writes is none
	again := check.Head(nil, h.Sample)
	if p.bad || version != Version || h.Sample == 0 || !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), s.Bytes()) {
		return fmt.Errorf("%w: the first line is not that of a trace of version %d", ErrSyntax, Version)
	}
	begin(h)
	var (
		ended bool
		lost  uint64
	)
	for s.Scan() {
		line := s.Bytes()
		if ended {
			return fmt.Errorf("after line %d: %w: there is something after the last line", check.n, ErrSyntax)
		}
		p := parser{rest: line}
		if bytes.HasPrefix(line, []byte(`{"end":`)) {
			p.take(`{"end":`)
			n := p.number(math.MaxUint64)
			p.take(`,"lost":`)
			lost = p.number(math.MaxUint64)
			if err := p.sum(check.n, n, check.End(again[:0], lost), line); err != nil {
				return err
			}
			ended = true
			continue
		}
		n, e := p.event()
		if p.bad {
			return fmt.Errorf("line %d: %w", check.n+1, ErrSyntax)
		}
		again = check.Event(again[:0], e)
		if err := p.sum(check.n, n, again, line); err != nil {
			return err
		}
		if err := f(n, e); err != nil {
			return err
		}
	}
	switch {
	case s.Err() != nil:
		return fmt.Errorf("line %d: %w", check.n+1, errors.Join(ErrSyntax, s.Err()))
	case !ended:
		return fmt.Errorf("after line %d: %w", check.n, ErrCut)
	case lost > 0:
		return fmt.Errorf("after line %d: %d: %w", check.n, lost, ErrLost)
	}
	return nil
}

// sum compares a line with what it must be.
func (p *parser) sum(want, n uint64, again, line []byte) error {
	switch {
	case p.bad:
		return fmt.Errorf("line %d: %w", want, ErrSyntax)
	case n != want:
		return fmt.Errorf("line %d says it is %d: %w", want, n, ErrOrder)
	case !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), line):
		return fmt.Errorf("line %d: its sum does not follow from what is before it: %w", want, ErrOrder)
	}
	return nil
}

// parser takes a line apart. A line has one spelling, so it need not know JSON.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) take(literal string) {
	if !bytes.HasPrefix(p.rest, []byte(literal)) {
		p.bad = true
		return
	}
	p.rest = p.rest[len(literal):]
}

// number takes digits. One that wraps around is told by the line that is made again.
func (p *parser) number(most uint64) (n uint64) {
	i := 0
	for i < len(p.rest) && p.rest[i] >= '0' && p.rest[i] <= '9' {
		n = 10*n + uint64(p.rest[i]-'0')
		i++
	}
	if i == 0 || n > most {
		p.bad = true
	}
	p.rest = p.rest[i:]
	return n
}

func (p *parser) word() []byte {
	i := bytes.IndexByte(p.rest, '"')
	if i < 0 {
		p.bad = true
		return nil
	}
	w := p.rest[:i]
	p.rest = p.rest[i:]
	return w
}

func (p *parser) step() Step {
	s, ok := stepsByName[string(p.word())]
	p.bad = p.bad || !ok
	return s
}

func (p *parser) hex(into []byte) {
	if len(p.rest) < 2*len(into) {
		p.bad = true
		return
	}
	if _, err := hex.Decode(into, p.rest[:2*len(into)]); err != nil {
		p.bad = true
	}
	p.rest = p.rest[2*len(into):]
}

func (p *parser) hex64() uint64 {
	var b [8]byte
	p.hex(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (p *parser) event() (n uint64, e Event) {
	p.take(`{"n":`)
	n = p.number(math.MaxUint64)
	p.take(`,"attempt":"`)
	p.hex(e.Attempt[:])
	p.take(`","boot":"`)
	e.Boot = p.hex64()
	count := func(key string) uint32 {
		p.take(key)
		return uint32(p.number(math.MaxUint32))
	}
	if bytes.HasPrefix(p.rest, []byte(`","pool":"`)) {
		e.Machine = Pool
		p.take(`","pool":"`)
		e.Step = p.step()
		p.bad = p.bad || !e.Step.OfPool()
		e.A = count(`","page":`)
		p.take(`,"gen":`)
		e.Digest = p.number(math.MaxUint64)
		e.B, e.C = count(`,"count":`), count(`,"writes":`)
		p.take(`,"ok":`)
		if bytes.HasPrefix(p.rest, []byte("true")) {
			e.State = 1
			p.take("true")
		} else {
			p.take("false")
		}
		return n, e
	}
	p.take(`","machine":"`)
	machine := p.word()
	for m := Decode; m <= Gateway; m++ {
		if string(machine) == m.String() {
			e.Machine = m
		}
	}
	p.take(`","step":"`)
	e.Step = p.step()
	p.bad = p.bad || e.Step.OfPool() || e.Machine == 0
	e.A, e.B, e.C = count(`","a":`), count(`,"b":`), count(`,"c":`)
	p.take(`,"code":"`)
	code, known := codes[string(p.word())]
	e.Code, p.bad = code, p.bad || !known
	p.take(`","state":`)
	e.State = uint8(p.number(math.MaxUint8))
	p.take(`,"digest":"`)
	e.Digest = p.hex64()
	p.take(`"`)
	return n, e
}
