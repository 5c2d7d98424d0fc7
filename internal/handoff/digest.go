package handoff

// hash is FNV-1a over the fields of a machine, in the order in which they are declared: a name for a state in a trace, the same
// on every machine and in every build.
type hash uint64

func newHash() hash { return 14695981039346656037 }

func (h hash) u8(v uint8) hash { return (h ^ hash(v)) * 1099511628211 }

func (h hash) u32(vs ...uint32) hash {
	for _, v := range vs {
		for range 4 {
			h, v = h.u8(uint8(v)), v>>8
		}
	}
	return h
}

func (h hash) flags(bs ...bool) hash {
	for _, b := range bs {
		h = h.u8(uint8(flag(b)))
	}
	return h
}

// Digest names the machine's value.
func (d Decode) Digest() uint64 {
	h := newHash().u8(uint8(d.State)).u32(d.Planned, d.Needed, d.Reserved, d.Held, d.Written, d.Landing)
	h = h.flags(d.Manifest.Seen).u32(d.Manifest.Tokens, d.Manifest.Pages).u8(uint8(d.Manifest.Verdict))
	return uint64(h.u32(d.Emitted).u8(uint8(d.Verdict)).flags(d.Fenced, d.Sealing, d.Running, d.Drained))
}

// Digest names the machine's value.
func (p Prefill) Digest() uint64 {
	h := newHash().u8(uint8(p.State)).u32(p.Planned, p.Needed, p.Received, p.Reserved)
	h = h.flags(p.Granted).u32(p.Sealed, p.Queued, p.Sent, p.Writing, p.Computed).flags(p.Closed)
	return uint64(h.u8(uint8(p.Verdict)).flags(p.Fenced, p.Running, p.Drained))
}

// Digest names the machine's value.
func (g Gateway) Digest() uint64 {
	h := newHash().u8(uint8(g.State)).u32(g.Planned).flags(g.PrefillAsked)
	h = h.u8(uint8(g.Prefill.Code)).u32(g.Prefill.Tokens).flags(g.Prefill.DigestOK)
	h = h.flags(g.Sealed.Seen, g.Sealed.DigestOK).u32(g.Sealed.Tokens, g.Sealed.Pages)
	h = h.u32(g.Output, g.Completion).u8(uint8(g.DecodeCode)).flags(g.Stopped).u8(uint8(g.Verdict))
	return uint64(h.flags(g.PrefillSettled, g.DecodeSettled))
}
