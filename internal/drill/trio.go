package drill

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/model/validate"
	"github.com/sluicekv/sluice/internal/pool/outside"
)

// trio is a fleet of separate processes: an honest prefill, a liar, a decode worker and a gateway, with a network between that can be
// spoiled. Its prefills share the decode worker.
type trio struct {
	program []string
	seed    [32]byte
	without guard.Guard
	limits  limits
	sizes   sizes

	events                            *events
	validator                         *validate.Validator
	seen                              int // events that were validated
	prefill, liar, decode, gateway    *process
	toPrefill, toDecode, toLiar, data *relay // gateway to prefill, gateway to decode, gateway to liar, prefill to decode
	gatewayCfg                        node.Config
	record                            *recording // of a soak; nil: none
}

// limits of a fleet, in milliseconds.
type limits struct{ deadline, settle, silence int }

// sizes of a fleet's pools and contexts, in tokens. Prefill's pool is smaller than decode's, and the liar's than both, as in the incident.
type sizes struct {
	prefill, decode, liar, context, decodeContext, page int
	template                                            string // of chats; empty: the built-in model's
	pageWait                                            int    // milliseconds; 0: the default
}

var usual = sizes{prefill: contextLen, decode: decodePool, liar: prefillPool, context: contextLen, decodeContext: contextLen}

// startTrio starts a fleet. program is what runs a node; nil: all of them are in this process.
func startTrio(ctx context.Context, program []string, without guard.Guard, l limits, z sizes) (_ *trio, err error) {
	x := &trio{program: program, without: without, limits: l, sizes: z}
	if _, err := rand.Read(x.seed[:]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			x.close()
		}
	}()
	if x.events, err = newEvents(); err != nil {
		return nil, err
	}
	x.validator = validate.New(validate.Options{Without: validate.Guards(without)})
	for _, r := range []**relay{&x.toPrefill, &x.toDecode, &x.toLiar, &x.data} {
		if *r, err = newRelay(); err != nil {
			return nil, err
		}
	}
	if err = x.startPrefill(ctx); err != nil {
		return nil, err
	}
	if err = x.startDecode(ctx); err != nil {
		return nil, err
	}
	if err = x.startLiar(ctx); err != nil {
		return nil, err
	}
	x.gatewayCfg = x.config(node.Gateway)
	if err = x.startGateway(ctx); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *trio) config(kind string) node.Config {
	c := node.Config{Kind: kind, Seed: x.seed, Listen: "127.0.0.1:0", Context: x.sizes.context, KVTokens: x.sizes.prefill, PageTokens: x.sizes.page, Template: x.sizes.template, PageWait: x.sizes.pageWait,
		Deadline: x.limits.deadline, Settle: x.limits.settle, Silence: x.limits.silence}
	if x.without != 0 {
		c.Without = x.without.String()
	}
	return c
}

func (x *trio) spawn(ctx context.Context, c node.Config) (*process, error) {
	return spawn(ctx, x.program, c, x.events.w)
}

func (x *trio) startPrefill(ctx context.Context) (err error) {
	if x.prefill, err = x.spawn(ctx, x.config(node.Prefill)); err == nil {
		x.toPrefill.point(x.prefill.up.Addr)
	}
	return err
}

func (x *trio) startDecode(ctx context.Context) (err error) {
	c := x.config(node.Decode)
	c.KVTokens, c.Context, c.Data, c.Advertise = x.sizes.decode, x.sizes.decodeContext, "127.0.0.1:0", x.data.addr()
	if x.decode, err = x.spawn(ctx, c); err == nil {
		x.toDecode.point(x.decode.up.Addr)
		x.data.point(x.decode.up.Data)
	}
	return err
}

func (x *trio) startLiar(ctx context.Context) (err error) {
	c := x.config(node.Liar)
	c.KVTokens, c.Claims = x.sizes.liar, max(contextLen, x.sizes.decodeContext)
	if x.liar, err = x.spawn(ctx, c); err == nil {
		x.toLiar.point(x.liar.up.Addr)
	}
	return err
}

func (x *trio) startGateway(ctx context.Context) (err error) {
	c := x.gatewayCfg
	c.Prefills, c.Decode = []string{x.toPrefill.addr(), x.toLiar.addr()}, x.toDecode.addr()
	if x.gateway, err = x.spawn(ctx, c); err != nil {
		return err
	}
	return x.ready(ctx)
}

