package wire

import (
	"fmt"
	"math"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

const (
	geometrySize = 4*4 + 1
	maxSigned    = admission.MaxSigned
)

// Decode reads the body of a frame of the given kind, as ParseHeader announced it; of a page only its head (PageHead bytes). The frame
// shares no memory with body, and what it allocates is bounded by len(body). Anything that Append could not have written is an error.
func Decode(kind Kind, body []byte) (Frame, error) {
	if !kind.Known() {
		return nil, fmt.Errorf("%w: %d", ErrKind, uint8(kind))
	}
	r := reader{kind: kind, b: body}
	f := r.frame()
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%w: %d after the %s", ErrTrailing, len(r.b), kind)
	}
	if r.err == nil {
		r.err = check(f)
	}
	if r.err != nil {
		return nil, r.err
	}
	return f, nil
}

// reader takes a body apart from the front. The first error stays; after it every read gives zeroes.
type reader struct {
	kind Kind
	b    []byte
	err  error
}

func (r *reader) frame() Frame {
	switch r.kind {
	case KindHello:
		var f Hello
		f.Role = Role(r.u8())
		f.Name = r.string8("name")
		f.Boot = page.Boot(r.u64())
		r.fill(f.Model[:])
		f.Geometry = r.geometry()
		r.fill(f.Session[:])
		f.Path = r.string8("path")
		f.MaxPage = r.u32()
		r.fill(f.Key[:])
		return f
	case KindAuth:
		var f Auth
		r.fill(f.Sig[:])
		return f
	case KindFacts:
		var f Facts
		f.Draining = r.bool("draining")
		f.Data = r.string8("data address")
		f.JSON = r.bytes("facts", int64(r.u32()))
		return f
	case KindPlan:
		var f Plan
		r.fill(f.MACKey[:])
		f.Signed = r.bytes("signed plan", int64(r.u16()))
		return f
	case KindPrompt:
		return Prompt{Attempt: r.attempt(), Offset: r.u32(), IDs: r.ids()}
	case KindReserved:
		return Reserved{Attempt: r.attempt(), Pages: r.u32()}
	case KindAttach:
		return Attach{Attempt: r.attempt(), MAC: r.mac()}
	case KindGrant:
		return Grant{Attempt: r.attempt(), Boot: page.Boot(r.u64()), Pages: r.granted(), MAC: r.mac()}
	case KindPage:
		var f PageHeader
		f.Attempt = r.attempt()
		f.Tag = page.Tag{Boot: page.Boot(r.u64()), ID: page.ID(r.u32()), Gen: page.Generation(r.u64())}
		f.Ordinal, f.Length, f.MAC = r.u32(), r.u32(), r.mac()
		return f
	case KindManifest:
		var f Manifest
		f.Attempt, f.Tokens, f.Pages = r.attempt(), r.u32(), r.u32()
		r.fill(f.Digest[:])
		r.fill(f.Root[:])
		f.Echo, f.Verdict, f.MAC = r.echo(), r.verdict(), r.mac()
		return f
	case KindEnd:
		return End{Attempt: r.attempt(), MAC: r.mac()}
	case KindSealed:
		var f Sealed
		f.Attempt, f.Tokens, f.Written, f.Held = r.attempt(), r.u32(), r.u32(), r.u32()
		r.fill(f.Digest[:])
		r.fill(f.Root[:])
		return f
	case KindOutput:
		return Output{Attempt: r.attempt(), Index: r.u32(), IDs: r.ids()}
	case KindStop:
		return Stop{Attempt: r.attempt()}
	case KindAbort:
		return Abort{Attempt: r.attempt(), Verdict: r.verdict(), MAC: r.mac()}
	case KindOutcome:
		var f Outcome
		f.Attempt, f.Finish = r.attempt(), r.u8()
		f.Computed, f.Completion, f.Reserved, f.Written, f.Held = r.u32(), r.u32(), r.u32(), r.u32(), r.u32()
		r.fill(f.Digest[:])
		r.fill(f.Root[:])
		f.PhaseMicroBegin, f.PhaseMicroEnd = r.u64(), r.u64()
		f.Verdict = r.verdict()
		return f
	case KindSettled:
		return Settled{Attempt: r.attempt()}
	case KindPing:
		return Ping{Nonce: r.u64(), Scan: r.bool("scan")}
	case KindPong:
		var f Pong
		f.Nonce = r.u64()
		f.PagesTotal, f.PagesFree, f.PagesFenced, f.PagesHeld = r.u32(), r.u32(), r.u32(), r.u32()
		f.Pins, f.Active, f.Queued = r.u32(), r.u32(), r.u32()
		f.Settled, f.NonzeroFree = r.u64(), r.u64()
		return f
	}
	panic(fmt.Sprintf("wire: a known kind without a decoder: %s", r.kind))
}

