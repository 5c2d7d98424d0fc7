package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// Kinds of key files that hold a key, and not ours alone.
func TestKeysOfOtherKindsAreRefused(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	dir := created(t)
	own, err := os.ReadFile(filepath.Join(dir, "p0.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(own)
	block.Headers = map[string]string{"Proc-Type": "4,ENCRYPTED"}
	for say, b := range map[string][]byte{
		"*ecdsa.PrivateKey, not an Ed25519 key": pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}),
		"does not begin with a PEM block":       pem.EncodeToMemory(block),
	} {
		if key, err := parseKey("x.key", b); key != nil || !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v", say, err)
		}
	}
	if _, err := parseKey("x.key", append(own, " \n\t"...)); err != nil {
		t.Errorf("blanks behind the key: %v", err)
	}
}

// A file that grows while it is read is refused like one that was too long before.
func TestFilesOfExactlyTheirBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	none := func(os.FileInfo) os.FileMode { return 0 }
	for size, ok := range map[int]bool{99: true, 100: true, 101: false} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		b, info, err := readChecked(path, 100, none, "600")
		if (err == nil) != ok || ok && (len(b) != size || info.Size() != int64(size)) || !ok && !errors.Is(err, ErrFile) {
			t.Errorf("%d bytes: %d, %v", size, len(b), err)
		}
	}
	if b, _, err := readChecked("/proc/self/status", 100, none, "600"); !errors.Is(err, ErrFile) { // its size is said to be 0
		t.Errorf("a file that has more than it says: %d bytes, %v", len(b), err)
	}
}

func TestNamesOfExactlyTheirBound(t *testing.T) {
	long := strings.Repeat("n", wire.MaxName)
	if n, err := ParseNode(long + "=decode"); err != nil || n.Name != long {
		t.Errorf("%v", err)
	}
	if _, err := ParseNode(long + "n=decode"); err == nil || !strings.Contains(err.Error(), "65 bytes: 1 to 64") {
		t.Errorf("%v", err)
	}
	for _, r := range []wire.Role{0, wire.RoleDecode + 1} {
		if _, err := Generate(Node{"n", r}); err == nil || !strings.Contains(err.Error(), "has no role") {
			t.Errorf("role %d: %v", r, err)
		}
	}
	if _, err := ParseNode("p0=both"); err == nil || !strings.Contains(err.Error(), "write NAME=gateway") {
		t.Errorf("%v", err)
	}
	for name, make := range map[string]func(){
		"a doubled name": func() { Ephemeral(Node{"a", wire.RoleDecode}, Node{"a", wire.RolePrefill}) },
		"a bad name":     func() { Ephemeral(Node{"A", wire.RoleDecode}) },
		"derived, twice": func() { Derived([32]byte{1}, Node{"a", wire.RoleDecode}, Node{"a", wire.RolePrefill}) },
		"derived, bad":   func() { Derived([32]byte{1}, Node{"A", wire.RoleDecode}) },
	} {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || !strings.HasPrefix(s, "keyring: ") || strings.Count(s, "keyring") != 1 {
					t.Errorf("%s: %q", name, s)
				}
			}()
			make()
		}()
	}
}

// Nothing is left behind, and nothing is replaced, when a directory cannot be written to.
func TestADirectoryThatCannotBeWritten(t *testing.T) {
	dir := created(t)
	before := contents(t, dir)
	if err := os.Mkdir(filepath.Join(dir, "p9.key"), 0o700); err != nil { // where the new key should go
		t.Fatal(err)
	}
	if err := Add(dir, Node{"p9", wire.RolePrefill}); !errors.Is(err, ErrFile) {
		t.Errorf("a directory in the key's place: %v", err)
	}
	os.Remove(filepath.Join(dir, "p9.key"))
	if after := contents(t, dir); len(after) != len(before) || after[fleetFile] != before[fleetFile] {
		t.Errorf("%d files before, %d after", len(before), len(after))
	}
	if err := replace(filepath.Join(dir, "no", "such"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such directory: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replace(filepath.Join(dir, "full"), []byte("new"), 0o600); err == nil { // the rename fails
		t.Error("a directory was replaced by a file")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	file := filepath.Join(dir, fleetFile)
	for name, err := range map[string]error{"create": Create(file, Node{"a", wire.RoleDecode}), "add": Add(file, Node{"a", wire.RoleDecode})} {
		if err == nil {
			t.Errorf("%s in a file", name)
		}
	}
	if err := Add(t.TempDir(), Node{"a", wire.RoleDecode}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("add without a fleet: %v", err)
	}
	t.Setenv("SLUICE_KEYS", file)
	if _, _, err := Default(Node{"decode", wire.RoleDecode}); err == nil {
		t.Error("a file as the directory of keys")
	}
	bad := created(t)
	if err := os.WriteFile(filepath.Join(bad, fleetFile), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLUICE_KEYS", bad)
	if _, _, err := Default(Node{"decode", wire.RoleDecode}); !errors.Is(err, ErrFile) {
		t.Errorf("a broken fleet.pub: %v", err)
	}
	t.Setenv("SLUICE_KEYS", "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	if _, _, err := Default(Node{"decode", wire.RoleDecode}); err == nil || !strings.Contains(err.Error(), "set SLUICE_KEYS") {
		t.Errorf("no home: %v", err)
	}
}

// A fleet looks into its file again for what it does not know, and for nothing else; what it cannot read changes nothing.
func TestAFleetReadsItsFileOnlyWhenItMust(t *testing.T) {
	dir := created(t)
	me, fleet, err := Load(dir, "p0")
	if err != nil {
		t.Fatal(err)
	}
	_, strangers := Ephemeral(three...)
	stranger := strangers["d0"].Public()
	path := filepath.Join(dir, fleetFile)
	if fleet.refresh() {
		t.Error("the file that was read is new")
	}
	if _, ok := fleet.node(stranger); ok {
		t.Error("a stranger is known")
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"broken": func() error { return os.WriteFile(path, []byte("x y z\n"), 0o644) },
		"gone":   func() error { return os.Remove(path) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if fleet.refresh() {
			t.Errorf("%s: there is something new", name)
		}
		if _, ok := fleet.Role(stranger); ok {
			t.Errorf("%s: a stranger is known", name)
		}
		if n, ok := fleet.Name(me.Public()); !ok || n != "p0" {
			t.Errorf("%s: p0 is forgotten", name)
		}
		if err := fleet.Reload(); err == nil || len(fleet.Names()) != 3 {
			t.Errorf("%s: %v, %v", name, err, fleet.Names())
		}
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if !fleet.refresh() || fleet.refresh() {
		t.Error("a file that was touched is new, once")
	}
	if err := fleet.Check(stranger, wire.Hello{}); err == nil || !strings.Contains(err.Error(), "is not in the fleet") {
		t.Errorf("a stranger who says nothing of himself: %v", err)
	}
	before, _ := os.ReadDir("/proc/self/fd")
	for range 50 {
		fleet.Reload()
	}
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before)+20 {
		t.Errorf("%d open files, %d after 50 looks", len(before), len(after))
	}
	memory, _ := Ephemeral(three...)
	if memory.refresh() || memory.Reload() != nil || len(memory.Names()) != 3 {
		t.Error("a fleet in memory has nothing to read")
	}
}
