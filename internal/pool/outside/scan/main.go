// Command scan says what is left in a process's arenas, read from outside the process:
//
//	go run ./internal/pool/outside/scan PID ROLE...
//
// It prints "ROLE BYTES NONZERO" a line, and exits 1 when any byte is not zero, 2 when an arena could not be read.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/sluicekv/sluice/internal/pool/outside"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) (exit int) {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: scan PID ROLE...")
		return 2
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		fmt.Fprintf(os.Stderr, "scan: %q is no process id\n", args[0])
		return 2
	}
	for _, role := range args[1:] {
		size, nonzero, err := outside.Scan(pid, role)
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, "scan:", err)
			return 2
		case nonzero > 0:
			exit = 1
		}
		fmt.Println(role, size, nonzero)
	}
	return exit
}
