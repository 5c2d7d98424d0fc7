// Package keyring is who is who: Ed25519 identities of a fleet's nodes, the public keys they trust, and the files both live in.
//
// There is no certificate authority and no name in a certificate: a node is its key. TLS between nodes pins public keys both ways, so a
// wrong clock, an expired certificate or a host that changed its address cannot keep a fleet from meeting, and nothing outside the
// fleet's own file can vouch for a stranger.
//
// The package is not for API keys of tenants, and makes no policy: it answers whose key this is.
// Lock order: Fleet.mu is a leaf.
package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// Node is a name and what it may be.
type Node struct {
	Name string // [a-z0-9][a-z0-9._-]*, at most 64 bytes
	Role wire.Role
}

// Identity is a node and its private key. The zero Identity is useless.
type Identity struct {
	Node
	private ed25519.PrivateKey
	cert    tls.Certificate
}

// Generate makes an identity with a new key.
func Generate(n Node) (Identity, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Identity{}, err
	}
	return identity(n, private)
}

// identity makes the self-signed certificate that carries the key through TLS. Its dates hold under any clock.
func identity(n Node, private ed25519.PrivateKey) (Identity, error) {
	if err := n.validate(); err != nil {
		return Identity{}, err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280, 4.1.2.5: no well-defined end
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		return Identity{}, fmt.Errorf("keyring: %s: %w", n.Name, err)
	}
	return Identity{n, private, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}}, nil
}

// Public is the identity's public key.
func (id Identity) Public() ed25519.PublicKey { return id.private.Public().(ed25519.PublicKey) }

// Key is the same as an array, as plans and hellos carry it.
func (id Identity) Key() (k [32]byte) { copy(k[:], id.Public()); return k }

// PrivateKey is for admission.Sign.
func (id Identity) PrivateKey() ed25519.PrivateKey { return id.private }

// Sign signs a message. The caller puts a domain string in front of it.
func (id Identity) Sign(message []byte) (sig [64]byte) {
	copy(sig[:], ed25519.Sign(id.private, message))
	return sig
}

// IsZero reports whether id holds no key.
func (id Identity) IsZero() bool { return id.private == nil }

// Errors of TLS verification.
var (
	ErrUntrusted = errors.New("keyring: the peer's key is not trusted")
	ErrNoKey     = errors.New("keyring: the peer showed no Ed25519 key")
	ErrProtocol  = errors.New("keyring: the peer speaks another protocol")
)

// TLS is the configuration of either end of a connection of one protocol (ALPN): TLS 1.3 only, both ends show a certificate, and the
// peer is its public key, which trust must accept (nil error). Sessions are not resumed: every connection proves its key anew.
func (id Identity) TLS(protocol string, trust func(ed25519.PublicKey) error) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{id.cert},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{protocol},
		ClientAuth:   tls.RequireAnyClientCert,
		// There is no authority to ask: VerifyConnection below is the verification. TLS 1.3 itself still proves that the peer
		// holds the certificate's private key.
		InsecureSkipVerify:     true, //nolint:gosec // keys are pinned
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != protocol {
				return fmt.Errorf("%w: %q, not %q", ErrProtocol, s.NegotiatedProtocol, protocol)
			}
			pub, err := PeerKey(s)
			if err != nil {
				return err
			}
			return trust(pub)
		},
	}
}

// PeerKey is the key that the peer proved in a TLS handshake.
func PeerKey(s tls.ConnectionState) (ed25519.PublicKey, error) {
	if len(s.PeerCertificates) != 1 {
		return nil, fmt.Errorf("%w: %d certificates", ErrNoKey, len(s.PeerCertificates))
	}
	pub, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoKey, s.PeerCertificates[0].PublicKeyAlgorithm)
	}
	return pub, nil
}

// Only trusts one key.
func Only(want ed25519.PublicKey) func(ed25519.PublicKey) error {
	return func(pub ed25519.PublicKey) error {
		if !want.Equal(pub) {
			return fmt.Errorf("%w: it is %s, expected %s", ErrUntrusted, Short(pub), Short(want))
		}
		return nil
	}
}

// Short names a key in messages: its first eight bytes.
func Short(pub ed25519.PublicKey) string {
	return fmt.Sprintf("ed25519:%x…", []byte(pub[:min(8, len(pub))]))
}
