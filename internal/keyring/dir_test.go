package keyring

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/wire"
)

var _ admission.Keyring = (*Fleet)(nil)

var three = []Node{{"gw", wire.RoleGateway}, {"p0", wire.RolePrefill}, {"d0", wire.RoleDecode}}

func created(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if err := Create(dir, three...); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCreateThenLoad(t *testing.T) {
	dir := created(t)
	for _, n := range three {
		me, fleet, err := Load(dir, n.Name)
		if err != nil {
			t.Fatal(err)
		}
		if me.Node != n {
			t.Errorf("loaded %+v, want %+v", me.Node, n)
		}
		if fleet.Gateway(me.Public()) != (n.Role == wire.RoleGateway) {
			t.Errorf("%s: Gateway is wrong", n.Name)
		}
		role, _ := fleet.Role(me.Public())
		name, _ := fleet.Name(me.Public())
		found, pub, ok := fleet.Lookup(n.Name)
		if role != n.Role || name != n.Name || found != n || !ok || !pub.Equal(me.Public()) {
			t.Errorf("%s: role %v, name %q, lookup %+v", n.Name, role, name, found)
		}
		again, _, err := Load(dir, n.Name)
		if err != nil || !again.Public().Equal(me.Public()) {
			t.Errorf("%s has another key the second time: %v", n.Name, err)
		}
	}
	for path, mode := range map[string]fs.FileMode{"": 0o700, "gw.key": 0o600, "p0.key": 0o600, "d0.key": 0o600, "fleet.pub": 0o644} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v", path, info.Mode().Perm(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCreateAndAddWriteNoKeyOver(t *testing.T) {
	dir := created(t)
	before := contents(t, dir)
	if err := Create(dir, three...); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create again: %v", err)
	}
	if err := Add(dir, Node{"p0", wire.RolePrefill}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Add of a node that is there: %v", err)
	}
	if err := Add(dir, Node{"p7", wire.RolePrefill}, Node{"d0", wire.RoleDecode}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Add of a new one and one that is there: %v", err)
	}
	if err := Add(dir, Node{"no such role", 9}); err == nil {
		t.Error("Add of a node without a role")
	}
	if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
		t.Errorf("something changed:\n%s", diff)
	}
	if err := Create(filepath.Join(t.TempDir(), "twice"), three[0], three[0]); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create of one name twice: %v", err)
	}
}

// A Create that was killed after it wrote keys, before it wrote fleet.pub, is picked up where it stopped.
func TestCreateIsPickedUpWhereItStopped(t *testing.T) {
	dir := created(t)
	before := contents(t, dir)
	if err := os.Remove(filepath.Join(dir, "fleet.pub")); err != nil {
		t.Fatal(err)
	}
	if err := Create(dir, three...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
		t.Errorf("another fleet came of it:\n%s", diff)
	}
}

