package keyring

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// flock waits for the exclusive lock of an open file. The kernel gives it back when the process dies.
func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
