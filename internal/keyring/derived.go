package keyring

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Derived makes identities and their fleet from a seed: for processes of one drill, which are told the seed and so agree on each other's
// keys without a file. Keys come out of a one-way function under a name of its own, so that no seed makes a process hold the key
// of a fleet that was made in any other way: a drill cannot be pointed at one. It panics on a bad or doubled name.
func Derived(seed [32]byte, nodes ...Node) (*Fleet, map[string]Identity) {
	ids := make(map[string]Identity, len(nodes))
	var members []member
	for _, n := range nodes {
		h := hmac.New(sha256.New, seed[:])
		fmt.Fprintf(h, "sluice drill key v1\x00%d\x00%s", n.Role, n.Name)
		id, err := identity(n, ed25519.NewKeyFromSeed(h.Sum(nil)))
		if err != nil {
			panic("keyring: " + strings.TrimPrefix(err.Error(), "keyring: "))
		}
		if _, ok := ids[n.Name]; ok {
			panic(fmt.Sprintf("keyring: two nodes are named %s", n.Name))
		}
		ids[n.Name] = id
		members = append(members, member{n, id.Public()})
	}
	return fleetOf(members), ids
}
