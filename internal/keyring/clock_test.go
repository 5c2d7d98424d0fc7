package keyring

import (
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// TestTheWallClockMayJump: two nodes of which one believes that it is another year still know each other, and still refuse a stranger.
func TestTheWallClockMayJump(t *testing.T) {
	fleet, ids := Ephemeral(Node{"gateway", wire.RoleGateway}, Node{"decode", wire.RoleDecode})
	stranger := id(t, "gateway", wire.RoleGateway)
	for _, year := range []int{1971, 1999, 2042, 9000} {
		at := func() time.Time { return time.Date(year, 2, 29, 0, 0, 0, 0, time.UTC) }
		client, server := ids["gateway"].TLS("x", fleet.Trust(wire.RoleDecode)), ids["decode"].TLS("x", fleet.Trust(wire.RoleGateway))
		for range 2 {
			client.Time = at
			if c, s := meet(t, client, server); c != nil || s != nil {
				t.Errorf("in %d: %v, %v", year, c, s)
			}
			client, server = ids["gateway"].TLS("x", fleet.Trust(wire.RoleDecode)), ids["decode"].TLS("x", fleet.Trust(wire.RoleGateway))
			server.Time = at
		}
		if _, s := meet(t, stranger.TLS("x", fleet.Trust(wire.RoleDecode)), server); s == nil {
			t.Errorf("in %d a stranger is let in", year)
		}
	}
}
