package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

func hashOf(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

func TestAuthenticate(t *testing.T) {
	k, err := Read(strings.NewReader("# tenants\n\nalice "+hashOf("sk-a")+"\nbob "+hashOf("sk-b")+"\n"), []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]string{"Bearer sk-a": "alice", "bearer  sk-b ": "bob", "": "", "Bearer": "", "Bearer ": "", "Bearer sk-c": "", "Basic sk-a": "", "sk-a": ""} {
		got, v := k.Authenticate(http.Header{"Authorization": {header}})
		if got.ID != want || (want == "") != (v.Code == verdict.Unauthorized) {
			t.Errorf("%q is %q (%v), want %q", header, got.ID, v, want)
		}
		if strings.Contains(v.Reason, "sk-") {
			t.Errorf("the reason holds the key: %s", v.Reason)
		}
	}
	a, _ := k.Authenticate(http.Header{"Authorization": {"Bearer sk-a"}})
	b, _ := k.Authenticate(http.Header{"Authorization": {"Bearer sk-b"}})
	other, _ := Read(strings.NewReader("alice "+hashOf("sk-a")), []byte("another secret"))
	c, _ := other.Authenticate(http.Header{"Authorization": {"Bearer sk-a"}})
	if a.Scope == b.Scope || a.Scope == c.Scope {
		t.Error("scopes of different tenants or secrets are equal")
	}
	d, v := Open([]byte("secret")).Authenticate(nil)
	if d.ID != "default" || !v.IsZero() || d.Scope == a.Scope {
		t.Errorf("open: %+v %v", d, v)
	}
}

func TestReadRefuses(t *testing.T) {
	for want, in := range map[string]string{
		"no keys": "# nothing\n", "line 1: a line is": "alice", "line 2: the hash is not hex": "\nalice " + strings.Repeat("z", 64),
		"line 2: the same key": "a " + hashOf("k") + "\nb " + hashOf("k"),
	} {
		if _, err := Read(strings.NewReader(in), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
	if _, err := Load(t.TempDir()+"/none", nil); err == nil {
		t.Error("a missing file was read")
	}
}
