//go:build !linux

package tcp

import "time"

// userTimeoutOption does nothing where there is no TCP_USER_TIMEOUT: write deadlines and keep-alive are left.
func userTimeoutOption(uintptr, time.Duration) error { return nil }
