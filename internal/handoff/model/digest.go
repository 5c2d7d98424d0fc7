package model

// Digests name a machine's value in a recorded trace: FNV-1a, 64 bits, over its fields in the order in which they are declared, counters as
// four bytes, little end first. They are computed here from the model's own value: equal digests mean that code and model are in the
// same state, not only in a state of the same name.
type digest uint64

func newDigest() digest { return 14695981039346656037 }

func (h digest) byte(b uint8) digest { return (h ^ digest(b)) * 1099511628211 }

func (h digest) counts(vs ...uint32) digest {
	for _, v := range vs {
		h = h.byte(uint8(v)).byte(uint8(v >> 8)).byte(uint8(v >> 16)).byte(uint8(v >> 24))
	}
	return h
}

func (h digest) bools(bs ...bool) digest {
	for _, b := range bs {
		if b {
			h = h.byte(1)
		} else {
			h = h.byte(0)
		}
	}
	return h
}

// DigestDecode names a decode machine's value.
func DigestDecode(d *Decode[uint32]) uint64 {
	h := newDigest().byte(uint8(d.State)).counts(d.Planned, d.Needed, d.Reserved, d.Held, d.Written, d.Landing)
	h = h.bools(d.ManifestSeen).counts(d.ManifestTokens, d.ManifestPages).byte(uint8(d.ManifestVerdict)).counts(d.Emitted)
	return uint64(h.byte(uint8(d.Verdict)).bools(d.Fenced, d.SealAsked, d.Running, d.Drained))
}

// DigestPrefill names a prefill machine's value.
func DigestPrefill(p *Prefill[uint32]) uint64 {
	h := newDigest().byte(uint8(p.State)).counts(p.Planned, p.Needed, p.Received, p.Reserved).bools(p.Granted)
	h = h.counts(p.Sealed, p.Queued, p.Sent, p.Writing, p.Computed).bools(p.Closed)
	return uint64(h.byte(uint8(p.Verdict)).bools(p.Fenced, p.Running, p.Drained))
}

// DigestGateway names a gateway machine's value.
func DigestGateway(g *Gateway[uint32]) uint64 {
	h := newDigest().byte(uint8(g.State)).counts(g.Planned).bools(g.PrefillAsked)
	h = h.byte(uint8(g.PrefillCode)).counts(g.PrefillTokens).bools(g.PrefillDigest)
	h = h.bools(g.SealSeen, g.SealDigest).counts(g.SealTokens, g.SealPages).counts(g.Output, g.Completion)
	h = h.byte(uint8(g.DecodeCode)).bools(g.Stopped).byte(uint8(g.Verdict))
	return uint64(h.bools(g.PrefillSettled, g.DecodeSettled))
}
