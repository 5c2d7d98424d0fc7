package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	fleetFile  = "fleet.pub"
	keySuffix  = ".key"
	lockFile   = ".lock"
	maxKeyFile = 16 << 10
	pemType    = "PRIVATE KEY" // PKCS#8, RFC 5958
)

// Create makes a directory of keys: NAME.key (mode 0600) for each node and fleet.pub. A directory that has a fleet.pub already is
// fs.ErrExist: keys are never written over. Two processes that create the same directory at once: one does, the other gets
// fs.ErrExist.
func Create(dir string, nodes ...Node) error {
	return locked(dir, func() error {
		if _, err := os.Lstat(filepath.Join(dir, fleetFile)); err == nil {
			return fmt.Errorf("keyring: %s: %w: remove it first if the fleet's keys are to be replaced", filepath.Join(dir, fleetFile), fs.ErrExist)
		}
		return extend(dir, nil, nodes)
	})
}

// Add adds nodes to a directory that Create made. A name that is there already is fs.ErrExist.
func Add(dir string, nodes ...Node) error {
	return locked(dir, func() error {
		members, _, err := readFleet(filepath.Join(dir, fleetFile))
		if err != nil {
			return err
		}
		return extend(dir, members, nodes)
	})
}

// extend writes the keys of new nodes, then fleet.pub with all of them, the latter in one step: a reader sees the old file or the new one,
// never half. It runs under the directory's lock.
func extend(dir string, members []member, nodes []Node) error {
	names := map[string]bool{}
	for _, m := range members {
		names[m.Name] = true
	}
	for _, n := range nodes { // all of them before any key is made
		if err := n.validate(); err != nil {
			return err
		}
		if names[n.Name] {
			return fmt.Errorf("keyring: %s: %w", n.Name, fs.ErrExist)
		}
		names[n.Name] = true
	}
	for _, n := range nodes {
		private, err := ownKey(filepath.Join(dir, n.Name+keySuffix))
		if err != nil {
			return err
		}
		members = append(members, member{n, private.Public().(ed25519.PublicKey)})
	}
	return replace(filepath.Join(dir, fleetFile), formatFleet(members), 0o644)
}

// ownKey makes a key file, or takes the one that is there: a Create or Add that was killed before it wrote fleet.pub is picked up where it
// stopped, and no key is ever written over.
func ownKey(path string) (ed25519.PrivateKey, error) {
	private, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return private, err
	}
	_, private, err = ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	return private, replace(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), 0o600)
}

// replace writes a file beside path and moves it there.
func replace(path string, b []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone after the rename
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// Load reads the identity of a node and its fleet from a directory that Create made, or from one that holds no more than the node's own key
// and a copy of fleet.pub.
func Load(dir, name string) (Identity, *Fleet, error) {
	if err := validName(name); err != nil {
		return Identity{}, nil, err
	}
	f := &Fleet{path: filepath.Join(dir, fleetFile)}
	if err := f.Reload(); err != nil {
		return Identity{}, nil, err
	}
	n, pub, ok := f.Lookup(name)
	if !ok {
		return Identity{}, nil, fmt.Errorf("keyring: %s names no %q; it has %s", f.path, name, strings.Join(f.Names(), ", "))
	}
	path := filepath.Join(dir, name+keySuffix)
	private, err := readKey(path)
	if err != nil {
		return Identity{}, nil, err
	}
	if !pub.Equal(private.Public()) {
		return Identity{}, nil, fmt.Errorf("%w: %s is not the key that %s has for %s", ErrFile, path, f.path, name)
	}
	id, err := identity(n, private)
	return id, f, err
}

func readKey(path string) (ed25519.PrivateKey, error) {
	forbidden := func(info os.FileInfo) os.FileMode { return forbiddenBits(owner(info), os.Geteuid()) }
	b, _, err := readChecked(path, maxKeyFile, forbidden, "600")
	if err != nil {
		return nil, err
	}
	return parseKey(path, b)
}

// forbiddenBits of a key file: nothing for anyone but its owner; where root owns it and hands it to this process through a group, that
// group may read it (Kubernetes mounts secrets so for a pod with fsGroup).
func forbiddenBits(owner, self int) os.FileMode {
	if owner == 0 && self != 0 {
		return 0o037
	}
	return 0o077
}

// parseKey takes one PEM block of an Ed25519 key and nothing else. No byte of it is ever in an error.
func parseKey(path string, b []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemType || len(block.Headers) != 0 {
		return nil, fmt.Errorf("%w: %s does not begin with a PEM block %q", ErrFile, path, pemType)
	}
	if len(strings.TrimSpace(string(rest))) != 0 {
		return nil, fmt.Errorf("%w: %s has something after its key", ErrFile, path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not a PKCS#8 key", ErrFile, path)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%w: %s holds a %T, not an Ed25519 key", ErrFile, path, key)
	}
	return private, nil
}

// DefaultDir is where a fleet that never leaves this machine keeps its keys: $SLUICE_KEYS, else sluice/keys under $XDG_STATE_HOME
// or ~/.local/state.
func DefaultDir() (string, error) {
	if dir := os.Getenv("SLUICE_KEYS"); dir != "" {
		return dir, nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // the XDG base directory specification: a relative path is to be ignored
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("keyring: no place for keys: set SLUICE_KEYS (%w)", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "sluice", "keys"), nil
}

// Default loads a node from DefaultDir, and makes the directory (mode 0700) and the node first where they are missing, so that processes on
// one machine find each other without being told. It is for listeners on loopback; a fleet over a network has keys made on purpose
// (Create), and callers refuse Default there. Any number of processes may start at once.
func Default(n Node) (Identity, *Fleet, error) {
	dir, err := DefaultDir()
	if err != nil {
		return Identity{}, nil, err
	}
	if err := ensure(dir, n); err != nil {
		return Identity{}, nil, err
	}
	id, fleet, err := Load(dir, n.Name)
	if err == nil && id.Role != n.Role {
		err = fmt.Errorf("keyring: %s is a %s in %s, not a %s: use another name", n.Name, id.Role, dir, n.Role)
	}
	return id, fleet, err
}

func ensure(dir string, n Node) error {
	standard := []Node{{"gateway", roles["gateway"]}, {"prefill", roles["prefill"]}, {"decode", roles["decode"]}}
	if err := Create(dir, standard...); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if members, _, err := readFleet(filepath.Join(dir, fleetFile)); err != nil {
		return err
	} else {
		for _, m := range members {
			if m.Name == n.Name {
				return nil
			}
		}
	}
	if err := Add(dir, n); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// locked runs f alone among the processes that use dir, which it makes if it is missing.
func locked(dir string, f func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // closing gives the lock back
	if err := flock(lock); err != nil {
		return fmt.Errorf("keyring: %s: %w", lock.Name(), err)
	}
	return f()
}
