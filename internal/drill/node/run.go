package node

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/worker"
)

// PageTokens of a drill's fleet.
const PageTokens = 64

// node is the process.
type node struct {
	cfg    Config
	rec    *recorder
	frames frames
	file   *trace.File
	worker *worker.Worker
	liar   *liar.Liar
	door   *gateway.Gateway
	log    lossyWriter // and what goes to the other two files
	trace  lossyWriter
	record lossyWriter

	mu  sync.Mutex
	out *json.Encoder
}

// Run is a node's life: it reads its config and commands from in, writes replies to out, and its events to pipe.
func Run(in io.Reader, out io.Writer, pipe *os.File) error {
	n := &node{out: json.NewEncoder(out), rec: &recorder{pipe: pipe}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	if !lines.Scan() {
		return errors.New("drill: a node is started by sluice drill, which tells it what to be")
	}
	if err := json.Unmarshal(lines.Bytes(), &n.cfg); err != nil {
		return fmt.Errorf("drill: a node's config: %w", err)
	}
	if err := n.cfg.validate(); err != nil {
		return err
	}
	if err := without(n.cfg.Without); err != nil {
		return err
	}
	up, err := n.start()
	if err != nil {
		n.close()
		return err
	}
	n.say(up)
	for lines.Scan() {
		var c Command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("drill: a command to a node: %w", err)
		}
		if c.Do == DoClose {
			n.close()
			n.say(Reply{ID: c.ID})
			return nil
		}
		go n.obey(c)
	}
	n.close()
	return lines.Err()
}

func (n *node) say(r Reply) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.out.Encode(r) // a parent that is gone closes standard input, too
}

func (n *node) obey(c Command) {
	r := Reply{ID: c.ID}
	var err error
	switch c.Do {
	case DoStats:
		r.Stats = n.stats()
	case DoArm:
		err = n.rec.arm(c.Arm)
	case DoRules:
		n.frames.set(c.Rules)
	case DoDrain:
		go func() { _ = n.door.Drain(context.Background()) }() // it returns when all are served
	case DoScan:
		r.Fired = int(n.worker.Pool().ScanFree())
	case DoFired:
		r.Fired = n.frames.count()
	case DoTell:
		var lie liar.Lie
		if c.Lie != "" {
			lie, err = liar.Parse(c.Lie)
		}
		if err == nil {
			n.liar.Tell(lie)
		}
	case DoHolding:
		<-n.liar.Holding()
	case DoLoose:
		r.Fired = n.liar.Loose()
	default:
		err = fmt.Errorf("drill: no node can %q", c.Do)
	}
	if err != nil {
		r.Error = err.Error()
	}
	n.say(r)
}

