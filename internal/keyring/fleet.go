package keyring

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/sluicekv/sluice/internal/wire"
)

// Fleet is the public keys of a fleet: who exists, by which key, in which role. It is safe for concurrent use.
//
// A fleet that was loaded from a file looks into the file once more when it is asked about a key or a name it does not know and
// the file has changed since: nodes added while a process runs are found. A node that was taken out is forgotten at the next such
// look or Reload; connections that it has stay until they end.
type Fleet struct {
	path string // of fleet.pub; empty: in memory only

	mu     sync.RWMutex
	byKey  map[string]Node
	byName map[string]ed25519.PublicKey
	seen   os.FileInfo
}

func fleetOf(members []member) *Fleet {
	f := &Fleet{}
	f.set(members)
	return f
}

func (f *Fleet) set(members []member) {
	f.byKey, f.byName = make(map[string]Node, len(members)), make(map[string]ed25519.PublicKey, len(members))
	for _, m := range members {
		f.byKey[string(m.pub)], f.byName[m.Name] = m.Node, m.pub
	}
}

// Reload reads the fleet's file again. On an error the fleet stays as it was. A fleet in memory has nothing to reload.
func (f *Fleet) Reload() error {
	if f.path == "" {
		return nil
	}
	members, info, err := readFleet(f.path)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(members)
	f.seen = info
	return nil
}

// refresh reloads if the file is not the one that was read, and reports whether there is something new to look at.
func (f *Fleet) refresh() bool {
	if f.path == "" {
		return false
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	f.mu.RLock()
	same := f.seen != nil && os.SameFile(info, f.seen) && info.Size() == f.seen.Size() && info.ModTime().Equal(f.seen.ModTime())
	f.mu.RUnlock()
	return !same && f.Reload() == nil
}

func (f *Fleet) node(pub ed25519.PublicKey) (Node, bool) {
	look := func() (Node, bool) {
		f.mu.RLock()
		defer f.mu.RUnlock()
		n, ok := f.byKey[string(pub)]
		return n, ok
	}
	n, ok := look()
	if !ok && f.refresh() {
		return look()
	}
	return n, ok
}

// Gateway reports whether pub may sign plans (admission.Keyring).
func (f *Fleet) Gateway(pub ed25519.PublicKey) bool {
	n, ok := f.node(pub)
	return ok && n.Role == wire.RoleGateway
}

// Role of a key.
func (f *Fleet) Role(pub ed25519.PublicKey) (wire.Role, bool) {
	n, ok := f.node(pub)
	return n.Role, ok
}

// Name of a key.
func (f *Fleet) Name(pub ed25519.PublicKey) (string, bool) {
	n, ok := f.node(pub)
	return n.Name, ok
}

// Lookup finds a node by name.
func (f *Fleet) Lookup(name string) (Node, ed25519.PublicKey, bool) {
	look := func() (Node, ed25519.PublicKey, bool) {
		f.mu.RLock()
		defer f.mu.RUnlock()
		pub, ok := f.byName[name]
		return f.byKey[string(pub)], pub, ok
	}
	n, pub, ok := look()
	if !ok && f.refresh() {
		return look()
	}
	return n, pub, ok
}

// Names of all nodes, sorted.
func (f *Fleet) Names() []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	names := make([]string, 0, len(f.byName))
	for n := range f.byName {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Trust accepts the keys of nodes with one of the roles.
func (f *Fleet) Trust(roles ...wire.Role) func(ed25519.PublicKey) error {
	return func(pub ed25519.PublicKey) error {
		n, ok := f.node(pub)
		if !ok {
			return fmt.Errorf("%w: %s is not in the fleet", ErrUntrusted, Short(pub))
		}
		if !slices.Contains(roles, n.Role) {
			return fmt.Errorf("%w: %s is %s, a %s", ErrUntrusted, Short(pub), n.Name, n.Role)
		}
		return nil
	}
}

// Check holds a hello against the key it came with: a node may not speak under another's name or role.
func (f *Fleet) Check(pub ed25519.PublicKey, h wire.Hello) error {
	n, ok := f.node(pub)
	switch {
	case !ok:
		return fmt.Errorf("%w: %s is not in the fleet", ErrUntrusted, Short(pub))
	case n.Name != h.Name || n.Role != h.Role:
		return fmt.Errorf("%w: the key of %s (%s) says it is %s (%s)", ErrUntrusted, n.Name, n.Role, h.Name, h.Role)
	}
	return nil
}

// Ephemeral makes identities and their fleet in memory: for one process that is a whole fleet. It panics on a bad or doubled name.
func Ephemeral(nodes ...Node) (*Fleet, map[string]Identity) {
	ids := make(map[string]Identity, len(nodes))
	var members []member
	for _, n := range nodes {
		id, err := Generate(n)
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
