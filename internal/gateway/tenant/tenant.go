// Package tenant is who asks: API keys, and the scope that separates one tenant's prompts, pages and digests from another's.
//
// Keys are stored as SHA-256, one a line: "ID HEX", blank lines and lines that begin with # apart. A key is looked up by its
// hash, so that how long it takes says nothing about how much of a guess was right. Without a key file everybody is one tenant.
package tenant

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Tenant is who asks.
type Tenant struct {
	ID    string // of the key, as the file names it
	Scope admission.Scope
}

// Keys authenticates requests. It is immutable and safe for concurrent use.
type Keys struct {
	byHash map[[sha256.Size]byte]Tenant // nil: everybody is the default tenant
	def    Tenant
}

// scopeOf derives a tenant's scope: opaque without the secret, the same on every gateway that has it.
func scopeOf(secret []byte, id string) (s admission.Scope) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("sluice scope v1\x00"))
	m.Write([]byte(id))
	copy(s[:], m.Sum(nil))
	return s
}

// Open makes everybody the one default tenant.
func Open(secret []byte) *Keys {
	return &Keys{def: Tenant{"default", scopeOf(secret, "default")}}
}

// Load reads a key file.
func Load(path string, secret []byte) (*Keys, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tenant: %w", err)
	}
	defer f.Close()
	k, err := Read(f, secret)
	if err != nil {
		return nil, fmt.Errorf("%w in %s", err, path)
	}
	return k, nil
}

// Read reads keys. Errors name the line and never hold a key.
func Read(r io.Reader, secret []byte) (*Keys, error) {
	k := &Keys{byHash: map[[sha256.Size]byte]Tenant{}}
	s := bufio.NewScanner(r)
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Fields(text)
		var hash [sha256.Size]byte
		if len(f) != 2 || len(f[0]) > 64 || len(f[1]) != 2*len(hash) {
			return nil, fmt.Errorf("tenant: line %d: a line is an id of at most 64 bytes and %d hex digits", line, 2*len(hash))
		}
		if _, err := hex.Decode(hash[:], []byte(f[1])); err != nil {
			return nil, fmt.Errorf("tenant: line %d: the hash is not hex", line)
		}
		if _, twice := k.byHash[hash]; twice {
			return nil, fmt.Errorf("tenant: line %d: the same key as before", line)
		}
		k.byHash[hash] = Tenant{f[0], scopeOf(secret, f[0])}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("tenant: %w", err)
	}
	if len(k.byHash) == 0 {
		return nil, fmt.Errorf("tenant: no keys")
	}
	return k, nil
}

// Authenticate finds the tenant of a request.
func (k *Keys) Authenticate(h http.Header) (Tenant, verdict.Verdict) {
	if k.byHash == nil {
		return k.def, verdict.Verdict{}
	}
	scheme, key, ok := strings.Cut(h.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || key == "" {
		return Tenant{}, verdict.Of(verdict.Unauthorized, verdict.Tenant, "an API key is required: Authorization: Bearer KEY")
	}
	t, ok := k.byHash[sha256.Sum256([]byte(strings.TrimSpace(key)))]
	if !ok {
		return Tenant{}, verdict.Of(verdict.Unauthorized, verdict.Tenant, "the API key is not known")
	}
	return t, verdict.Verdict{}
}
