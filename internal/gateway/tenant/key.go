package tenant

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Prefix of keys that are made here, so that scanners for secrets find one that was left somewhere.
const Prefix = "sk-sluice-"

// NewKey makes a key of 256 random bits. That much cannot be guessed from its SHA-256, so the file needs no slower hash; for words that
// people choose it would.
func NewKey() string {
	var b [32]byte
	rand.Read(b[:])
	return Prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Line is the line of a key in the file. Options are as the file has them.
func Line(id, key string, options ...string) string {
	h := sha256.Sum256([]byte(key))
	return strings.Join(append([]string{id, hex.EncodeToString(h[:])}, options...), " ") + "\n"
}

// Add appends a line to the file at path, made if it is not there and readable by its owner alone. A line with which the file would
// not be good, or whose id another key has, changes nothing.
func Add(path, line string) error {
	return edit(path, func(before []byte) ([]byte, error) {
		if n := len(before); n > 0 && before[n-1] != '\n' {
			before = append(before, '\n')
		}
		id, _, _ := strings.Cut(line, " ")
		if k, err := Read(bytes.NewReader(before), nil); err == nil {
			for _, e := range k.byHash {
				if e.id == id {
					return nil, fmt.Errorf("tenant: %s has a key %s; to replace it, add another id with tenant=%s, and remove %s once nobody uses it", path, id, e.of.name, id)
				}
			}
		}
		return append(before, line...), nil
	})
}

// Remove takes a key's lines out of the file.
func Remove(path, id string) error {
	return edit(path, func(before []byte) (after []byte, err error) {
		found := false
		for l := range bytes.Lines(before) {
			if f := bytes.Fields(l); len(f) > 0 && string(f[0]) == id {
				found = true
				continue
			}
			after = append(after, l...)
		}
		if !found {
			return nil, fmt.Errorf("tenant: %s has no key %s", path, id)
		}
		return after, nil
	})
}

// edit replaces the file whole, or not at all: a gateway that reads meanwhile sees the one or the other.
func edit(path string, change func([]byte) ([]byte, error)) error {
	mode := fs.FileMode(0o600)
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("tenant: %w", err)
	default:
		if st, err := os.Stat(path); err == nil {
			mode = st.Mode().Perm()
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
	}
	after, err := change(before)
	if err != nil {
		return err
	}
	if _, err := Read(bytes.NewReader(after), nil); err != nil {
		return fmt.Errorf("%w in %s as it would be; nothing is changed", err, path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".keys-*")
	if err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(after)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	return nil
}
