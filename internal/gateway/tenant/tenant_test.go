package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

func hashOf(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// directory reads a file of these lines, in which KEY(x) stands for the hash of a key.
func directory(t *testing.T, text string) *Directory {
	t.Helper()
	d, err := Load(write(t, filepath.Join(t.TempDir(), "keys"), text), []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	for {
		before, rest, ok := strings.Cut(text, "KEY(")
		if !ok {
			break
		}
		key, after, _ := strings.Cut(rest, ")")
		text = before + hashOf(key) + after
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func bearer(key string) http.Header { return http.Header{"Authorization": {"Bearer " + key}} }

func TestAuthenticate(t *testing.T) {
	d := directory(t, "# tenants\n\nalice KEY(sk-a)\nbob KEY(sk-b)\nalice-2 KEY(sk-a2) tenant=alice\ncarol KEY(sk-off) off\ndave KEY(sk-old) expires=2020-01-01\neve KEY(sk-new) expires=2999-01-01\n")
	for header, want := range map[string]string{
		"Bearer sk-a": "alice", "bearer  sk-b ": "bob", "": "", "Bearer": "", "Bearer ": "", "Bearer sk-c": "", "Basic sk-a": "", "sk-a": "",
		"Bearer sk-a2": "alice", "Bearer sk-off": "", "Bearer sk-old": "", "Bearer sk-new": "eve", "Bearer " + hashOf("sk-a"): "",
	} {
		got, v := d.Authenticate(http.Header{"Authorization": {header}})
		if got.ID != want || (want == "") == v.IsZero() || want == "" && header != "Bearer sk-off" && v.Code != verdict.Unauthorized {
			t.Errorf("%q is %q (%v), want %q", header, got.ID, v, want)
		}
		if strings.Contains(v.Reason, "sk-") {
			t.Errorf("the reason holds the key: %s", v.Reason)
		}
		if want == "" && got.May("m") {
			t.Errorf("%q may use a model", header)
		}
	}
	if _, v := d.Authenticate(bearer("sk-off")); v.Code != verdict.KeyOff || v.Status != 403 || v.Reason != "the API key carol is switched off" {
		t.Errorf("%v", v)
	}
	if _, v := d.Authenticate(bearer("sk-old")); v.Reason != "the API key dave has expired" {
		t.Errorf("%v", v)
	}
	if _, v := d.Authenticate(http.Header{"Authorization": {"Bearer sk-a", "Bearer sk-b"}}); v.Code != verdict.Unauthorized {
		t.Errorf("two keys at once: %v", v)
	}
}

// A scope is its tenant's alone: not another's, not under another secret, and the same for all keys of the tenant.
func TestScopes(t *testing.T) {
	d := directory(t, "alice KEY(sk-a)\nbob KEY(sk-b)\nalice-2 KEY(sk-a2) tenant=alice\ncarol KEY(sk-c) scope=anew\n")
	scope := func(d *Directory, key string) [16]byte {
		x, v := d.Authenticate(bearer(key))
		if !v.IsZero() {
			t.Fatal(v)
		}
		return x.Scope
	}
	other, err := Load(d.path, []byte("another secret"))
	if err != nil {
		t.Fatal(err)
	}
	def, v := Open([]byte("secret")).Authenticate(nil)
	if def.ID != "default" || !v.IsZero() || !def.May("any") {
		t.Errorf("open: %+v %v", def, v)
	}
	a := scope(d, "sk-a")
	seen := [][16]byte{a, scope(d, "sk-b"), scope(d, "sk-c"), scope(other, "sk-a"), def.Scope, {}}
	for i := range seen {
		if slices.Contains(seen[:i], seen[i]) {
			t.Errorf("scope %d is another's", i)
		}
	}
	if scope(d, "sk-a2") != a {
		t.Error("two keys of a tenant have different scopes")
	}
	// A scope of another name: what was cached under the old one is not found any more.
	renamed := directory(t, "carol KEY(sk-c)\n")
	if scope(renamed, "sk-c") == scope(d, "sk-c") {
		t.Error("scope= changes nothing")
	}
}

func TestModels(t *testing.T) {
	d := directory(t, "alice KEY(sk-a) models=recall,big:lora-1\nbob KEY(sk-b)\n")
	a, _ := d.Authenticate(bearer("sk-a"))
	b, _ := d.Authenticate(bearer("sk-b"))
	for m, want := range map[string][2]bool{"recall": {true, true}, "big:lora-1": {true, true}, "big": {false, true}, "Recall": {false, true}, "": {false, true}} {
		if a.May(m) != want[0] || b.May(m) != want[1] {
			t.Errorf("%q: %v %v", m, a.May(m), b.May(m))
		}
	}
	if got := d.Models(); !slices.Equal(got, []string{"big:lora-1", "recall"}) {
		t.Errorf("%v", got)
	}
	if (&Tenant{}).May("recall") {
		t.Error("nobody may use a model")
	}
}

func TestReadRefuses(t *testing.T) {
	k := "alice " + hashOf("k")
	for in, want := range map[string]string{
		"# nothing\n":                        "no keys",
		"alice":                              "line 1: a line is",
		"\nalice " + strings.Repeat("z", 64): "line 2: the hash is not hex",
		"a " + hashOf("k") + "\nb " + hashOf("k"):   "line 2: the same key",
		"a/b " + hashOf("k"):                        "line 1: a line is",
		strings.Repeat("a", 65) + " " + hashOf("k"): "line 1: a line is",
		k + " burst=1":                              `there is no option "burst"; there are tenant, scope,`,
		k + " models=":                              `an option is NAME=VALUE`,
		k + " off=1":                                `an option is NAME=VALUE, or the word off, not "off=1"`,
		k + " models":                               `an option is NAME=VALUE`,
		k + " models=a,,b":                          "a name is empty",
		k + " scope=a/b":                            "a name is at most 64",
		k + " tenant=" + strings.Repeat("x", 65):    "a word of 65 bytes",
		k + " expires=tomorrow":                     "is not a day like",
		k + " concurrency=0":                        "must be a number from 1",
		k + " concurrency=-1":                       "must be a number from 1",
		k + " requests=10":                          "a rate is a number and a time",
		k + " requests=10/w":                        "a rate is a number and a time",
		k + " tokens=1e3/m":                         "a rate is a number and a time",
		k + " tokens=99999999999/m":                 "a rate is a number and a time",
		k + " tokens_burst=5":                       "tenant alice: tokens_burst= needs tokens=",
		k + " off off":                              "stands twice",
		k + " models=a models=b":                    "stands twice",
		k + " models=a\nb " + hashOf("l") + " tenant=alice models=a":   "line 2: models= of tenant alice stands on line 1 already",
		k + "\nb " + hashOf("l") + " scope=alice":                      "tenants alice and b have the same scope alice",
		"a " + hashOf("k") + " scope=s\nb " + hashOf("l") + " scope=s": "tenants a and b have the same scope s",
		strings.Repeat("x", maxLine+1):                                 "line 1: it has more than 65536 bytes",
	} {
		_, err := Read(strings.NewReader(in), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %s", in, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), hashOf("k")) || len(err.Error()) > 300) {
			t.Errorf("the error holds a hash, or the line: %v", err)
		}
	}
	// A key where its hash should be is not repeated.
	if _, err := Read(strings.NewReader("alice "+hashOf("k")+" sk-sluice-abcdefghijklmnop"), nil); err == nil || strings.Contains(err.Error(), "abcdefgh") {
		t.Errorf("%v", err)
	}
	if _, err := Load(t.TempDir()+"/none", nil); err == nil {
		t.Error("a missing file was read")
	}
}

// A file that is read again changes who may do what, at once; one with a mistake changes nothing.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	d, err := Load(write(t, path, "alice KEY(sk-a) concurrency=1\nbob KEY(sk-b)\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := d.Authenticate(bearer("sk-a"))
	lease, no := a.Enter(time.Now())
	if no != nil {
		t.Fatal(no)
	}
	write(t, path, "alice KEY(sk-a) concurrency=2\ncarol KEY(sk-c)\n")
	c, err := d.Reload()
	if err != nil || !slices.Equal(c.Added, []string{"carol"}) || !slices.Equal(c.Removed, []string{"bob"}) || !slices.Equal(c.Altered, []string{"alice"}) {
		t.Errorf("%+v %v", c, err)
	}
	if _, v := d.Authenticate(bearer("sk-b")); v.Code != verdict.Unauthorized {
		t.Errorf("a removed key: %v", v)
	}
	again, _ := d.Authenticate(bearer("sk-a"))
	if again.Scope != a.Scope {
		t.Error("a reading changed a scope")
	}
	// The request that was there before counts, and one more is allowed now.
	second, no := again.Enter(time.Now())
	if no != nil {
		t.Fatal(no.Verdict)
	}
	if _, no := again.Enter(time.Now()); no == nil || no.Limit != Concurrency {
		t.Errorf("%+v", no)
	}
	lease.Leave(time.Now())
	second.Leave(time.Now())

	for _, bad := range []string{"", "nonsense", "alice KEY(sk-a) concurrency=none\n"} {
		write(t, path, bad)
		if _, err := d.Reload(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", bad, err)
		}
		if _, v := d.Authenticate(bearer("sk-c")); !v.IsZero() {
			t.Errorf("a bad file changed something: %v", v)
		}
	}
	os.Remove(path)
	if _, err := d.Reload(); err == nil {
		t.Error("a file that is gone was read")
	}
	if _, v := d.Authenticate(bearer("sk-c")); !v.IsZero() {
		t.Errorf("a missing file changed something: %v", v)
	}
}

// Whatever changed of a tenant is told as a change, and nothing else is.
func TestReloadTellsEveryChange(t *testing.T) {
	const was = "alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01\nbob KEY(sk-b)\n"
	for now, altered := range map[string]string{
		was: "",
		"alice KEY(sk-a) models=n,m concurrency=3 expires=2099-01-01\nbob KEY(sk-b)\n":                          "",
		"bob KEY(sk-b)\n# moved\nalice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01\n":                 "",
		"alice KEY(sk-a) models=m concurrency=3 expires=2099-01-01\nbob KEY(sk-b)\n":                            "alice",
		"alice KEY(sk-a) models=m,n concurrency=4 expires=2099-01-01\nbob KEY(sk-b)\n":                          "alice",
		"alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-02\nbob KEY(sk-b)\n":                          "alice",
		"alice KEY(sk-a) models=m,n concurrency=3\nbob KEY(sk-b)\n":                                             "alice",
		"alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01 off\nbob KEY(sk-b)\n":                      "alice",
		"alice KEY(sk-c) models=m,n concurrency=3 expires=2099-01-01\nbob KEY(sk-b)\n":                          "alice",
		"alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01 scope=s\nbob KEY(sk-b)\n":                  "alice",
		"alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01\nbob KEY(sk-b)\nb2 KEY(sk-d) tenant=bob\n": "bob",
		"alice KEY(sk-a) models=m,n concurrency=3 expires=2099-01-01\nbob KEY(sk-b) off\n":                      "bob",
	} {
		path := filepath.Join(t.TempDir(), "keys")
		d, err := Load(write(t, path, was), nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, now)
		c, err := d.Reload()
		if got := strings.Join(c.Altered, " "); err != nil || got != altered || len(c.Added)+len(c.Removed) > 0 {
			t.Errorf("%s: altered %q, not %q; %+v, %v", now, got, altered, c, err)
		}
	}
}

func TestStatusNamesNoSecret(t *testing.T) {
	d := directory(t, "alice KEY(sk-a) models=m concurrency=3 requests=60/m tokens=1000/h tokens_burst=10\nold KEY(sk-b) tenant=alice off\n")
	s := d.Status()
	if len(s) != 1 || s[0].Tenant != "alice" || len(s[0].Keys) != 2 || !s[0].Keys[1].Off || s[0].Concurrency != 3 || *s[0].Requests != (Left{"60/m", 60, 60}) || *s[0].Tokens != (Left{"1000/h", 10, 10}) {
		t.Errorf("%+v", s)
	}
	if got := d.Names(); !slices.Equal(got, []string{"alice"}) {
		t.Errorf("%v", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("alice " + hashOf("k") + " models=a,b concurrency=8 requests=600/m requests_burst=3 tokens=5/s scope=x expires=2027-01-01\n# x\nbob " + hashOf("l") + " tenant=alice off")
	f.Add("\x00 \n=")
	f.Fuzz(func(t *testing.T, in string) {
		k, err := Read(strings.NewReader(in), nil)
		if (err == nil) == (k == nil) {
			t.Fatal("neither keys nor an error, or both")
		}
		if err != nil {
			return
		}
		seen := map[[16]byte]bool{}
		for _, h := range k.tenants {
			if seen[h.tenant.Scope] || !named(h.name) || len(h.keys) == 0 {
				t.Fatalf("tenant %s", h.name)
			}
			seen[h.tenant.Scope] = true
			a := &account{}
			a.limit(h.limits, time.Now())
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	k, err := Read(strings.NewReader("alice "+hashOf("sk-a")), nil)
	if err != nil {
		b.Fatal(err)
	}
	h := bearer("sk-a")
	b.ReportAllocs()
	for b.Loop() {
		if _, v := k.authenticate(h, time.Time{}); !v.IsZero() {
			b.Fatal(v)
		}
	}
}
