package admission

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluicekv/sluice/internal/page"
)

// The signed plan: version (1 byte), body length (u16), body, signer's public key (32), Ed25519 signature (64) over
// context || version || body. Little endian throughout. Trailing bytes are an error.
const (
	planVersion = 1
	planContext = "sluice plan v1\x00"
	maxBody     = 1024
	// MaxSigned bounds the bytes of a signed plan.
	MaxSigned = 3 + maxBody + ed25519.PublicKeySize + ed25519.SignatureSize
)

// Errors of Verify.
var (
	ErrMalformed = errors.New("admission: malformed plan")
	ErrSigner    = errors.New("admission: the plan is not signed by a gateway of this fleet")
	ErrSignature = errors.New("admission: the plan's signature is wrong")
)

// Sign encodes and signs a plan. It fails on strings over their bounds.
func Sign(p Plan, key ed25519.PrivateKey) ([]byte, error) {
	body, err := appendPlan(nil, p)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 3+len(body)+ed25519.PublicKeySize+ed25519.SignatureSize)
	out = append(out, planVersion)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(body)))
	out = append(out, body...)
	out = append(out, key.Public().(ed25519.PublicKey)...)
	return append(out, ed25519.Sign(key, signedMessage(body))...), nil
}

// Verify checks the signature and decodes the plan. Nothing of an unsigned plan is looked at.
func Verify(signed []byte, keys Keyring) (Plan, error) {
	if len(signed) < 3 || len(signed) > MaxSigned || signed[0] != planVersion {
		return Plan{}, ErrMalformed
	}
	n := int(binary.LittleEndian.Uint16(signed[1:]))
	if len(signed) != 3+n+ed25519.PublicKeySize+ed25519.SignatureSize {
		return Plan{}, ErrMalformed
	}
	body, rest := signed[3:3+n], signed[3+n:]
	pub := ed25519.PublicKey(rest[:ed25519.PublicKeySize])
	if !keys.Gateway(pub) {
		return Plan{}, ErrSigner
	}
	if !ed25519.Verify(pub, signedMessage(body), rest[ed25519.PublicKeySize:]) {
		return Plan{}, ErrSignature
	}
	return parsePlan(body)
}

func signedMessage(body []byte) []byte {
	m := make([]byte, 0, len(planContext)+1+len(body))
	m = append(m, planContext...)
	m = append(m, planVersion)
	return append(m, body...)
}

func appendPlan(b []byte, p Plan) ([]byte, error) {
	le := binary.LittleEndian
	str := func(s string, limit int) error {
		if len(s) > limit {
			return fmt.Errorf("admission: a plan string has %d bytes, at most %d", len(s), limit)
		}
		b = append(b, byte(len(s)))
		b = append(b, s...)
		return nil
	}
	b = append(b, p.Attempt[:]...)
	if err := str(p.Request, 128); err != nil {
		return nil, err
	}
	b = append(b, p.Scope[:]...)
	b = append(b, p.Model[:]...)
	b = le.AppendUint32(b, p.PromptTokens)
	b = le.AppendUint32(b, uint32(p.LastToken))
	b = append(b, p.Digest[:]...)
	b = le.AppendUint32(b, p.MaxTokens)
	b = le.AppendUint32(b, p.Limit)
	b = le.AppendUint32(b, math.Float32bits(p.Sampling.Temperature))
	b = le.AppendUint32(b, math.Float32bits(p.Sampling.TopP))
	b = le.AppendUint64(b, p.Sampling.Seed)
	for _, e := range []Endpoint{p.Prefill, p.Decode} {
		if err := str(e.Name, 64); err != nil {
			return nil, err
		}
		b = le.AppendUint64(b, uint64(e.Boot))
		if err := str(e.Data, 255); err != nil {
			return nil, err
		}
		b = append(b, e.Key[:]...)
	}
	b = le.AppendUint64(b, uint64(p.Budget))
	test := byte(0)
	if p.TestTraffic {
		test = 1
	}
	b = append(b, test)
	b = append(b, p.Session[:]...)
	b = le.AppendUint64(b, p.Seq)
	if len(b) > maxBody {
		return nil, fmt.Errorf("admission: a plan of %d bytes, at most %d", len(b), maxBody)
	}
	return b, nil
}

type planReader struct {
	b   []byte
	bad bool
}

func (r *planReader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return make([]byte, n)
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}
func (r *planReader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *planReader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *planReader) str(limit int) string {
	n := int(r.take(1)[0])
	if n > limit {
		r.bad = true
		return ""
	}
	return string(r.take(n))
}

func parsePlan(b []byte) (Plan, error) {
	r := &planReader{b: b}
	var p Plan
	copy(p.Attempt[:], r.take(16))
	p.Request = r.str(128)
	copy(p.Scope[:], r.take(16))
	copy(p.Model[:], r.take(32))
	p.PromptTokens = r.u32()
	p.LastToken = int32(r.u32())
	copy(p.Digest[:], r.take(32))
	p.MaxTokens = r.u32()
	p.Limit = r.u32()
	p.Sampling.Temperature = math.Float32frombits(r.u32())
	p.Sampling.TopP = math.Float32frombits(r.u32())
	p.Sampling.Seed = r.u64()
	for _, e := range []*Endpoint{&p.Prefill, &p.Decode} {
		e.Name = r.str(64)
		e.Boot = page.Boot(r.u64())
		e.Data = r.str(255)
		copy(e.Key[:], r.take(32))
	}
	p.Budget = time.Duration(r.u64())
	test := r.take(1)[0]
	p.TestTraffic = test == 1
	copy(p.Session[:], r.take(16))
	p.Seq = r.u64()
	s := p.Sampling
	switch {
	case r.bad || len(r.b) != 0 || test > 1:
		return Plan{}, ErrMalformed
	case p.Attempt.IsZero() || p.Budget <= 0 || p.LastToken < 0:
		return Plan{}, ErrMalformed
	case !(s.Temperature >= 0 && s.Temperature <= 100) || !(s.TopP >= 0 && s.TopP <= 1):
		return Plan{}, ErrMalformed
	}
	return p, nil
}
