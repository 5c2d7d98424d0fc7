package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

// userTimeoutOption sets TCP_USER_TIMEOUT (RFC 5482, tcp(7)): how long sent data may stay unacknowledged, or unsent for want of window.
func userTimeoutOption(fd uintptr, d time.Duration) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}
