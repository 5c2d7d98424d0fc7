package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/mac"
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
		v += guard.Mark + " (built with unsafe_guards: guards can be taken out)"
	}
	return v
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the platform and the paths that the kernels and MACs take on this machine",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "sluice %s %s/%s %s, kernels %s, MACs %s\n", versionString(), runtime.GOOS, runtime.GOARCH, runtime.Version(), kernel.Path(), mac.Path())
			return err
		},
	}
}
