//go:build unsafe_guards

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/guard"
)

// guardSettings takes guards out, in this build alone.
type guardSettings struct{ disable string }

func (s *guardSettings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.disable, "unsafe-disable", "", "UNSAFE: take these `guards` out: "+strings.Join(guard.Names(), ", ")+", or all")
}

// apply says UNSAFE, refuses every address but loopback, and takes the guards out.
func (s *guardSettings) apply(addrs ...string) error {
	g, err := guard.Parse(s.disable)
	if err != nil {
		return exitError{3, fmt.Errorf("--unsafe-disable: %w", err)}
	}
	for _, a := range addrs {
		if a != "" && !onLoopback(a) {
			return exitError{3, fmt.Errorf("UNSAFE build: it listens on loopback only, not on %s", a)}
		}
	}
	guard.Disable(g)
	off := "none"
	if g != 0 {
		off = g.String()
	}
	fmt.Fprintf(os.Stderr, "UNSAFE: this binary was built with unsafe_guards; guards taken out: %s\n", off)
	return nil
}
