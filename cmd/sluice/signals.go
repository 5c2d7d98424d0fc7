package main

import (
	"context"
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
// process at once.
func signals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-ch; !ok {
			return
		}
		cancel()
		if _, ok := <-ch; ok {
			os.Exit(130)
		}
	}()
	return ctx, func() { signal.Stop(ch); close(ch); cancel() }
}