func contents(t testing.TB, dir string) map[string]string {
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

func TestAddedNodesAreFoundByRunningFleets(t *testing.T) {
	dir := created(t)
	_, running, err := Load(dir, "gw")
	if err != nil {
		t.Fatal(err)
	}
	p1 := Node{"p1", wire.RolePrefill}
	if _, _, ok := running.Lookup("p1"); ok {
		t.Fatal("found before it was added")
	}
	if err := Add(dir, p1); err != nil {
		t.Fatal(err)
	}
	me, _, err := Load(dir, "p1")
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Trust(wire.RolePrefill)(me.Public()); err != nil {
		t.Errorf("by key: %v", err)
	}
	if n, _, ok := running.Lookup("p1"); !ok || n != p1 {
		t.Errorf("by name: %+v", n)
	}
	// A file that became unreadable changes nothing.
	if err := os.WriteFile(filepath.Join(dir, "fleet.pub"), []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := running.Lookup("p2"); ok {
		t.Error("found in nonsense")
	}
	if _, _, ok := running.Lookup("p1"); !ok || running.Reload() == nil {
		t.Error("nonsense took the fleet's place")
	}
	// Taken out: gone at the next Reload.
	if err := os.WriteFile(filepath.Join(dir, "fleet.pub"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := running.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, ok := running.Role(me.Public()); ok {
		t.Error("still trusted after Reload")
	}
}

func TestKeysThatOthersCanReadAreRefused(t *testing.T) {
	for _, c := range []struct {
		file string
		mode fs.FileMode
		say  string
	}{
		{"p0.key", 0o640, "chmod 600 "}, {"p0.key", 0o604, "chmod 600 "}, {"p0.key", 0o620, "chmod 600 "}, {"p0.key", 0o601, "chmod 600 "},
		{"fleet.pub", 0o664, "chmod go-w "}, {"fleet.pub", 0o646, "chmod go-w "},
	} {
		dir := created(t)
		path := filepath.Join(dir, c.file)
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, _, err := Load(dir, "p0")
		if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.say+path) || !strings.Contains(err.Error(), fmt.Sprintf("%#o", c.mode)) {
			t.Errorf("%s with mode %#o: %v", c.file, c.mode, err)
		}
	}
}

func TestOnlyRootMayHandAKeyToAGroup(t *testing.T) {
	for _, c := range []struct {
		owner, self int
		want        fs.FileMode
	}{{0, 0, 0o077}, {1000, 1000, 0o077}, {1001, 1000, 0o077}, {0, 1000, 0o037}} {
		if got := forbiddenBits(c.owner, c.self); got != c.want {
			t.Errorf("owner %d, self %d: %#o, not %#o", c.owner, c.self, got, c.want)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	secret := func(dir string) []byte { b, _ := os.ReadFile(filepath.Join(dir, "p0.key")); return b }
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		say   string
	}{
		{"another node's key", func(dir string) error {
			b, _ := os.ReadFile(filepath.Join(dir, "d0.key"))
			return os.WriteFile(filepath.Join(dir, "p0.key"), b, 0o600)
		}, "is not the key that"},
		{"no PEM", func(dir string) error { return os.WriteFile(filepath.Join(dir, "p0.key"), []byte("secret\n"), 0o600) }, "does not begin with a PEM block"},
		{"something before", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "p0.key"), bytes.Replace(secret(dir), []byte("PRIVATE KEY"), []byte("EC PRIVATE KEY"), 2), 0o600)
		}, "does not begin with a PEM block"},
		{"something after", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "p0.key"), append(secret(dir), "more"...), 0o600)
		}, "something after its key"},
		{"not PKCS#8", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "p0.key"), []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"), 0o600)
		}, "is not a PKCS#8 key"},
		{"a huge file", func(dir string) error { return os.Truncate(filepath.Join(dir, "p0.key"), 1<<20) }, "at most 16384"},
		{"a directory", func(dir string) error {
			os.Remove(filepath.Join(dir, "p0.key"))
			return os.Mkdir(filepath.Join(dir, "p0.key"), 0o700)
		}, "not a regular file"},
		{"no file", func(dir string) error { return os.Remove(filepath.Join(dir, "p0.key")) }, "no such file"},
		{"a huge fleet", func(dir string) error { return os.Truncate(filepath.Join(dir, "fleet.pub"), maxFleetFile+1) }, "at most 8388608"},
	} {
		dir := created(t)
		key := secret(dir)
		if err := c.spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, _, err := Load(dir, "p0")
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, leak := range []string{"secret\"", "c2VjcmV0", string(key[30:60])} {
			if strings.Contains(err.Error(), leak) {
				t.Errorf("%s: the error shows the file: %v", c.name, err)
			}
		}
	}
	if _, _, err := Load(created(t), "p9"); err == nil || !strings.Contains(err.Error(), "it has d0, gw, p0") {
		t.Errorf("an unknown name: %v", err)
	}
	if _, _, err := Load(created(t), "../p0"); err == nil || !strings.Contains(err.Error(), "small letters") {
		t.Errorf("a path as a name: %v", err)
	}
}

