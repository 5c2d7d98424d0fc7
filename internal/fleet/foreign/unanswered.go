package foreign

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"
)

// unanswered says in our own words why a worker that takes connections answered nothing, and what to do about it. Secure is whether it was asked over TLS.
func unanswered(err error, secure bool) string {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		remote    *net.OpError
		ne        net.Error
	)
	switch {
	case errors.As(err, &authority):
		return "its certificate is of an authority that is not trusted here: name the authority's with tls: {ca_file: …}"
	case errors.As(err, &name):
		return "its certificate is for another name: say which with tls: {server_name: …}"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired, or is not valid yet"
	case errors.As(err, &invalid):
		return "its certificate is not valid for a server"
	case errors.As(err, &record):
		return "what it answers is not TLS: its url may have to begin with http://"
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return "it refuses the TLS connection: it may want a certificate (tls: {cert_file: …, key_file: …})"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &ne) && ne.Timeout():
		return "it takes connections and answers nothing: it hangs, is not up yet, or is no HTTP server"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		other := "https"
		if secure {
			other = "http"
		}
		return "it closes connections without an answer: its url may have to begin with " + other + "://"
	}
	return "what it answers cannot be read: is its url that of an HTTP server?"
}
