package keyring

import (
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/wire"
)

var roles = map[string]wire.Role{"gateway": wire.RoleGateway, "prefill": wire.RolePrefill, "decode": wire.RoleDecode}

// ParseNode reads "name=role", or a name alone that is a role or begins with one and a dash ("prefill", "prefill-2").
func ParseNode(s string) (Node, error) {
	name, role, found := strings.Cut(s, "=")
	if !found {
		role, _, _ = strings.Cut(name, "-")
	}
	r, ok := roles[role]
	if !ok {
		return Node{}, fmt.Errorf("keyring: %q has no role: write NAME=gateway, NAME=prefill or NAME=decode", s)
	}
	n := Node{name, r}
	return n, n.validate()
}

func (n Node) validate() error {
	if n.Role < wire.RoleGateway || n.Role > wire.RoleDecode {
		return fmt.Errorf("keyring: node %q has no role", n.Name)
	}
	return validName(n.Name)
}

// validName keeps names to what is safe as a file name, in a log and as a field of fleet.pub.
func validName(s string) error {
	if s == "" || len(s) > wire.MaxName {
		return fmt.Errorf("keyring: a node name of %d bytes: 1 to %d", len(s), wire.MaxName)
	}
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", rune(c))) {
			return fmt.Errorf("keyring: node name %q: small letters, digits and inner . _ - only", s)
		}
	}
	return nil
}
