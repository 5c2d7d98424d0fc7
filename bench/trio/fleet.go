package trio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Options of Start.
type Options struct {
	Binary  string
	Model   string   // a GGUF file; empty: the built-in model
	Both    []string // flags of both workers
	Gateway []string // flags of the gateway
	All     []string // flags of all three
}

// Fleet is a gateway, a prefill and a decode worker.
type Fleet struct {
	Gateway, Prefill, Decode *Process
	URL, Admin               string        // http://host:port
	Ready                    time.Duration // from the first process's start until a pair could serve
	name                     string        // of the model, as requests give it
	dir                      string
}

// Model is what requests call the model.
func (f *Fleet) Model() string { return f.name }

// Start starts the three processes on free ports of loopback, and waits until they can serve. Each fleet has keys of its own.
func Start(ctx context.Context, o Options) (f *Fleet, err error) {
	f = &Fleet{name: "m"}
	defer func() {
		if err != nil {
			f.Close()
			f = nil
		}
	}()
	if f.dir, err = os.MkdirTemp("", "sluice-trio"); err != nil {
		return f, err
	}
	env := []string{"XDG_STATE_HOME=" + f.dir}
	model := o.Model
	if model == "" {
		model = "recall"
	} else if model, err = filepath.Abs(model); err != nil {
		return f, err
	}
	worker := func(role string, more ...string) (*Process, string, error) {
		args := append([]string{"worker", "--role", role, "--listen", "127.0.0.1:0", "--model", model, "--log-level", "warn"}, more...)
		args = append(append(args, o.Both...), o.All...)
		p, err := StartProcess(role, o.Binary, env, args...)
		if err != nil {
			return nil, "", err
		}
		at, err := p.Expect(`control on ([0-9.:]+)`)
		if err != nil {
			return p, "", err
		}
		return p, at[0], nil
	}
	began := time.Now()
	var prefill, decode string
	if f.Decode, decode, err = worker("decode", "--data", "127.0.0.1:0"); err != nil {
		return f, err
	}
	if f.Prefill, prefill, err = worker("prefill"); err != nil {
		return f, err
	}
	file := filepath.Join(f.dir, "fleet.yaml")
	text := fmt.Sprintf("models:\n  - name: %s\n    engine: native\n    model: %q\n    workers:\n      - {role: prefill, url: %q}\n      - {role: decode, url: %q}\n",
		f.name, model, "sluice://"+prefill, "sluice://"+decode)
	if err = os.WriteFile(file, []byte(text), 0o600); err != nil {
		return f, err
	}
	args := append([]string{"gateway", "--config", file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn"}, o.Gateway...)
	if f.Gateway, err = StartProcess("gateway", o.Binary, env, append(args, o.All...)...); err != nil {
		return f, err
	}
	if err = f.listens(); err != nil {
		return f, err
	}
	if err = f.waitReady(ctx); err != nil {
		return f, err
	}
	f.Ready = time.Since(began)
	return f, nil
}

func (f *Fleet) waitReady(ctx context.Context) error {
	late := time.After(startTime)
	for {
		r, err := http.Get(f.URL + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("no pair became ready:\n%s", f.Gateway.Output())
		}
	}
}

// Processes of the fleet, in the order of a request's walk.
func (f *Fleet) Processes() []*Process {
	all := []*Process{f.Gateway, f.Prefill, f.Decode}
	return slices.DeleteFunc(all, func(p *Process) bool { return p == nil })
}

// Close ends the processes.
func (f *Fleet) Close() {
	for _, p := range f.Processes() {
		p.Stop()
	}
	os.RemoveAll(f.dir)
}

// CPU is the processor time of all three.
func (f *Fleet) CPU() (sum time.Duration, err error) {
	for _, p := range f.Processes() {
		d, e := p.CPU()
		sum, err = sum+d, errors.Join(err, e)
	}
	return sum, err
}

// Pages asks the gateway for the pages of both pools.
func (f *Fleet) Pages(ctx context.Context) (free, total int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Admin+"/admin/fleet", nil)
	if err != nil {
		return 0, 0, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer r.Body.Close()
	var s struct {
		Free  int `json:"pool_free"`
		Total int `json:"pool_total"`
	}
	err = json.NewDecoder(r.Body).Decode(&s)
	return s.Free, s.Total, err
}

// Idle waits until every page of both pools is free.
func (f *Fleet) Idle(ctx context.Context) error {
	for {
		free, total, err := f.Pages(ctx)
		if err != nil {
			return err
		}
		if total > 0 && free == total {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pages are free: %w", free, total, ctx.Err())
		}
	}
}

// Serve starts the one process of `sluice serve` with the built-in model, which is known as recall. The fleet's Gateway is that
// process; there are no others.
func Serve(ctx context.Context, binary string, args ...string) (f *Fleet, err error) {
	f = &Fleet{name: "recall"}
	defer func() {
		if err != nil {
			f.Close()
			f = nil
		}
	}()
	if f.dir, err = os.MkdirTemp("", "sluice-trio"); err != nil {
		return f, err
	}
	began := time.Now()
	all := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn"}, args...)
	if f.Gateway, err = StartProcess("serve", binary, []string{"XDG_STATE_HOME=" + f.dir}, all...); err != nil {
		return f, err
	}
	if err = f.listens(); err != nil {
		return f, err
	}
	err = f.waitReady(ctx)
	f.Ready = time.Since(began)
	return f, err
}

// listens reads where the gateway does.
func (f *Fleet) listens() error {
	at, err := f.Gateway.Expect(`API on (http://\S+)`)
	if err != nil {
		return err
	}
	f.URL = at[0]
	if at, err = f.Gateway.Expect(`admin on (http://\S+)`); err != nil {
		return err
	}
	f.Admin = at[0]
	return nil
}