func (n *node) start() (Reply, error) {
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1, Template: n.cfg.Template}))
	if err != nil {
		return Reply{}, err
	}
	m, err := llm.Load(f)
	if err != nil {
		return Reply{}, err
	}
	keys, ids := keyring.Derived(n.cfg.Seed, nodes()...)
	logger := slog.New(slog.DiscardHandler)
	if n.cfg.Log != "" {
		w, err := os.OpenFile(n.cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return Reply{}, err
		}
		n.log.w = w
		logger = slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if n.cfg.TraceFile != "" {
		w, err := os.OpenFile(n.cfg.TraceFile, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return Reply{}, err
		}
		n.trace.w = w
		n.file = trace.NewFile(&n.trace, 1)
		n.rec.file = n.file
	}
	switch n.cfg.Kind {
	case Prefill, Decode:
		cfg := worker.Config{Version: "drill", Name: n.cfg.Kind, Role: capacity.Role(n.cfg.Kind), Listen: n.cfg.Listen, Data: n.cfg.Data, Advertise: n.cfg.Advertise,
			Model: m, PageTokens: cmp.Or(n.cfg.PageTokens, PageTokens), KVTokens: n.cfg.KVTokens, Context: n.cfg.Context, ServeSmaller: true, Threads: 1, Identity: ids[n.cfg.Kind], Fleet: keys,
			Log: logger, Trace: n.rec, Frames: n.frames.filter}
		cfg.Limits.PageWait = milliseconds(n.cfg.PageWait)
		if n.worker, err = worker.New(cfg); err != nil {
			return Reply{}, err
		}
		if err := n.worker.Start(); err != nil {
			return Reply{}, err
		}
		r := Reply{Addr: n.worker.Addr().String(), Boot: uint64(n.worker.Boot())}
		if a := n.worker.DataAddr(); a != nil {
			r.Data = a.String()
		}
		return r, nil
	case Liar:
		var lie liar.Lie
		if n.cfg.Lie != "" {
			if lie, err = liar.Parse(n.cfg.Lie); err != nil {
				return Reply{}, err
			}
		}
		n.liar, err = liar.Start(liar.Config{Name: Liar, Model: m, PageTokens: cmp.Or(n.cfg.PageTokens, PageTokens), KVTokens: n.cfg.KVTokens, Context: n.cfg.Context,
			Claims: n.cfg.Claims, Identity: ids[Liar], Fleet: keys}, lie)
		if err != nil {
			return Reply{}, err
		}
		return Reply{Addr: n.liar.Addr()}, nil
	case Gateway:
		enc, err := prompt.New(f)
		if err != nil {
			return Reply{}, err
		}
		decode := gateway.WorkerAddr{Name: Decode, Role: capacity.Decode, Addr: n.cfg.Decode}
		var models []gateway.ModelConfig
		for i, name := range []string{Prefill, Liar} {
			if i < len(n.cfg.Prefills) {
				models = append(models, gateway.ModelConfig{Name: Model(name), Encoder: enc, Fingerprint: m.Fingerprint(),
					Workers: []gateway.WorkerAddr{{Name: name, Role: capacity.Prefill, Addr: n.cfg.Prefills[i]}, decode}})
			}
		}
		cfg := gateway.Config{Listen: n.cfg.Listen, Admin: "127.0.0.1:0", Log: logger, Identity: ids[Gateway], Keys: keys, Version: "drill", Models: models,
			Trace: n.rec, Limits: gateway.Limits{Deadline: milliseconds(n.cfg.Deadline), Settle: milliseconds(n.cfg.Settle)}}
		if n.cfg.Records != "" {
			w, err := os.OpenFile(n.cfg.Records, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return Reply{}, err
			}
			n.record.w = w
			cfg.Records = &n.record
		}
		cfg.Timing.Silence = milliseconds(n.cfg.Silence)
		cfg.Timing.PingEvery = milliseconds(n.cfg.Silence) / 4
		cfg.Timing.PauseMax = 100 * time.Millisecond
		cfg.Rests.For, cfg.Rests.Last = 100*time.Millisecond, 50*time.Millisecond // the next cell needs the pair
		if n.door, err = gateway.New(cfg); err != nil {
			return Reply{}, err
		}
		if err := n.door.Start(); err != nil {
			return Reply{}, err
		}
		return Reply{Addr: n.door.Addr(), Data: n.door.AdminAddr()}, nil
	}
	return Reply{}, fmt.Errorf("drill: no node is a %q", n.cfg.Kind)
}

// Model is the name under which the gateway serves what goes through a prefill worker.
func Model(prefill string) string {
	if prefill == Liar {
		return "liar"
	}
	return "honest"
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func (n *node) stats() (s Stats) {
	switch {
	case n.worker != nil:
		w := n.worker.Snapshot()
		s = Stats{Free: w.Pool.Free, Total: w.Pool.Total, Pins: w.Pool.Pins, Settled: w.Settled, PagesRefused: w.PagesRefused, LateFrames: w.LateFrames,
			StrayFrames: w.StrayFrames, LinksBroken: w.LinksBroken, Active: w.Active, Verdicts: map[string]uint64{}}
		for c, k := range w.Verdicts {
			s.Verdicts[c.String()] = k
		}
	case n.liar != nil:
		p := n.liar.Pool().Stats()
		s = Stats{Free: p.Free, Total: p.Total}
	}
	s.TraceLost, s.RecordsLost, s.LogLost = n.trace.lost.Load(), n.record.lost.Load(), n.log.lost.Load()
	return s
}

func (n *node) close() {
	if n.door != nil {
		n.door.Close()
	}
	if n.liar != nil {
		n.liar.Close()
	}
	if n.worker != nil {
		if err := n.worker.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "drill:", n.cfg.Kind, err)
		}
	}
	if n.file != nil {
		_ = n.file.Close() // what was lost is in the stats
	}
}

// lossyWriter counts the writes that a disk does not take.
type lossyWriter struct {
	w    io.WriteCloser
	lost atomic.Uint64
}

func (l *lossyWriter) Write(b []byte) (int, error) {
	n, err := l.w.Write(b)
	if err != nil {
		l.lost.Add(1)
	}
	return n, err
}

func (l *lossyWriter) Close() error { return l.w.Close() }
