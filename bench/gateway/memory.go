package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/bench/peer"
	"github.com/sluicekv/sluice/bench/trio"
)

// memory holds many idle streams on one gateway, then posts large bodies at one time to a fresh one, and prints what was resident.
func (s *settings) memory(ctx context.Context, streams int) error {
	s.slice = 0
	for _, engine := range s.engines {
		for _, part := range []func(context.Context, string, int) error{s.idleStreams, s.largePosts} {
			if err := part(ctx, engine, streams); err != nil {
				return fmt.Errorf("%s: %w", engine, err)
			}
		}
	}
	return nil
}

// files is how many descriptors a process may have here, after asking for as many as it may.
func files() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	l.Cur = l.Max
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return int(l.Cur)
}

// start is workers and sluice in front of them.
func (s *settings) start(ctx context.Context, engine string) (*lightFleet, *peer.Gateway, *client, error) {
	f, err := s.workers(engine)
	if err != nil {
		return nil, nil, nil, err
	}
	g, err := peer.Start(ctx, peer.Sluice, f.Fleet, peer.Options{Binary: s.binary, CPUs: s.cpus[1]})
	if err != nil {
		f.p.Stop()
		return nil, nil, nil, err
	}
	c, err := newClient(g.URL)
	if err != nil {
		f.p.Stop()
		g.Close()
		return nil, nil, nil, err
	}
	return f, g, c, nil
}

const (
	mostIdle   = 1 << 30
	largeAt    = 64
	largeBody  = 4 << 20
	mostToPost = 5_000_000 // bytes over idle for each post
)

// idleStreams opens streams that have begun and then say nothing.
func (s *settings) idleStreams(ctx context.Context, engine string, n int) error {
	wanted := n
	// Each stream is a client's connection and one to decode, on the gateway.
	if most := (files() - 200) / 2; n > most {
		n = most
		fmt.Printf("\n%s: a process may have %d files open here (ulimit -Hn), so %d streams instead of %d; raise it for all of them\n", engine, files(), n, wanted)
	}
	f, g, c, err := s.start(ctx, engine)
	if err != nil {
		return err
	}
	defer f.p.Stop()
	defer g.Close()
	idle, err := resident(g.Process)
	if err != nil {
		return err
	}
	request := requestFor(c.addr, body(1024, true, holdMark))
	conns := make([]*clientConn, n)
	defer func() {
		for _, x := range conns {
			if x != nil && x.c != nil {
				x.c.Close()
			}
		}
	}()
	begun := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				x := &clientConn{}
				err := x.begin(c.addr, request)
				x.in = nil
				mu.Lock()
				conns[i] = x
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for i := range n {
		mu.Lock()
		stop := failed != nil || ctx.Err() != nil
		mu.Unlock()
		if stop {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	if failed != nil {
		return failed
	}
	took := time.Since(begun)
	time.Sleep(5 * time.Second) // what opening them left is collected
	r, err := g.Process.Resident()
	if err != nil {
		return err
	}
	fmt.Printf("\n%s: %d idle streams, opened in %.1f s: resident %.0f MiB (peak %.0f), %.1f KiB a stream; idle before %.0f MiB. Target for 10000: 1024 MiB: %s\n",
		engine, n, took.Seconds(), mib(r.Now), mib(r.Peak), float64(r.Now-idle.Now)/1024/float64(n), mib(idle.Now), held(float64(r.Peak-idle.Now)/float64(n)*float64(wanted)+float64(idle.Now) <= mostIdle))
	return nil
}

// largePosts sends large bodies, all at one time, a few times over.
func (s *settings) largePosts(ctx context.Context, engine string, _ int) error {
	f, g, c, err := s.start(ctx, engine)
	if err != nil {
		return err
	}
	defer f.p.Stop()
	defer g.Close()
	defer c.close()
	for _, stream := range s.kinds {
		// Connections are there before: on a machine that is busy, opening them could take longer than the gateway waits.
		if x := c.run(load{size: 1024, at: largeAt}, requestFor(c.addr, body(1024, false, "")), 0, 4); x.err != nil {
			return x.err
		}
		if err := g.Process.ResetPeak(); err != nil {
			return err
		}
		idle, err := resident(g.Process)
		if err != nil {
			return err
		}
		x := c.run(load{size: largeBody, at: largeAt, stream: stream}, requestFor(c.addr, body(largeBody, stream, "")), 0, 4)
		if x.err != nil {
			return x.err
		}
		r, err := g.Process.Resident()
		if err != nil {
			return err
		}
		over := float64(r.Peak-idle.Now) / largeAt
		fmt.Printf("\n%s: %d posts of %s at one time, four times over (stream %v): idle %.0f MiB, peak %.0f MiB, %.2f MB a post over idle. Target: 5 MB: %s\n",
			engine, largeAt, sizeName(largeBody), stream, mib(idle.Now), mib(r.Peak), over/1e6, held(over <= mostToPost))
	}
	return nil
}

func resident(p *trio.Process) (trio.Resident, error) { return p.Resident() }

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func held(ok bool) string {
	if ok {
		return "held"
	}
	return "missed"
}
