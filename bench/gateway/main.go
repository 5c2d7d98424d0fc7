// Command gateway measures what a gateway costs: sluice and the gateways that it is compared with, in front of the same light workers,
// taking turns in one run. bench/RESULTS.md has what it printed.
//
//	bench/peers/install.sh .cache/e2e-peers
//	go run ./bench/gateway [-engine sglang,vllm-nixl,plain] [-part speed,memory] [-chart bench/gateway.svg]
//
// Each gateway is a process of its own, pinned to one processor; workers and clients share the other. For each load the gateways and
// "direct" (the client asks decode itself) take turns, slice by slice, so that what else the machine does hits all of them. Processor time
// is the gateway's alone, from the scheduler's own account (/proc/PID/task/*/schedstat).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/bench/peer"
	"github.com/sluicekv/sluice/bench/trio"
	"github.com/sluicekv/sluice/internal/fake"
)

// settings of a run.
type settings struct {
	env, binary string
	beside      string // another build of sluice
	engines     []string
	only        []string // gateways
	sizes, ats  []int
	kinds       []bool // streaming or not
	large       int    // bytes of bodies over which no more than 16 are sent at a time
	rounds      int
	slice       time.Duration
	cpus        [2]string // of workers and clients, of the gateways
	chart, save string
	profile     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var s settings
	workers := flag.String("workers", "", "internal: be the workers of an engine")
	engines := flag.String("engine", "sglang,vllm-nixl,plain", "engines, comma-separated")
	part := flag.String("part", "speed,memory", "speed, memory or both")
	only := flag.String("gateways", "", "only these gateways (default: all that speak the engine)")
	sizes := flag.String("sizes", "1024,102400,4194304", "bytes of the bodies")
	ats := flag.String("at", "1,16,64,1000", "requests at one time; 1000 only with streams of the smallest body")
	kinds := flag.String("stream", "no,yes", "no, yes or both")
	flag.IntVar(&s.large, "large", 8<<20, "bodies over so many bytes are sent 16 at a time at most")
	flag.IntVar(&s.rounds, "rounds", 3, "turns of each gateway at each load")
	flag.DurationVar(&s.slice, "slice", 400*time.Millisecond, "length of a turn")
	flag.StringVar(&s.env, "env", ".cache/e2e-peers", "`folder` that bench/peers/install.sh filled")
	flag.StringVar(&s.binary, "sluice", "", "the binary (default: build it)")
	flag.StringVar(&s.beside, "beside", "", "another `build` of sluice, measured beside the first")
	flag.StringVar(&s.chart, "chart", "", "write a chart (SVG) to this `file`")
	flag.StringVar(&s.save, "save", "", "keep the cells in this `file` (JSON); cells of engines that this run leaves out stay")
	draw := flag.Bool("draw", false, "only draw the chart of the cells in -save")
	flag.StringVar(&s.profile, "profile", "", "write a CPU profile of sluice to this `file` (admin port)")
	cpus := flag.String("cpus", "0,1", "processors of workers and clients, and of the gateways; empty: any")
	streams := flag.Int("idle", 10000, "idle streams for the memory part")
	flag.Parse()
	if *workers != "" {
		return serveWorkers(*workers, streamTokens)
	}
	if *draw {
		rows, err := s.keep(nil)
		if err != nil {
			return err
		}
		return writeChart(s.chart, rows)
	}
	s.engines = strings.Split(*engines, ",")
	if *only != "" {
		s.only = strings.Split(*only, ",")
	}
	s.kinds = []bool{}
	for _, k := range strings.Split(*kinds, ",") {
		s.kinds = append(s.kinds, k == "yes")
	}
	var err error
	if s.sizes, err = numbers(*sizes); err != nil {
		return err
	}
	if s.ats, err = numbers(*ats); err != nil {
		return err
	}
	if c := strings.Split(*cpus, ","); len(c) == 2 && runtime.NumCPU() > 1 {
		s.cpus = [2]string{c[0], c[1]}
	}
	if s.binary == "" {
		dir, err := os.MkdirTemp("", "sluice-bench")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if s.binary, err = trio.Build(ctx, dir); err != nil {
			return err
		}
	}
	if s.cpus[0] != "" {
		// This process is the clients. Its threads were started before: all of them move.
		if out, err := exec.Command("taskset", "-apc", s.cpus[0], strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
			return fmt.Errorf("taskset: %w %s", err, out)
		}
		runtime.GOMAXPROCS(1)
	}
	fmt.Printf("%s; load average %s; gateways on processor %q, workers and clients on %q\n", time.Now().Format("2006-01-02 15:04"), loadAverage(), s.cpus[1], s.cpus[0])
	parts := strings.Split(*part, ",")
	if slices.Contains(parts, "speed") {
		var all []row
		for _, e := range s.engines {
			rows, err := s.speed(ctx, e)
			if err != nil {
				return err
			}
			all = append(all, rows...)
		}
		if all, err = s.keep(all); err != nil {
			return err
		}
		if s.chart != "" {
			if err := writeChart(s.chart, all); err != nil {
				return err
			}
		}
	}
	if slices.Contains(parts, "memory") {
		return s.memory(ctx, *streams)
	}
	return nil
}

func numbers(s string) (out []int, err error) {
	for _, f := range strings.Split(s, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no list of numbers", s)
		}
		out = append(out, n)
	}
	return out, nil
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:min(3, len(strings.Fields(string(b))))], " ")
}