func TestFleetFileErrorsNameTheirLine(t *testing.T) {
	key := func(b byte) string {
		return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, ed25519.PublicKeySize))
	}
	good := "# a fleet\n\ngw gateway " + key(1) + "\r\np0\tprefill  " + key(2) + "\n"
	members, err := parseFleet("f", []byte(good))
	if err != nil || len(members) != 2 || members[1].Node != (Node{"p0", wire.RolePrefill}) || members[1].pub[31] != 2 {
		t.Fatalf("%+v, %v", members, err)
	}
	for _, c := range []struct{ line, say string }{
		{"p1 prefill", "2 fields"},
		{"p1 prefill " + key(3) + " more", "4 fields"},
		{"p1 both " + key(3), `role "both"`},
		{"P1 prefill " + key(3), "small letters"},
		{".p1 prefill " + key(3), "small letters"},
		{"../p1 prefill " + key(3), "small letters"},
		{strings.Repeat("p", 65) + " prefill " + key(3), "65 bytes"},
		{"p1 prefill " + key(3)[:40], "not 32 bytes"},
		{"p1 prefill " + key(3) + "=", "not 32 bytes"},
		{"p1 prefill " + key(3)[:42] + "N=", "not 32 bytes"}, // stray bits behind the last byte: a second spelling of one key
		{"p1 prefill " + key(0), "not 32 bytes"},
		{"p0 prefill " + key(3), "p0 is also in line 4"},
		{"p1 prefill " + key(2), "key of p1 is also in line 4"},
		{"p1 prefill " + key(3) + "\x00", "not 32 bytes"},
		{"p1\xff prefill " + key(3), "not UTF-8"},
		{" # not a comment", "4 fields"},
	} {
		if got, err := parseFleet("f", []byte(good+c.line+"\n")); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "f:5: ") || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%q: %v, %v", c.line, got, err)
		}
	}
	if _, err := parseFleet("f", []byte(strings.TrimSuffix(good, "\n"))); err == nil || !strings.Contains(err.Error(), "f:4: the last line does not end") {
		t.Errorf("a cut file: %v", err)
	}
}

func FuzzParseFleet(f *testing.F) {
	_, ids := Ephemeral(three...)
	var members []member
	for _, n := range three {
		members = append(members, member{n, ids[n.Name].Public()})
	}
	f.Add(formatFleet(members))
	f.Add([]byte("# \n\n gw gateway AAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		members, err := parseFleet("f", b)
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Fatal(err)
			}
			return
		}
		again, err := parseFleet("f", formatFleet(members))
		if err != nil || len(again) != len(members) {
			t.Fatalf("%v, %v", again, err)
		}
		for i := range again {
			if again[i].Node != members[i].Node || !again[i].pub.Equal(members[i].pub) {
				t.Fatalf("%+v became %+v", members[i], again[i])
			}
		}
	})
}

func FuzzParseKey(f *testing.F) {
	dir := f.TempDir()
	if err := Create(dir, three[0]); err != nil {
		f.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(dir, "gw.key"))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if key, err := parseKey("f", b); err == nil && len(key) != ed25519.PrivateKeySize {
			t.Fatal("a key of another size")
		} else if err != nil && !errors.Is(err, ErrFile) {
			t.Fatal(err)
		}
	})
}

func TestTrustAndCheckNameWhatIsWrong(t *testing.T) {
	fleet, ids := Ephemeral(three...)
	_, others := Ephemeral(three...)
	if err := fleet.Trust(wire.RoleGateway, wire.RolePrefill)(ids["p0"].Public()); err != nil {
		t.Error(err)
	}
	if err := fleet.Trust(wire.RoleGateway)(ids["p0"].Public()); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "is p0, a prefill") {
		t.Errorf("another role: %v", err)
	}
	if err := fleet.Trust(wire.RolePrefill)(others["p0"].Public()); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "not in the fleet") {
		t.Errorf("another fleet: %v", err)
	}
	if fleet.Gateway(others["gw"].Public()) || fleet.Gateway(nil) {
		t.Error("a stranger may sign plans")
	}
	p0 := ids["p0"].Public()
	if err := fleet.Check(p0, wire.Hello{Name: "p0", Role: wire.RolePrefill}); err != nil {
		t.Error(err)
	}
	for _, h := range []wire.Hello{{Name: "d0", Role: wire.RolePrefill}, {Name: "p0", Role: wire.RoleDecode}, {Name: "gw", Role: wire.RoleGateway}} {
		if err := fleet.Check(p0, h); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "the key of p0 (prefill) says it is") {
			t.Errorf("%+v: %v", h, err)
		}
	}
	if err := fleet.Check(others["p0"].Public(), wire.Hello{Name: "p0", Role: wire.RolePrefill}); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a stranger's hello: %v", err)
	}
	if diff := cmp.Diff([]string{"d0", "gw", "p0"}, fleet.Names()); diff != "" {
		t.Error(diff)
	}
}

