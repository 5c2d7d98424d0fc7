//go:build unix

package h1

import (
	"net"

	"golang.org/x/sys/unix"
)

// quiet reports whether a connection that waits has nothing to read: no end, no error, no bytes that nobody asked for.
func (c *conn) quiet() bool {
	s, ok := c.raw.(*net.TCPConn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	still := false
	err = raw.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p[:], 0)
		still = err == nil && n == 0
	})
	return err == nil && still
}
