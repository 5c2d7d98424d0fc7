package tcp

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// checkSocket reads back what the kernel was told.
func checkSocket(t *testing.T, name string, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for _, o := range []struct {
			what             string
			level, opt, want int
		}{
			{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepIdle.Seconds())},
			{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepInterval.Seconds())},
			{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount},
			{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())},
		} {
			if got, err := unix.GetsockoptInt(int(fd), o.level, o.opt); err != nil || got != o.want {
				t.Errorf("%s: %s is %d, not %d (%v)", name, o.what, got, o.want, err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
