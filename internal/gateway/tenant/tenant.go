// Package tenant is who asks: API keys, the scope that separates one tenant's prompts, pages and digests from another's, the models
// that a tenant may use, and what it may use of them at a time.
//
// A Directory holds the tenants as the key file names them now, and reads it again while requests go on; a file with a mistake
// changes nothing. What a tenant has used (account) outlives a reading. Without a key file everybody is one tenant without limits.
//
// A key is looked up by a keyed hash of its hash, with a key of this process: how long a look-up takes says nothing about how much of
// a guess was right, to nobody who does not hold this process's memory. The package knows no HTTP but the header that names a key.
//
// Lock order: Directory.mu and Lease.mu are leaves.
package tenant

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"net/http"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Tenant is who asks. The zero Tenant is nobody, and may do nothing.
type Tenant struct {
	ID    string // as the file names it
	Key   string // id of the key, never the key
	Scope admission.Scope

	label   string
	models  map[string]bool // nil: all
	account *account
}

// MaxLabels is how many tenants of a file have a name in metrics; those after them are together Other.
const MaxLabels = 1000

// Other is the label of tenants that have none of their own. No tenant can be named so.
const Other = "(other)"

// Label of the tenant in metrics: one of a bounded number. It is empty for nobody.
func (t *Tenant) Label() string { return t.label }

// May reports whether the tenant may use a model. One that it may not use does not exist for it.
func (t *Tenant) May(model string) bool {
	return t.account != nil && (t.models == nil || t.models[model])
}

// Keys is what a key file says. It is immutable.
type Keys struct {
	pepper   [32]byte // of the look-up
	byHash   map[[sha256.Size]byte]*entry
	tenants  []*holder // in the order of the file
	everyone *Tenant   // no file: everybody is this one
}

// entry is one key.
type entry struct {
	hash    [sha256.Size]byte // of the key
	id      string
	off     bool
	expires time.Time // zero: never
	of      *holder
}

// holder is one tenant of a file.
type holder struct {
	name   string
	label  string         // of its scope
	set    map[string]int // options, and the line that set them
	models map[string]bool
	limits Limits
	keys   []*entry
	tenant Tenant // without Key
}

// scopeOf derives a tenant's scope: opaque without the secret, the same on every gateway that has it.
func scopeOf(secret []byte, label string) (s admission.Scope) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("sluice scope v1\x00"))
	m.Write([]byte(label))
	copy(s[:], m.Sum(nil))
	return s
}

// place is where a key's hash is looked up.
func (k *Keys) place(hash [sha256.Size]byte) [sha256.Size]byte {
	var both [64]byte
	copy(both[:32], k.pepper[:])
	copy(both[32:], hash[:])
	return sha256.Sum256(both[:])
}

// nobody stands in for the entry of a key that is not known, so that both answers take the same steps.
var nobody = &entry{}

// find looks a key up.
func (k *Keys) find(key string) (*entry, bool) {
	hash := sha256.Sum256([]byte(key))
	e, ok := k.byHash[k.place(hash)]
	if !ok {
		e = nobody
	}
	return e, subtle.ConstantTimeCompare(e.hash[:], hash[:]) == 1 && ok
}

// authenticate finds the tenant of a request.
func (k *Keys) authenticate(h http.Header, now time.Time) (Tenant, verdict.Verdict) {
	if k.everyone != nil {
		return *k.everyone, verdict.Verdict{}
	}
	key := Bearer(h)
	if key == "" {
		return Tenant{}, verdict.Of(verdict.Unauthorized, verdict.Tenant, "an API key is required: Authorization: Bearer KEY")
	}
	e, ok := k.find(key)
	switch {
	case !ok:
		return Tenant{}, verdict.Of(verdict.Unauthorized, verdict.Tenant, "the API key is not known")
	case e.off:
		return Tenant{}, verdict.Of(verdict.KeyOff, verdict.Tenant, "the API key %s is switched off", e.id)
	case !e.expires.IsZero() && !now.Before(e.expires):
		return Tenant{}, verdict.Of(verdict.Unauthorized, verdict.Tenant, "the API key %s has expired", e.id)
	}
	t := e.of.tenant
	t.Key = e.id
	return t, verdict.Verdict{}
}

// Bearer is the key that a request names, "" if it names none. A request with two Authorization headers names none.
func Bearer(h http.Header) string {
	if len(h["Authorization"]) != 1 {
		return ""
	}
	scheme, key, ok := strings.Cut(h["Authorization"][0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// fingerprint of what may be used, to tell whether a tenant changed between two readings.
func (h *holder) fingerprint() [sha256.Size]byte {
	s := sha256.New()
	s.Write([]byte(h.label + "\x00" + h.limits.String() + "\x00" + strings.Join(sorted(h.models), ",")))
	for _, k := range h.keys {
		s.Write(k.hash[:])
		s.Write([]byte(k.id + "\x00"))
		s.Write(binary.BigEndian.AppendUint64(nil, uint64(k.expires.Unix())))
		if k.off {
			s.Write([]byte("off"))
		}
	}
	return [sha256.Size]byte(s.Sum(nil))
}
