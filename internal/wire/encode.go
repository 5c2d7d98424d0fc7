package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

var le = binary.LittleEndian

// Append appends a frame, header and body, to dst. Of a PageHeader it appends the header and the head; the caller writes the payload
// of Length bytes after it. A frame that Decode would refuse is refused here, with the same error, and dst is returned as it was.
//
// A verdict's reason is the one thing made to fit and not refused: a refusal must not be lost for its words. It is cut to MaxReason
// bytes, and control characters and broken UTF-8 become '?'.
func Append(dst []byte, f Frame) ([]byte, error) {
	f = fit(f)
	if err := check(f); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = appendHeader(dst, f.Kind(), 0)
	dst = appendBody(dst, f)
	n := len(dst) - start - HeaderSize
	if h, ok := f.(PageHeader); ok {
		n += int(h.Length)
	}
	if n > MaxBody(f.Kind()) {
		panic(fmt.Sprintf("wire: a checked %s has a body of %d bytes, at most %d", f.Kind(), n, MaxBody(f.Kind())))
	}
	le.PutUint32(dst[start:], uint32(n+lengthOverhead))
	return dst, nil
}

// Authenticated is what the MAC of an Attach, Grant, Manifest, End or Abort is computed over: the body without its MAC, which comes
// last. The frame's kind is not in it: package mac separates kinds. It panics on a frame that has no MAC.
func Authenticated(f Frame) []byte {
	switch f.Kind() {
	case KindAttach, KindGrant, KindManifest, KindEnd, KindAbort:
	default:
		panic(fmt.Sprintf("wire: a %s frame has no MAC", f.Kind()))
	}
	b := appendBody(nil, fit(f))
	return b[:len(b)-macSize]
}

// fit makes a frame's verdict sendable.
func fit(f Frame) Frame {
	switch f := f.(type) {
	case Manifest:
		f.Verdict = fitVerdict(f.Verdict)
		return f
	case Abort:
		f.Verdict = fitVerdict(f.Verdict)
		return f
	case Outcome:
		f.Verdict = fitVerdict(f.Verdict)
		return f
	}
	return f
}

