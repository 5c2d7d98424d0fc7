package gateway

import (
	"hash/maphash"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// placing is the secret of this process behind the keys by which requests find what is cached. With it goes the tenant's scope: two
// tenants that send the same bytes have other keys, so that where one's request goes says nothing about what another sent.
var placing = maphash.MakeSeed()

// marks are the lengths of a beginning, in bytes of the prompt as it is spelled, that have a key of their own.
var marks = [...]int{1 << 10, 4 << 10, 16 << 10, 64 << 10}

// maxSession bounds the session header's value.
const maxSession = 256

// near is where the request's beginning may be cached.
func (x *walk) near() (n foreign.Near) {
	cfg := &x.model.guarded.cfg
	scope := x.tenant.Scope[:]
	if cfg.Session != "" {
		if s := x.r.Header.Get(cfg.Session); s != "" && len(s) <= maxSession {
			var h maphash.Hash
			h.SetSeed(placing)
			h.Write([]byte{1})
			h.Write(scope)
			h.WriteString(s)
			n.Session = max(h.Sum64(), 1)
		}
	}
	if cfg.Anywhere {
		return n
	}
	var h maphash.Hash
	h.SetSeed(placing)
	h.Write([]byte{2})
	h.Write(scope)
	h.WriteString(x.model.name) // an adapter's cache is its own
	at, next := 0, 0
	prompt := x.guarded.doc.Prompt()
	texts := prompt.Raw()
	if prompt.Shape == jsonedit.IDs {
		texts = func(yield func([]byte) bool) { yield(x.guarded.doc.Get("prompt").Raw()) }
	}
	for raw := range texts {
		for len(raw) > 0 && next < len(marks) {
			take := min(len(raw), marks[next]-at)
			h.Write(raw[:take])
			raw, at = raw[take:], at+take
			if at == marks[next] {
				n.Prefix = append(n.Prefix, h.Sum64())
				next++
			}
		}
		if next == len(marks) {
			break
		}
		h.WriteByte(0)
	}
	for i, j := 0, len(n.Prefix)-1; i < j; i, j = i+1, j-1 {
		n.Prefix[i], n.Prefix[j] = n.Prefix[j], n.Prefix[i] // the longest first
	}
	return n
}
