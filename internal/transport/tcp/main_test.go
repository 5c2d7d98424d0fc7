package tcp

import (
	"testing"

	"go.uber.org/goleak"
)

// Every test closes what it opens, so nothing may be left running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