// engineOf is the fake that plays an engine of a configuration.
func engineOf(e string) string {
	if e == "plain" {
		return fake.Plain
	}
	return e
}

// lightFleet is a process of light workers.
type lightFleet struct {
	p *trio.Process
	peer.Fleet
}

func (s *settings) workers(engine string) (*lightFleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	name, args := self, []string{"-workers", engineOf(engine)}
	if s.cpus[0] != "" {
		name, args = "taskset", append([]string{"-c", s.cpus[0], self}, args...)
	}
	p, err := trio.StartProcess("workers", name, nil, args...)
	if err != nil {
		return nil, err
	}
	f := &lightFleet{p: p, Fleet: peer.Fleet{Engine: engineOf(engine)}}
	read := func() error {
		if engine != "plain" {
			at, err := p.Expect(`^prefill (\S+)`)
			if err != nil {
				return err
			}
			f.Prefill = "http://" + at[0]
		}
		at, err := p.Expect(`^(?:decode|both) (\S+)`)
		if err != nil {
			return err
		}
		f.Decode = "http://" + at[0]
		if at, err = p.Expect(`^ready (\d+)`); err != nil {
			return err
		}
		f.Bootstrap, err = strconv.Atoi(at[0])
		return err
	}
	if err := read(); err != nil {
		p.Stop()
		return nil, err
	}
	return f, nil
}

// target is what requests are sent to.
type target struct {
	name    string
	gateway *peer.Gateway // nil: direct
	client  *client
}

// row is one load at one target, over all rounds.
type row struct {
	Engine  string
	Gateway string // "direct"
	Size    int
	At      int
	Stream  bool
	P50     float64 // ms
	P99     float64
	Rate    float64 // requests/s
	CPU     float64 // ms of the gateway per request
	Failed  string  `json:",omitempty"`
}

// other is the name of the build beside ours.
const other = "sluice, the other build"

// speed measures all gateways in front of one engine.
func (s *settings) speed(ctx context.Context, engine string) ([]row, error) {
	f, err := s.workers(engine)
	if err != nil {
		return nil, err
	}
	defer f.p.Stop()
	direct, err := newClient(f.Decode)
	if err != nil {
		return nil, err
	}
	targets := []*target{{name: "direct", client: direct}}
	names := peer.For(f.Engine)
	if s.beside != "" {
		names = append(names, other)
	}
	for _, name := range names {
		if s.only != nil && !slices.Contains(s.only, name) && name != other {
			continue
		}
		start, binary := name, s.binary
		if name == other {
			start, binary = peer.Sluice, s.beside
		}
		g, err := peer.Start(ctx, start, f.Fleet, peer.Options{Env: s.env, Binary: binary, CPUs: s.cpus[1], Flags: []string{"--request-timeout", "60s"}})
		if err != nil {
			return nil, err
		}
		defer g.Close()
		c, err := newClient(g.URL)
		if err != nil {
			return nil, err
		}
		targets = append(targets, &target{name: name, gateway: g, client: c})
	}
	defer func() {
		for _, t := range targets {
			t.client.close()
		}
	}()
	var rows []row
	stopProfile := s.startProfile(targets)
	heading(os.Stdout, engine, targets)
	for _, stream := range s.kinds {
		for _, size := range s.sizes {
			for _, at := range s.ats {
				if at > 100 && (!stream || size > s.sizes[0]) || at > 16 && size > s.large {
					continue
				}
				cell := s.cell(ctx, engine, load{size: size, at: at, stream: stream}, targets)
				line(os.Stdout, cell)
				rows = append(rows, cell...)
				if ctx.Err() != nil {
					return nil, errors.New("interrupted")
				}
			}
		}
	}
	return rows, stopProfile()
}

// cell runs one load on all targets, in turns.
func (s *settings) cell(ctx context.Context, engine string, l load, targets []*target) (rows []row) {
	b := body(l.size, l.stream, "")
	samples := make([][]sample, len(targets))
	for round := range s.rounds + 1 {
		for i, t := range targets {
			if ctx.Err() != nil {
				return nil
			}
			if n := len(samples[i]); n > 0 && samples[i][n-1].err != nil {
				continue // it cannot: it is not asked again
			}
			request := requestFor(t.client.addr, b)
			if round == 0 { // connections, caches
				if w := t.client.run(l, request, 0, 1); w.err != nil {
					samples[i] = append(samples[i], w)
				}
				continue
			}
			before := t.cpu()
			x := t.client.run(l, request, s.slice, 1)
			x.cpu = t.cpu() - before
			samples[i] = append(samples[i], x)
		}
	}
	for i, t := range targets {
		r := row{Engine: engine, Gateway: t.name, Size: l.size, At: l.at, Stream: l.stream}
		var took []time.Duration
		var cpu, wall time.Duration
		for _, x := range samples[i] {
			if x.err != nil {
				r.Failed = x.err.Error()
			}
			took = append(took, x.took...)
			cpu += x.cpu
			wall += x.wall
		}
		slices.Sort(took)
		if n := len(took); n > 0 && r.Failed == "" {
			r.P50, r.P99 = ms(took[n/2]), ms(took[min(n*99/100, n-1)])
			r.Rate = float64(n) / wall.Seconds()
			r.CPU = ms(cpu) / float64(n)
		}
		rows = append(rows, r)
		t.client.close()
	}
	return rows
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func (t *target) cpu() time.Duration {
	if t.gateway == nil {
		return 0
	}
	d, _ := t.gateway.Process.CPU()
	return d
}
