package advisory

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// PayloadType names the payload of a bundle in its envelope.
const PayloadType = "application/vnd.sluice.advisories.v1+json"

// MaxBundle bounds a bundle, in bytes.
const MaxBundle = 32 << 20

// ReleaseKey is the public key, base64, that signs this project's own updates; set when a release is built
// (-ldflags "-X …/advisory.ReleaseKey=…"). Empty: a key must be given by flag.
var ReleaseKey string

// Bundle is a signed set of entries. It replaces entries of the same id and adds others.
type Bundle struct {
	Serial  int64             `json:"serial"` // grows; an older one than was seen before is refused by the caller
	Created time.Time         `json:"created"`
	Entries []json.RawMessage `json:"entries"`
}

// envelope is a DSSE envelope: the signature covers the type and the payload.
type envelope struct {
	PayloadType string `json:"payloadType"`
	Payload     string `json:"payload"`
	Signatures  []struct {
		KeyID string `json:"keyid"`
		Sig   string `json:"sig"`
	} `json:"signatures"`
}

// pae is the pre-authentication encoding of DSSE.
func pae(typ string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(typ), typ, len(payload), payload)
}

// KeyID is the short name of a public key.
func KeyID(k ed25519.PublicKey) string {
	h := sha256.Sum256(k)
	return hex.EncodeToString(h[:8])
}

// ParseKey reads a public key: base64 of 32 bytes, alone or after "ed25519:".
func ParseKey(s string) (ed25519.PublicKey, error) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "ed25519:")
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, errors.New("a verification key is base64 of 32 bytes (Ed25519)")
	}
	return b, nil
}

// Sign makes an envelope of a bundle.
func Sign(b Bundle, key ed25519.PrivateKey) ([]byte, error) {
	payload, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	var e envelope
	e.PayloadType = PayloadType
	e.Payload = base64.StdEncoding.EncodeToString(payload)
	e.Signatures = append(e.Signatures, struct {
		KeyID string `json:"keyid"`
		Sig   string `json:"sig"`
	}{KeyID(key.Public().(ed25519.PublicKey)), base64.StdEncoding.EncodeToString(ed25519.Sign(key, pae(PayloadType, payload)))})
	return json.MarshalIndent(e, "", " ")
}

// ErrSignature: nothing in the file is to be believed.
var ErrSignature = errors.New("no signature of the given key verifies")

// Open verifies an envelope and reads its entries. Nothing is looked at before the signature holds.
func Open(b []byte, keys ...ed25519.PublicKey) (Bundle, []*Entry, error) {
	var bundle Bundle
	if len(b) > MaxBundle {
		return bundle, nil, fmt.Errorf("%d bytes; a bundle has at most %d", len(b), MaxBundle)
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return bundle, nil, fmt.Errorf("no signed bundle: %w", err)
	}
	if e.PayloadType != PayloadType {
		return bundle, nil, fmt.Errorf("payload type %q, not %q", e.PayloadType, PayloadType)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		return bundle, nil, fmt.Errorf("payload: %w", err)
	}
	if !verified(e, payload, keys) {
		return bundle, nil, ErrSignature
	}
	if err := json.Unmarshal(payload, &bundle); err != nil {
		return bundle, nil, fmt.Errorf("payload: %w", err)
	}
	var es []*Entry
	seen := map[string]bool{}
	for i, raw := range bundle.Entries {
		en, err := Parse(raw)
		if err != nil {
			return bundle, nil, fmt.Errorf("entry %d: %w", i, err)
		}
		if seen[en.ID] {
			return bundle, nil, fmt.Errorf("entry %d: %s is there twice", i, en.ID)
		}
		seen[en.ID] = true
		es = append(es, en)
	}
	sortEntries(es)
	return bundle, es, nil
}

func verified(e envelope, payload []byte, keys []ed25519.PublicKey) bool {
	msg := pae(e.PayloadType, payload)
	for _, s := range e.Signatures {
		sig, err := base64.StdEncoding.DecodeString(s.Sig)
		if err != nil {
			continue
		}
		for _, k := range keys {
			if ed25519.Verify(k, msg, sig) {
				return true
			}
		}
	}
	return false
}

// Merge is base with the entries of update, which win, in order of id.
func Merge(base, update []*Entry) []*Entry {
	m := map[string]*Entry{}
	for _, e := range base {
		m[e.ID] = e
	}
	for _, e := range update {
		m[e.ID] = e
	}
	out := make([]*Entry, 0, len(m))
	for _, e := range m {
		out = append(out, e)
	}
	sortEntries(out)
	return out
}

// Digest identifies a set of entries: SHA-256 over their canonical JSON, hex.
func Digest(es []*Entry) string {
	h := sha256.New()
	for _, e := range es {
		b, _ := json.Marshal(e)
		h.Write(b)
		h.Write([]byte{'\n'})
	}
	return hex.EncodeToString(h.Sum(nil))
}
