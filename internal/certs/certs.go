// Package certs is TLS from files, for both sides of the gateway: a listener's certificate and the clients that it lets in, and how
// workers are reached. Files are read again while connections go on (Reload); what cannot be read changes nothing, and connections
// that are open keep what they began with. Nothing below TLS 1.2 is spoken.
//
// Errors name files and never hold what is in them.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// ServerFiles of a listener, in PEM.
type ServerFiles struct {
	Cert, Key string
	ClientCA  string // of the certificates that clients must show; empty: they need none
}

// Server is a listener's side. Safe for concurrent use.
type Server struct {
	files ServerFiles
	now   atomic.Pointer[tls.Config]
}

// LoadServer reads a listener's files.
func LoadServer(f ServerFiles) (*Server, error) {
	if f.Cert == "" || f.Key == "" {
		return nil, errors.New("certs: a listener needs both a certificate and its key")
	}
	s := &Server{files: f}
	return s, s.Reload()
}

// Reload reads the files again. On an error everything stays as it is.
func (s *Server) Reload() error {
	cert, err := pair(s.files.Cert, s.files.Key)
	if err != nil {
		return err
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if s.files.ClientCA != "" {
		if c.ClientCAs, err = pool(s.files.ClientCA); err != nil {
			return err
		}
		// A session that is resumed is not asked for its certificate again, whoever is trusted by then.
		c.ClientAuth, c.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, true
	}
	s.now.Store(c)
	return nil
}

// Config for a listener. Each connection is taken with the files as they were read last.
func (s *Server) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now.Load(), nil },
	}
}

// Paths of the files, to follow.
func (s *Server) Paths() []string { return given(s.files.Cert, s.files.Key, s.files.ClientCA) }

// NotAfter is when the certificate ends.
func (s *Server) NotAfter() time.Time { return s.now.Load().Certificates[0].Leaf.NotAfter }

// ClientFiles say how a worker is reached: all may be empty.
type ClientFiles struct {
	CA         string // of the worker's certificate; empty: the system's
	Cert, Key  string // shown to the worker
	ServerName string // in the worker's certificate; empty: the host of its URL
}

// Client is the gateway's side towards workers. A nil Client trusts the system's authorities and shows no certificate.
type Client struct {
	files ClientFiles
	now   atomic.Pointer[tls.Config]
}

// LoadClient reads the files towards a worker.
func LoadClient(f ClientFiles) (*Client, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("certs: cert_file and key_file go together")
	}
	c := &Client{files: f}
	return c, c.Reload()
}

// Reload reads the files again. On an error everything stays as it is.
func (c *Client) Reload() error {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.files.ServerName, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	var err error
	if c.files.CA != "" {
		if t.RootCAs, err = pool(c.files.CA); err != nil {
			return err
		}
	}
	if c.files.Cert != "" {
		cert, err := pair(c.files.Cert, c.files.Key)
		if err != nil {
			return err
		}
		t.Certificates = []tls.Certificate{cert}
	}
	c.now.Store(t)
	return nil
}

// For is the configuration of the next connection to a host. It is the caller's own.
func (c *Client) For(host string) *tls.Config {
	if c == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	}
	t := c.now.Load().Clone()
	if t.ServerName == "" {
		t.ServerName = host
	}
	return t
}

// Paths of the files, to follow.
func (c *Client) Paths() []string { return given(c.files.CA, c.files.Cert, c.files.Key) }

// NotAfter is when the certificate that is shown to workers ends; zero: none is.
func (c *Client) NotAfter() (t time.Time) {
	if cs := c.now.Load().Certificates; len(cs) > 0 {
		t = cs[0].Leaf.NotAfter
	}
	return t
}

func pair(cert, key string) (tls.Certificate, error) {
	for _, p := range []string{cert, key} {
		if _, err := os.Stat(p); err != nil {
			return tls.Certificate{}, fmt.Errorf("certs: %w", err)
		}
	}
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return c, fmt.Errorf("certs: %s and %s are not a certificate and its key in PEM: %w", cert, key, err)
	}
	return c, nil
}

func pool(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("certs: %s holds no certificate in PEM", file)
	}
	return p, nil
}

func given(paths ...string) (out []string) {
	for _, p := range paths {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}