func TestNodesReadAsTheyAreWritten(t *testing.T) {
	for s, want := range map[string]Node{
		"gateway": {"gateway", wire.RoleGateway}, "prefill-2": {"prefill-2", wire.RolePrefill}, "p.1=prefill": {"p.1", wire.RolePrefill},
		"prefill-2=decode": {"prefill-2", wire.RoleDecode},
	} {
		if n, err := ParseNode(s); err != nil || n != want {
			t.Errorf("%s: %+v, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "p0", "p0=", "p0=both", "=prefill", "p 0=prefill", "Prefill", "prefill_1", "-prefill", "p0=prefill=decode"} {
		if n, err := ParseNode(s); err == nil {
			t.Errorf("%q is %+v", s, n)
		}
	}
}

func TestDefaultIsMadeOnFirstUse(t *testing.T) {
	state := t.TempDir()
	t.Setenv("SLUICE_KEYS", "")
	t.Setenv("XDG_STATE_HOME", state)
	want := filepath.Join(state, "sluice", "keys")
	if dir, err := DefaultDir(); err != nil || dir != want {
		t.Fatalf("%s, %v", dir, err)
	}
	me, fleet, err := Default(Node{"decode", wire.RoleDecode})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"decode", "gateway", "prefill"}, fleet.Names()); diff != "" || me.Role != wire.RoleDecode {
		t.Fatal(diff)
	}
	if info, err := os.Stat(want); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, fleet, err = Default(Node{"prefill-7", wire.RolePrefill}); err != nil || len(fleet.Names()) != 4 {
		t.Errorf("a node on demand: %v, %v", fleet, err)
	}
	if _, _, err = Default(Node{"decode", wire.RolePrefill}); err == nil || !strings.Contains(err.Error(), "is a decode") {
		t.Errorf("a name with another role: %v", err)
	}
	t.Setenv("SLUICE_KEYS", filepath.Join(state, "mine"))
	if dir, _ := DefaultDir(); dir != filepath.Join(state, "mine") {
		t.Error(dir)
	}
	t.Setenv("SLUICE_KEYS", "")
	t.Setenv("XDG_STATE_HOME", "relative")
	t.Setenv("HOME", "/home/someone")
	if dir, _ := DefaultDir(); dir != "/home/someone/.local/state/sluice/keys" {
		t.Error(dir)
	}
}

// Three processes of one fleet start at once on a new machine: they must end up in one fleet.
func TestDefaultIsSafeForProcessesThatStartAtOnce(t *testing.T) {
	t.Setenv("SLUICE_KEYS", filepath.Join(t.TempDir(), "keys"))
	nodes := append([]Node{{"gateway", wire.RoleGateway}, {"prefill", wire.RolePrefill}, {"decode", wire.RoleDecode}},
		Node{"prefill-1", wire.RolePrefill}, Node{"prefill-1", wire.RolePrefill}, Node{"decode-1", wire.RoleDecode})
	keys := make([]ed25519.PublicKey, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			me, _, err := Default(n)
			if err != nil {
				t.Errorf("%s: %v", n.Name, err)
				return
			}
			keys[i] = me.Public()
		})
	}
	all.Wait()
	_, fleet, err := Default(nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if name, ok := fleet.Name(keys[i]); !ok || name != n.Name {
			t.Errorf("%s holds a key that the fleet knows as %q", n.Name, name)
		}
	}
}