// zeroes is what a failed fixed-width read yields; 8 is the widest.
var zeroes [8]byte

// take cuts n bytes off the front, or fails.
func (r *reader) take(n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.err = fmt.Errorf("%w: %d bytes wanted, %d left of the %s", ErrShort, n, len(r.b), r.kind)
	}
	if r.err != nil {
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) fixed(n int) []byte {
	if s := r.take(n); s != nil {
		return s
	}
	return zeroes[:n]
}

func (r *reader) u8() uint8   { return r.fixed(1)[0] }
func (r *reader) u16() uint16 { return le.Uint16(r.fixed(2)) }
func (r *reader) u32() uint32 { return le.Uint32(r.fixed(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.fixed(8)) }

func (r *reader) fill(dst []byte)         { copy(dst, r.take(len(dst))) }
func (r *reader) attempt() (a attempt.ID) { r.fill(a[:]); return a }
func (r *reader) mac() (m [16]byte)       { r.fill(m[:]); return m }

func (r *reader) bool(what string) bool {
	v := r.u8()
	if r.err == nil && v > 1 {
		r.err = fmt.Errorf("%w: %s is %d on %s, not 0 or 1", ErrValue, what, v, r.kind)
	}
	return v == 1
}

// counted checks an announced count against what is left, before anything is allocated for it. Bounds are check's.
func (r *reader) counted(what string, n int64, size int) int {
	switch {
	case r.err != nil:
		return 0
	case n*int64(size) > int64(len(r.b)):
		r.err = fmt.Errorf("%w: %d for the %s of a %s, %d bytes left", ErrShort, n, what, r.kind, len(r.b))
		return 0
	}
	return int(n)
}

func (r *reader) bytes(what string, n int64) []byte {
	k := r.counted(what, n, 1)
	if k == 0 {
		return nil
	}
	return append([]byte(nil), r.take(k)...)
}

func (r *reader) string8(what string) string {
	return string(r.take(r.counted(what, int64(r.u8()), 1)))
}

func (r *reader) ids() []int32 {
	n := r.counted("ids", int64(r.u32()), 4)
	if n == 0 {
		return nil
	}
	s := r.take(4 * n)
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(le.Uint32(s[4*i:]))
	}
	return ids
}

func (r *reader) granted() []GrantedPage {
	n := r.counted("pages", int64(r.u32()), grantedSize)
	if n == 0 {
		return nil
	}
	s := r.take(grantedSize * n)
	pages := make([]GrantedPage, n)
	for i := range pages {
		at := s[grantedSize*i:]
		pages[i] = GrantedPage{ID: page.ID(le.Uint32(at)), Gen: page.Generation(le.Uint64(at[4:]))}
	}
	return pages
}

func (r *reader) geometry() page.Geometry {
	return page.Geometry{Tokens: r.u32(), Layers: r.u32(), KVHeads: r.u32(), HeadDim: r.u32(), Layout: page.Layout(r.u8())}
}

func (r *reader) echo() (e Echo) {
	for i := range e.IDs {
		e.IDs[i] = int32(r.u32())
	}
	for i := range e.Logits {
		e.Logits[i] = math.Float32frombits(r.u32())
	}
	return e
}

func (r *reader) verdict() (v verdict.Verdict) {
	v.Code, v.Layer, v.Status = verdict.Code(r.u8()), verdict.Layer(r.u8()), int(r.u16())
	v.Reason = string(r.take(r.counted("reason", int64(r.u16()), 1)))
	return v
}
