package keyring

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// maxFleetFile bounds fleet.pub: a thousand nodes need about 100 KiB.
const maxFleetFile = 8 << 20

// ErrFile is an error of a key file or of fleet.pub: what is in it, or who may read it.
var ErrFile = errors.New("keyring: unusable file")

type member struct {
	Node
	pub ed25519.PublicKey
}

// parseFleet reads fleet.pub: a node a line, "name role base64key", empty lines and lines that begin with # left out. Anything else is an
// error that names its line, as are a name or a key that comes twice.
func parseFleet(path string, b []byte) ([]member, error) {
	var members []member
	names, keys := map[string]int{}, map[string]int{}
	line := 0
	for text := range strings.Lines(string(b)) {
		line++
		fail := func(format string, args ...any) ([]member, error) {
			return nil, fmt.Errorf("%w: %s:%d: %s", ErrFile, path, line, fmt.Sprintf(format, args...))
		}
		if !strings.HasSuffix(text, "\n") {
			return fail("the last line does not end: the file was cut")
		}
		text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
		if !utf8.ValidString(text) {
			return fail("not UTF-8")
		}
		if strings.Trim(text, " \t") == "" || text[0] == '#' {
			continue
		}
		fields := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
		if len(fields) != 3 {
			return fail("%d fields, not 3: name role key", len(fields))
		}
		role, ok := roles[fields[1]]
		if !ok {
			return fail("role %q is not gateway, prefill or decode", fields[1])
		}
		m := member{Node: Node{fields[0], role}}
		if err := validName(m.Name); err != nil {
			return fail("%v", err)
		}
		pub, err := base64.StdEncoding.Strict().DecodeString(fields[2])
		if err != nil || len(pub) != ed25519.PublicKeySize || bytes.Equal(pub, make([]byte, len(pub))) {
			return fail("the key of %s is not %d bytes in base64", m.Name, ed25519.PublicKeySize)
		}
		m.pub = pub
		if at, ok := names[m.Name]; ok {
			return fail("%s is also in line %d", m.Name, at)
		}
		if at, ok := keys[string(pub)]; ok {
			return fail("the key of %s is also in line %d", m.Name, at)
		}
		names[m.Name], keys[string(pub)] = line, line
		members = append(members, m)
	}
	return members, nil
}

// formatFleet writes what parseFleet reads.
func formatFleet(members []member) []byte {
	b := []byte("# name role key (Ed25519, base64). Public: every node of the fleet has a copy.\n")
	for _, m := range members {
		b = fmt.Appendf(b, "%s %s %s\n", m.Name, m.Role, base64.StdEncoding.EncodeToString(m.pub))
	}
	return b
}

// readFleet reads fleet.pub and refuses one that others may write: whoever writes it joins the fleet.
func readFleet(path string) ([]member, os.FileInfo, error) {
	forbidden := func(os.FileInfo) os.FileMode { return 0o022 }
	b, info, err := readChecked(path, maxFleetFile, forbidden, "go-w")
	if err != nil {
		return nil, nil, err
	}
	members, err := parseFleet(path, b)
	return members, info, err
}

// readChecked reads a regular file of at most limit bytes that has none of the forbidden permission bits.
func readChecked(path string, limit int64, forbidden func(os.FileInfo) os.FileMode, chmod string) ([]byte, os.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%w: %s is not a regular file", ErrFile, path)
	case info.Mode().Perm()&forbidden(info) != 0:
		return nil, nil, fmt.Errorf("%w: %s has mode %#o, so others can get at it: chmod %s %s", ErrFile, path, info.Mode().Perm(), chmod, path)
	case info.Size() > limit:
		return nil, nil, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrFile, path, info.Size(), limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w: %s has more than %d bytes", ErrFile, path, limit)
	}
	return b, info, err
}