func fitVerdict(v verdict.Verdict) verdict.Verdict {
	if len(v.Reason) <= MaxReason && plainText(v.Reason) {
		return v
	}
	out := make([]byte, 0, MaxReason)
	for _, r := range v.Reason {
		if r == utf8.RuneError || !plainRune(r) {
			r = '?'
		}
		if len(out)+utf8.RuneLen(r) > MaxReason {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	v.Reason = string(out)
	return v
}

// appendBody writes a body. It does not fail: check has passed, or the frame was decoded.
func appendBody(b []byte, f Frame) []byte {
	switch f := f.(type) {
	case Hello:
		b = append(b, byte(f.Role))
		b = appendString8(b, f.Name)
		b = le.AppendUint64(b, uint64(f.Boot))
		b = append(b, f.Model[:]...)
		b = appendGeometry(b, f.Geometry)
		b = append(b, f.Session[:]...)
		b = appendString8(b, f.Path)
		b = le.AppendUint32(b, f.MaxPage)
		b = append(b, f.Key[:]...)
	case Auth:
		b = append(b, f.Sig[:]...)
	case Facts:
		b = appendBool(b, f.Draining)
		b = appendString8(b, f.Data)
		b = le.AppendUint32(b, uint32(len(f.JSON)))
		b = append(b, f.JSON...)
	case Plan:
		b = append(b, f.MACKey[:]...)
		b = le.AppendUint16(b, uint16(len(f.Signed)))
		b = append(b, f.Signed...)
	case Prompt:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint32(b, f.Offset)
		b = appendIDs(b, f.IDs)
	case Reserved:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint32(b, f.Pages)
	case Attach:
		b = append(b, f.Attempt[:]...)
		b = append(b, f.MAC[:]...)
	case Grant:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint64(b, uint64(f.Boot))
		b = le.AppendUint32(b, uint32(len(f.Pages)))
		for _, p := range f.Pages {
			b = le.AppendUint32(b, uint32(p.ID))
			b = le.AppendUint64(b, uint64(p.Gen))
		}
		b = append(b, f.MAC[:]...)
	case PageHeader:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint64(b, uint64(f.Tag.Boot))
		b = le.AppendUint32(b, uint32(f.Tag.ID))
		b = le.AppendUint64(b, uint64(f.Tag.Gen))
		b = le.AppendUint32(b, f.Ordinal)
		b = le.AppendUint32(b, f.Length)
		b = append(b, f.MAC[:]...)
	case Manifest:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint32(b, f.Tokens)
		b = le.AppendUint32(b, f.Pages)
		b = append(b, f.Digest[:]...)
		b = append(b, f.Root[:]...)
		b = appendEcho(b, f.Echo)
		b = appendVerdict(b, f.Verdict)
		b = append(b, f.MAC[:]...)
	case End:
		b = append(b, f.Attempt[:]...)
		b = append(b, f.MAC[:]...)
	case Sealed:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint32(b, f.Tokens)
		b = le.AppendUint32(b, f.Written)
		b = le.AppendUint32(b, f.Held)
		b = append(b, f.Digest[:]...)
		b = append(b, f.Root[:]...)
	case Output:
		b = append(b, f.Attempt[:]...)
		b = le.AppendUint32(b, f.Index)
		b = appendIDs(b, f.IDs)
	case Stop:
		b = append(b, f.Attempt[:]...)
	case Abort:
		b = append(b, f.Attempt[:]...)
		b = appendVerdict(b, f.Verdict)
		b = append(b, f.MAC[:]...)
	case Outcome:
		b = append(b, f.Attempt[:]...)
		b = append(b, f.Finish)
		for _, n := range [...]uint32{f.Computed, f.Completion, f.Reserved, f.Written, f.Held} {
			b = le.AppendUint32(b, n)
		}
		b = append(b, f.Digest[:]...)
		b = append(b, f.Root[:]...)
		b = le.AppendUint64(b, f.PhaseMicroBegin)
		b = le.AppendUint64(b, f.PhaseMicroEnd)
		b = appendVerdict(b, f.Verdict)
	case Settled:
		b = append(b, f.Attempt[:]...)
	case Ping:
		b = le.AppendUint64(b, f.Nonce)
		b = appendBool(b, f.Scan)
	case Pong:
		b = le.AppendUint64(b, f.Nonce)
		for _, n := range [...]uint32{f.PagesTotal, f.PagesFree, f.PagesFenced, f.PagesHeld, f.Pins, f.Active, f.Queued} {
			b = le.AppendUint32(b, n)
		}
		b = le.AppendUint64(b, f.Settled)
		b = le.AppendUint64(b, f.NonzeroFree)
	default:
		panic(fmt.Sprintf("wire: a frame of type %T", f))
	}
	return b
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString8(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

func appendIDs(b []byte, ids []int32) []byte {
	b = le.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = le.AppendUint32(b, uint32(id))
	}
	return b
}

func appendGeometry(b []byte, g page.Geometry) []byte {
	for _, n := range [...]uint32{g.Tokens, g.Layers, g.KVHeads, g.HeadDim} {
		b = le.AppendUint32(b, n)
	}
	return append(b, byte(g.Layout))
}

func appendEcho(b []byte, e Echo) []byte {
	for _, id := range e.IDs {
		b = le.AppendUint32(b, uint32(id))
	}
	for _, l := range e.Logits {
		b = le.AppendUint32(b, math.Float32bits(l))
	}
	return b
}

func appendVerdict(b []byte, v verdict.Verdict) []byte {
	b = append(b, byte(v.Code), byte(v.Layer))
	b = le.AppendUint16(b, uint16(v.Status))
	b = le.AppendUint16(b, uint16(len(v.Reason)))
	return append(b, v.Reason...)
}
