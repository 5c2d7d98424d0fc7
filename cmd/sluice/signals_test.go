package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestASignalIsNamed: a command that was ended from outside says so, and not only that its context was canceled.
func TestASignalIsNamed(t *testing.T) {
	ctx, stop := signals(context.Background())
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	err := causeOf(ctx, fmt.Errorf("soak: %w", ctx.Err()))
	if !strings.Contains(err.Error(), "signal: terminated") || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	other := errors.New("other")
	if causeOf(ctx, other) != other || causeOf(t.Context(), context.Canceled) != context.Canceled {
		t.Error("what no signal ended is said to be ended by one")
	}
}
