package foreign

import (
	"crypto/tls"
	"fmt"
	"sync"

	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/transport/h1"
)

// secured is how workers with https URLs are reached: by whom they are vouched for, and what is shown to them. Workers with files of
// their own (Worker.TLS) have a transport of their own; the others share one, whose files are Config.TLS.
type secured struct {
	mu    sync.Mutex // a leaf
	known map[certs.ClientFiles]*certs.Client
	roads map[certs.ClientFiles]*h1.Transport
}

// client reads files once; they are read again by whom Certs tells of them.
func (s *secured) client(files certs.ClientFiles) (*certs.Client, error) {
	if files == (certs.ClientFiles{}) {
		return nil, nil // the system's authorities
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.known[files]; c != nil {
		return c, nil
	}
	c, err := certs.LoadClient(files)
	if err != nil {
		return nil, err
	}
	if s.known == nil {
		s.known = map[certs.ClientFiles]*certs.Client{}
	}
	s.known[files] = c
	return c, nil
}

// tlsOf is the configuration of the next connection of a worker.
func (f *Fleet) tlsOf(files certs.ClientFiles, host string) (*tls.Config, error) {
	if files == (certs.ClientFiles{}) {
		files = f.config().TLS
	}
	c, err := f.secured.client(files)
	if err != nil {
		return nil, err
	}
	return c.For(host), nil
}

// road is the transport of workers with these files.
func (f *Fleet) road(files certs.ClientFiles) *h1.Transport {
	s := &f.secured
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.roads[files]
	if t == nil {
		t = f.newTransport(func(host string) (*tls.Config, error) { return f.tlsOf(files, host) })
		if s.roads == nil {
			s.roads = map[certs.ClientFiles]*h1.Transport{}
		}
		s.roads[files] = t
	}
	return t
}

func (s *secured) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.roads {
		t.CloseIdleConnections()
	}
}

// checkTLS reads the files that a configuration names.
func (f *Fleet) checkTLS(cfg Config) error {
	if _, err := f.secured.client(cfg.TLS); err != nil {
		return fmt.Errorf("fleet: model %s: %w", cfg.Model, err)
	}
	for _, w := range cfg.Workers {
		if _, err := f.secured.client(w.TLS); err != nil {
			return fmt.Errorf("fleet: model %s: worker %s: %w", cfg.Model, w.URL.Host, err)
		}
	}
	return nil
}

// Certs are the files that workers are reached with now, to be read again when they change.
func (f *Fleet) Certs() (out []*certs.Client) {
	f.mu.Lock()
	used := map[certs.ClientFiles]bool{f.cfg.TLS: true}
	for _, n := range f.workers {
		used[n.TLS] = true
	}
	f.mu.Unlock()
	s := &f.secured
	s.mu.Lock()
	defer s.mu.Unlock()
	for files := range used {
		if c := s.known[files]; c != nil {
			out = append(out, c)
		}
	}
	return out
}
