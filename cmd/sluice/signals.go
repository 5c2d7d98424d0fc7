package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// onHangup calls do at each SIGHUP until stop is called.
func onHangup(do func()) (stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	go func() {
		for range ch {
			do()
		}
	}()
	return func() { signal.Stop(ch); close(ch) }
}

// signals returns a context that ends at the first SIGINT or SIGTERM: commands drain then. A second one ends the
// process at once. The context's cause names the signal.
func signals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		s, ok := <-ch
		if !ok {
			return
		}
		cancel(errSignal{s})
		if _, ok := <-ch; ok {
			os.Exit(130)
		}
	}()
	return ctx, func() { signal.Stop(ch); close(ch); cancel(nil) }
}

// errSignal is why a command was ended from outside: without it "context canceled" would be all that it says.
type errSignal struct{ os.Signal }

func (s errSignal) Error() string { return "interrupted (" + s.Signal.String() + ")" }

// exitCode is the one that a shell gives a process that the signal ended: 130 for SIGINT, 143 for SIGTERM.
func (s errSignal) exitCode() int {
	n, _ := s.Signal.(syscall.Signal)
	return 128 + int(n)
}

// causeOf adds the signal that ended a command to what the command says of its end, unless that names it.
func causeOf(ctx context.Context, err error) error {
	var s errSignal
	if errors.As(err, &s) {
		return err
	}
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &s) {
		return fmt.Errorf("%w: %w", s, err)
	}
	return err
}
