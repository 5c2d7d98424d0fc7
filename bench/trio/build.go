// Package trio runs a fleet as people do, gateway, prefill and decode as three processes, and looks at it from outside: replies with
// the time of each token, processor time, resident memory. Benchmarks and checks use it; tests of the commands have their own.
package trio

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Flags are what the Makefile builds with, so that sizes and speeds are those of what people run.
var Flags = []string{"-trimpath", "-ldflags", "-s -w"}

const command = "github.com/sluicekv/sluice/cmd/sluice"

// Build builds the release binary into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return build(ctx, filepath.Join(dir, "sluice"))
}

// BuildUnsafe builds the binary whose guards can be taken out.
func BuildUnsafe(ctx context.Context, dir string) (string, error) {
	return build(ctx, filepath.Join(dir, "sluice-unsafe"), "-tags", "unsafe_guards")
}

func build(ctx context.Context, out string, more ...string) (string, error) {
	args := append([]string{"build", "-o", out}, Flags...)
	cmd := exec.CommandContext(ctx, "go", append(append(args, more...), command)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, b)
	}
	return out, nil
}
