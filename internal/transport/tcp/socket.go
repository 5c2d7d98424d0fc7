package tcp

import (
	"net"
	"syscall"
	"time"
)

// A peer whose machine is gone is noticed by keep-alive probes while the link is silent (keepIdle and three probes) and by
// userTimeout while there is something unacknowledged.
const (
	keepIdle     = 10 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3
	userTimeout  = 30 * time.Second
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}

func dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: keepAlive, Control: setUserTimeout}
}

// listenConfig makes sockets whose options accepted ones inherit. TCP_NODELAY is Go's default on both sides.
func listenConfig() *net.ListenConfig {
	return &net.ListenConfig{KeepAliveConfig: keepAlive, Control: setUserTimeout}
}

func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = userTimeoutOption(fd, userTimeout) }); cerr != nil {
		return cerr
	}
	return err
}
