package jsonedit

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"sync"
)

// Bounds on what a body may hold.
type Bounds struct {
	Bytes int // of the body
	Depth int // of nesting
	Names int // of objects that are open at one time
}

// Defaults: a chat of a million tokens fits, and what a scan remembers beside the body stays small.
const (
	DefaultBytes = 64 << 20
	DefaultDepth = 128
	DefaultNames = 1 << 16
)

var anyBounds = Bounds{math.MaxInt, math.MaxInt, math.MaxInt}

func (b Bounds) filled() Bounds {
	if b.Bytes == 0 {
		b.Bytes = DefaultBytes
	}
	b.Bytes = min(b.Bytes, math.MaxInt32)
	if b.Depth == 0 {
		b.Depth = DefaultDepth
	}
	if b.Names == 0 {
		b.Names = DefaultNames
	}
	return b
}

// Doc is a body that was read: an object whose top-level members are known by their offsets. It aliases the body.
type Doc struct {
	body    []byte
	members []member
	prompt  Prompt
	media   Media
	policy  *Policy
	removed int
}

// member of the object, in the body's order.
type member struct {
	name       string // as text; one of the table's own strings where it is known
	key        int32  // offset of the name's opening quote
	value, end int32  // of the value
	removed    bool   // by the policy
}

// scratch is what scans reuse.
var scratch = sync.Pool{New: func() any { return new(names) }}

var seed = maphash.MakeSeed()

// Read reads a body under a policy. A nil policy judges no field: only the JSON has to be strict (for what engines answer).
func Read(body []byte, p *Policy) (*Doc, *Refusal) {
	var bounds Bounds
	if p != nil {
		bounds = p.cfg.Bounds
	}
	return ReadBounded(body, p, bounds)
}

// ReadBounded is Read with bounds; those that are zero have their defaults.
func ReadBounded(body []byte, p *Policy, bounds Bounds) (*Doc, *Refusal) {
	used := scratch.Get().(*names)
	used.live, used.decoded, used.tables, used.seed = used.live[:0], used.decoded[:0], used.tables[:0], seed
	s := &scanner{body: body, bounds: bounds.filled(), names: used}
	d := &Doc{body: body, policy: p, members: make([]member, 0, 12), prompt: Prompt{body: body}}
	r := s.document(d)
	if cap(used.live) <= 1<<12 && cap(used.decoded) <= 1<<14 && cap(used.tables) == 0 {
		scratch.Put(used)
	}
	if r != nil {
		return nil, r
	}
	return d, nil
}

func (s *scanner) document(d *Doc) *Refusal {
	if len(s.body) > s.bounds.Bytes {
		return &Refusal{Reason: TooLarge, What: strconv.Itoa(s.bounds.Bytes) + " bytes"}
	}
	i := s.space(0)
	if i < len(s.body) && s.body[i] != '{' {
		if end := s.value(i, 0); end < 0 {
			return s.refusal()
		}
		return &Refusal{Reason: NotObject, Offset: i}
	}
	if i == len(s.body) {
		return &Refusal{Reason: EndsEarly, Offset: i}
	}
	end := s.object(i, 0, func(name []byte, key, value int) int { return s.member(d, name, key, value) })
	if end < 0 {
		return s.refusal()
	}
	if i = s.space(end); i != len(s.body) {
		return &Refusal{Reason: Trailing, Offset: i}
	}
	if d.policy != nil {
		return d.policy.whole(d)
	}
	return nil
}

// refusal is the failure of the scan.
func (s *scanner) refusal() *Refusal {
	r := &Refusal{Reason: s.reason, Path: pathOf(s.steps), Offset: s.offset, What: s.what}
	switch r.Reason {
	case TooDeep:
		r.What = strconv.Itoa(s.bounds.Depth)
	case TooMany:
		r.What = strconv.Itoa(s.bounds.Names)
	}
	return r
}

// member scans a top-level member's value and judges it.
func (s *scanner) member(d *Doc, name []byte, key, value int) int {
	if value >= len(s.body) {
		return s.fail(EndsEarly, value)
	}
	known, law := d.policy.find(name)
	end := 0
	switch {
	case known == "messages":
		end = s.messages(d, value)
	case known == "prompt":
		end = s.prompt(d, value)
	case known == "system" && d.blocks():
		end = s.content(d, value, 1)
	case law.carrier:
		end = s.carrier(value, 1, IsControl)
	case law.within != nil:
		end = s.carrier(value, 1, law.within)
	default:
		end = s.value(value, 1)
	}
	if end < 0 {
		return -1
	}
	m := member{name: known, key: int32(key), value: int32(value), end: int32(end)}
	if d.policy != nil {
		keep, no := d.policy.judge(law, d, Value{s.body[value:end]})
		if no.reason != 0 {
			s.what = no.what
			return s.fail(no.reason, key)
		}
		if !keep {
			m.removed = true
			d.removed++
		}
	}
	d.members = append(d.members, m)
	return end
}

// carrier scans a value inside which engines (or their extensions) look for fields: a control name there is as good as one at the top.
func (s *scanner) carrier(i, depth int, control func([]byte) bool) int {
	if i >= len(s.body) {
		return s.fail(EndsEarly, i)
	}
	switch s.body[i] {
	case '{':
		return s.object(i, depth, func(name []byte, key, value int) int {
			if control(name) {
				return s.fail(Control, key)
			}
			return s.carrier(value, depth+1, control)
		})
	case '[':
		return s.array(i, depth, func(value int) int { return s.carrier(value, depth+1, control) })
	}
	return s.value(i, depth)
}

// Get returns a top-level member's value, also if the policy removed it; the zero Value if there is none.
func (d *Doc) Get(name string) Value {
	for i := range d.members {
		if m := &d.members[i]; m.name == name {
			return Value{d.body[m.value:m.end:m.end]}
		}
	}
	return Value{}
}

// Each calls f for each top-level member, in order, until it returns false. removed tells that the policy took it out.
func (d *Doc) Each(f func(name string, v Value, removed bool) bool) {
	for _, m := range d.members {
		if !f(m.name, Value{d.body[m.value:m.end:m.end]}, m.removed) {
			return
		}
	}
}

// Removed is how many members the policy took out.
func (d *Doc) Removed() int { return d.removed }

// Size of the body in bytes.
func (d *Doc) Size() int { return len(d.body) }

// NotASCII is how many bytes of the body are part of a character that is not ASCII.
func (d *Doc) NotASCII() (n int) {
	b := d.body
	for ; len(b) >= 8; b = b[8:] {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(b) & tops)
	}
	for _, c := range b {
		n += int(c >> 7)
	}
	return n
}

// Prompt is where the prompt lies.
func (d *Doc) Prompt() Prompt { return d.prompt }

// Media is what a chat holds beside text.
func (d *Doc) Media() Media { return d.media }

// fold spells a name the way parsers that ignore case see it.
func fold(name []byte) string { return strings.ToLower(strings.ToUpper(string(name))) }
