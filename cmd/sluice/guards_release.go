//go:build !unsafe_guards

package main

import "github.com/spf13/pflag"

// guardSettings is empty in the release build: it has no switch that takes a guard out.
type guardSettings struct{}

func (*guardSettings) register(*pflag.FlagSet) {}
func (*guardSettings) apply(...string) error   { return nil }
