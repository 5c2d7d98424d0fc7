package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// traceSettings record the transitions of attempts, for sluice drill replay.
type traceSettings struct {
	trace  string
	sample uint64
}

func (s *traceSettings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.trace, "trace", "", "write every transition of the handoff to `FILE`; sluice drill replay checks it against the protocol's model")
	fs.Uint64Var(&s.sample, "trace-sample", 1, "trace whole attempts, one in `N`")
}

// recorder opens the file. Without one the recorder is nil, which is off and costs nothing.
func (s *traceSettings) recorder() (trace.Recorder, func(), error) {
	if s.trace == "" {
		return nil, func() {}, nil
	}
	if s.sample == 0 {
		return nil, nil, exitError{3, fmt.Errorf("--trace-sample 0: one in how many?")}
	}
	f, err := os.OpenFile(s.trace, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	file := trace.NewFile(f, s.sample)
	end := func() {
		if err := file.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "sluice: the trace is not whole:", err)
		}
	}
	if s.sample == 1 {
		return file, end, nil
	}
	sampler := trace.NewSampler(file, s.sample)
	return sampler, func() { sampler.Stop(); end() }, nil
}
