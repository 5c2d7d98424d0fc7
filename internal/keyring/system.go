package keyring

import (
	"errors"
	"os"
	"syscall"

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

// owner is the user id that owns a file, or this process's own where the system does not say.
func owner(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return os.Geteuid()
}
