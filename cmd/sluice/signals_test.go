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
	if !strings.Contains(err.Error(), "interrupted (terminated)") || !errors.Is(err, context.Canceled) || exitCode(err) != 143 {
		t.Error(err, exitCode(err))
	}
	if said := fmt.Errorf("%w after 3 of 4", context.Cause(ctx)); causeOf(ctx, said) != said || exitCode(said) != 143 {
		t.Errorf("%v, %d", causeOf(ctx, said), exitCode(said))
	}
	if code := exitCode(errSignal{syscall.SIGINT}); code != 130 {
		t.Error(code)
	}
	if err := causeOf(ctx, exitError{1, context.Canceled}); exitCode(err) != 1 { // what it found wrong counts more than that it was ended
		t.Error(err, exitCode(err))
	}
	other := errors.New("other")
	if causeOf(ctx, other) != other || causeOf(t.Context(), context.Canceled) != context.Canceled {
		t.Error("what no signal ended is said to be ended by one")
	}
}