// ready waits until a pair of both models can serve.
func (x *trio) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	last := "no answer"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.gateway.up.Addr+"/readyz", nil)
		if err != nil {
			return err
		}
		if r, err := http.DefaultClient.Do(req); err == nil {
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
			last = string(b)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drill: the fleet does not become ready: %s", last)
		case <-x.gateway.gone:
			return fmt.Errorf("drill: the gateway ended: %s", x.gateway.err.String())
		case <-time.After(5 * time.Millisecond): // polling another process
		}
	}
}

func (x *trio) door() door { return door(x.gateway.up.Addr) }

// workers are the processes that have pools.
func (x *trio) workers() []*process { return []*process{x.prefill, x.decode} }

// mend makes everything whole again: network, frames, processes.
func (x *trio) mend(ctx context.Context) error {
	for _, r := range []*relay{x.toPrefill, x.toDecode, x.toLiar, x.data} {
		r.mend()
	}
	for _, p := range []**process{&x.prefill, &x.decode, &x.liar, &x.gateway} {
		(*p).signal(syscall.SIGCONT)
	}
	if err := x.revive(ctx); err != nil {
		return err
	}
	for _, p := range x.workers() {
		for _, c := range []node.Command{{Do: node.DoRules}, {Do: node.DoArm}} {
			if _, err := p.do(ctx, c); err != nil {
				return err
			}
		}
	}
	if _, err := x.gateway.do(ctx, node.Command{Do: node.DoArm}); err != nil {
		return err
	}
	if _, err := x.liar.do(ctx, node.Command{Do: node.DoTell}); err != nil {
		return err
	}
	return x.ready(ctx)
}

// revive starts what has ended.
func (x *trio) revive(ctx context.Context) (err error) {
	if !x.prefill.alive() {
		err = x.startPrefill(ctx)
	}
	if err == nil && !x.decode.alive() {
		err = x.startDecode(ctx)
	}
	if err == nil && !x.gateway.alive() {
		err = x.startGateway(ctx)
	}
	return err
}

// fromOutside: arenas are read from /proc/PID/mem. Under the race detector they are in the Go heap, and cannot be.
var fromOutside = true

// settled waits until every page of the workers is free, and reads their arenas from outside.
func (x *trio) settled(ctx context.Context, within time.Duration) (free, total int, nonzero uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		free, total = 0, 0
		for _, p := range x.workers() {
			r, err := p.do(ctx, node.Command{Do: node.DoStats})
			if err != nil {
				return free, total, 0, err
			}
			free += r.Stats.Free
			total += r.Stats.Total
		}
		if free == total {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond): // polling another process
			continue
		}
		break
	}
	for _, p := range x.workers() {
		var n uint64
		if x.program == nil || !fromOutside { // from outside, all fleets in one process look alike
			r, e := p.do(ctx, node.Command{Do: node.DoScan})
			n, err = uint64(r.Fired), e
		} else {
			_, n, err = outside.Scan(p.pid(), p.cfg.Kind)
		}
		if err != nil {
			return free, total, 0, err
		}
		nonzero += n
	}
	return free, total, nonzero, nil
}

func (x *trio) stats(ctx context.Context, p *process) node.Stats {
	r, _ := p.do(ctx, node.Command{Do: node.DoStats})
	return r.Stats
}

// validate replays what the fleet did since the last time through the model.
func (x *trio) validate() (n int, err error) {
	fresh := x.events.since(x.seen)
	x.seen += len(fresh)
	for _, e := range fresh {
		if err := x.validator.Step(e); err != nil {
			return len(fresh), err
		}
	}
	return len(fresh), nil
}

func (x *trio) close() {
	ctx := context.Background()
	for _, p := range []*process{x.gateway, x.liar, x.decode, x.prefill} {
		if p != nil {
			p.close(ctx)
		}
	}
	for _, r := range []*relay{x.toPrefill, x.toDecode, x.toLiar, x.data} {
		if r != nil {
			r.close()
		}
	}
	if x.events != nil {
		x.events.close()
	}
}

// program is how this binary runs a node.
func program() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{self, "drill", NodeCommand}, nil
}

// NodeCommand is the hidden subcommand that runs a node.
const NodeCommand = "node"
