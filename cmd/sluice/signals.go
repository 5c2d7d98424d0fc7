package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

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
