package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/guard"
)

// version is set by the Makefile from git describe; a plain go build has the module's.
var version = ""

func versionString() string {
	v := version
	if v == "" {
		v = "dev"
		if info, ok := debug.ReadBuildInfo(); ok {
			if m := info.Main.Version; m != "" && m != "(devel)" {
				v = m
			}
		}
	}
	if guard.Unsafe {
		v += "+UNSAFE (built with unsafe_guards: guards can be taken out)"
	}
	return v
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the platform and the numeric path of the kernels",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "sluice %s %s/%s %s\n", versionString(), runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}
