package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
)

func newFakeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fake",
		Short: "Workers that speak the wire of SGLang or vLLM, are strict, and can lie: a test kit",
		Long: `fake runs workers without a model: they answer from what lies in their pages, which are never cleared, and
report every request that breaks a rule of the wire. With --lie they do one thing wrong; with stale among its
options the reply is then another request's text, for a gateway to stop. docs/fakes.md is the manual.

Exit codes: 0 no rule was broken, 1 one was, 3 bad usage.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		newFakeEngineCommand("sglang", "0.5.19", "A prefill and a decode worker of SGLang 0.5.19 to 0.5.23"),
		newFakeEngineCommand("vllm", "0.32.0", "A prefill and a decode worker of vLLM 0.32, or a plain server"),
		&cobra.Command{
			Use: "lies", Short: "What the workers can do wrong", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error { return actor.Explain(c.OutOrStdout()) },
		},
	)
	cmd.SetFlagErrorFunc(usageError)
	return cmd
}

// fakeSettings of one run.
type fakeSettings struct {
	options                    fake.Options
	connector                  string
	plain                      bool
	pairs                      int
	prefill, decode, bootstrap string
	control                    string
	lies                       []string
	pin                        bool
}

func newFakeEngineCommand(engine, version, short string) *cobra.Command {
	var s fakeSettings
	cmd := &cobra.Command{
		Use:   engine,
		Short: short,
		Example: `  sluice fake sglang --prefill-pool 1024 --decode-pool 8192
  sluice fake sglang --version 0.5.21 --lie prefill:count-one,stale,every=10
  sluice fake vllm --connector mooncake --pairs 2 --control 127.0.0.1:9190
  sluice fake vllm --plain --light`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c, engine) },
	}
	f := cmd.Flags()
	o := &s.options
	f.StringVar(&o.Version, "version", version, "release to play")
	f.StringVar(&o.Model, "model", "recall", "`name` of the model served")
	f.BoolVar(&s.plain, "plain", false, "one worker that is not disaggregated instead of a pair")
	if engine == "vllm" {
		f.StringVar(&s.connector, "connector", "nixl", "nixl or mooncake")
		f.StringVar(&o.SideHost, "side-host", "127.0.0.1", "NIXL: the host that handles name")
		f.IntVar(&o.SidePort, "side-port", 5600, "NIXL: the port that handles name")
		f.DurationVar(&o.Lease, "lease", 30*time.Second, "NIXL: how long a handle is good")
		f.BoolVar(&o.Salted, "salted", false, "each request must carry a cache_salt")
	} else {
		f.IntVar(&o.Ranks, "ranks", 1, "data-parallel ranks")
		f.StringVar(&o.AdminKey, "admin-key", "", "`key` that /abort_request needs")
	}
	f.IntVar(&s.pairs, "pairs", 1, "pairs to run; each further pair's ports count on by 10")
	f.StringVar(&s.prefill, "prefill", "127.0.0.1:9101", "`address` of the first prefill; port 0 is any")
	f.StringVar(&s.bootstrap, "bootstrap", "127.0.0.1:9102", "`address` of the first prefill's bootstrap server")
	f.StringVar(&s.decode, "decode", "127.0.0.1:9103", "`address` of the first decode, or of the plain worker")
	f.IntVar(&o.Prefill.Pool, "prefill-pool", 8192, "slots of prefill's pool, in `tokens`")
	f.IntVar(&o.Decode.Pool, "decode-pool", 8192, "slots of decode's pool, in `tokens`")
	f.IntVar(&o.Context, "context", 8192, "context length, in `tokens`")
	f.IntVar(&o.PageSize, "page-size", 0, "slots a page (default 16, vLLM 32)")
	f.StringVar(&o.APIKey, "api-key", "", "`key` that requests must carry")
	f.BoolVar(&o.Light, "light", false, "for load: prompts are only counted, and replies are a fixed text")
	f.DurationVar(&o.FirstWait, "first-wait", 0, "how long a prompt takes to compute")
	f.DurationVar(&o.TokenWait, "token-wait", 0, "how long a token of the reply takes")
	f.DurationVar(&o.Transfer, "transfer", 0, "how long pages take from prefill to decode")
	f.DurationVar(&o.Patience, "patience", 5*time.Second, "how long a leg waits for the other; engines wait 300 s")
	f.StringArrayVar(&s.lies, "lie", nil, "`LEG:KIND` with options after commas (stale, every=N, times=N, wait=DURATION, host=ADDRESS); may be repeated")
	f.StringVar(&s.control, "control", "", "`address` of a control port for tests: GET /state, POST /lie /honest /restart /kill /freeze /thaw")
	f.BoolVar(&s.pin, "pin", false, "print pools and contexts in the fleet.yaml too")
	cmd.SetFlagErrorFunc(usageError)
	return cmd
}

func (s *fakeSettings) run(c *cobra.Command, engine string) error {
	o := s.options
	switch {
	case engine == "sglang" && s.plain:
		o.Engine = fake.PlainSGLang
	case engine == "sglang":
		o.Engine = fake.SGLang
	case s.plain:
		o.Engine = fake.Plain
	case s.connector == "nixl":
		o.Engine = fake.VLLMNixl
	case s.connector == "mooncake":
		o.Engine = fake.VLLMMooncake
	default:
		return exitError{3, fmt.Errorf("--connector must be nixl or mooncake, not %q", s.connector)}
	}
	var lies []fake.Lie
	for _, text := range s.lies {
		l, err := actor.ParseLie(text)
		if err != nil {
			return exitError{3, fmt.Errorf("--lie: %w", err)}
		}
		lies = append(lies, l)
	}
	fleet := fake.NewFleet(printer{})
	var pairs []*fake.Pair
	defer func() {
		for _, p := range pairs {
			p.Close()
		}
	}()
	out := c.OutOrStdout()
	fmt.Fprintln(out, "models:")
	for i := range max(s.pairs, 1) {
		var err error
		for _, a := range []struct{ from, to *string }{{&s.prefill, &o.Prefill.Addr}, {&s.bootstrap, &o.Prefill.Bootstrap}, {&s.decode, &o.Decode.Addr}} {
			if *a.to, err = countOn(*a.from, 10*i); err != nil {
				return exitError{3, err}
			}
		}
		o.Prefill.Name, o.Decode.Name = fmt.Sprintf("prefill-%d", i), fmt.Sprintf("decode-%d", i)
		o.SidePort = s.options.SidePort + i
		p, err := fleet.Pair(o)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
		for _, l := range lies {
			p.Tell(l)
		}
		fmt.Fprint(out, p.YAML(s.pin))
	}
	if s.control != "" {
		ln, err := net.Listen("tcp", s.control)
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: fake.Control(fleet, pairs)}
		defer srv.Close()
		go srv.Serve(ln)
		fmt.Fprintf(out, "# control: http://%s\n", ln.Addr())
	}
	<-c.Context().Done()
	if n := len(fleet.Violations()); n > 0 {
		return exitError{1, fmt.Errorf("%d requests broke a rule", n)}
	}
	return nil
}

// printer reports violations as they come.
type printer struct{}

func (printer) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// countOn adds to an address's port; 0 stays 0.
func countOn(addr string, n int) (string, error) {
	host, port, err := net.SplitHostPort(strings.TrimSpace(addr))
	if err != nil {
		return "", err
	}
	k, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("%s: a port is a number", addr)
	}
	if k > 0 {
		k += n
	}
	return net.JoinHostPort(host, strconv.Itoa(k)), nil
}
