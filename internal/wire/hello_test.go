package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func TestCompareNamesBothValues(t *testing.T) {
	own := someHello()
	prefill := own
	prefill.Role, prefill.MaxPage, prefill.Name, prefill.Boot = RolePrefill, 0, "p", 9
	if err := Compare(own, prefill); err != nil {
		t.Fatalf("decode's view: %v", err)
	}
	if err := Compare(prefill, own); err != nil {
		t.Fatalf("prefill's view: %v", err)
	}
	with := func(h Hello, change func(*Hello)) Hello { change(&h); return h }
	for _, c := range []struct {
		name      string
		own, peer Hello
		texts     []string
	}{
		{"two decodes", own, own, []string{"role", "decode"}},
		{"a gateway", own, with(prefill, func(h *Hello) { h.Role = RoleGateway }), []string{"the peer has gateway, this end decode"}},
		{"a gateway here", with(own, func(h *Hello) { h.Role = RoleGateway }), prefill, []string{"the peer has prefill, this end gateway"}},
		{"model", own, with(prefill, func(h *Hello) { h.Model[0] = 0xee }), []string{"model", "ee11121314151617…", "1011121314151617…"}},
		{"model's last byte", own, with(prefill, func(h *Hello) { h.Model[31]++ }), []string{"model"}},
		{"page size", own, with(prefill, func(h *Hello) { h.Geometry.Tokens = 16 }), []string{"the peer has 16 tokens", "this end 64 tokens"}},
		{"layers", own, with(prefill, func(h *Hello) { h.Geometry.Layers = 31 }), []string{"31 layers", "30 layers"}},
		{"no geometry", with(own, func(h *Hello) { h.Geometry = emptyGeometry }),
			with(prefill, func(h *Hello) { h.Geometry = emptyGeometry }), []string{"geometry", "none"}},
		{"room at the peer", prefill, with(own, func(h *Hello) { h.MaxPage-- }), []string{"the peer has room for 1474559", "this end pages of 1474560"}},
		{"room here", with(own, func(h *Hello) { h.MaxPage = 7 }), prefill, []string{"this end room for 7", "pages of 1474560"}},
	} {
		err := Compare(c.own, c.peer)
		if !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q lacks %q", c.name, err, text)
			}
		}
	}
	gateway := Hello{Role: RoleGateway}
	if CompareControl(gateway, own) != nil || CompareControl(own, gateway) != nil {
		t.Error("gateway and decode")
	}
	if !errors.Is(CompareControl(gateway, gateway), ErrMismatch) || !errors.Is(CompareControl(own, prefill), ErrMismatch) {
		t.Error("two gateways, or two workers, on a control link")
	}
}

func TestErrorsAreWhatTheySayAlone(t *testing.T) {
	m, v := error(Mismatch{Field: "x"}), error(VersionError{1, 2})
	if !errors.Is(m, ErrMismatch) || errors.Is(m, ErrVersion) || !errors.Is(v, ErrVersion) || errors.Is(v, ErrMismatch) {
		t.Error("one error is another")
	}
	for _, r := range []rune{0, 0x1f, 0x7f, 0x85, 0x2028, 0x2029} {
		if plainText("a" + string(r)) {
			t.Errorf("%U may go into a log line", r)
		}
	}
	if !plainText("é\u2027\u202a") {
		t.Error("letters may not")
	}
}

var emptyGeometry = Hello{}.Geometry

func TestAuthMessagesAreApart(t *testing.T) {
	a, b := []byte("aa"), []byte("bb")
	seen := map[string]string{}
	for name, m := range map[string][]byte{"prefill": AuthMessage(RolePrefill, a, b), "decode": AuthMessage(RoleDecode, a, b), "swapped": AuthMessage(RolePrefill, b, a)} {
		if other, ok := seen[string(m)]; ok {
			t.Errorf("%s and %s sign the same", name, other)
		}
		seen[string(m)] = name
		if !bytes.HasPrefix(m, []byte("sluice data v1\x00")) {
			t.Errorf("%s has no domain", name)
		}
	}
}

// The formula, written again.
func TestAuthMessageIsContextRoleAndBothHellos(t *testing.T) {
	if got := AuthMessage(RoleDecode, []byte("dials"), []byte("listens")); string(got) != "sluice data v1\x00"+string([]byte{byte(RoleDecode)})+"dialslistens" {
		t.Errorf("%q", got)
	}
}

func TestRootIsOverMACsInOrder(t *testing.T) {
	macs := [][16]byte{ramp16(1), ramp16(2), ramp16(3)}
	r := NewRoot()
	for _, m := range macs {
		r.Add(m)
	}
	first := r.Sum()
	if first != RootOf(macs) || first != r.Sum() {
		t.Error("incremental and whole differ")
	}
	if RootOf(macs[:2]) == first || RootOf([][16]byte{macs[1], macs[0], macs[2]}) == first {
		t.Error("a root that does not depend on count and order")
	}
	// printf 'sluice root v1\0' | sha256sum
	empty := RootOf([][16]byte(nil))
	if got := hex.EncodeToString(empty[:]); got != "c949e4b80779857df52b127f1019453607a5b4b8d3318dccfba839e77d4417ea" {
		t.Errorf("the root of nothing is %s", got)
	}
}

func TestWhoMaySendWhat(t *testing.T) {
	want := map[Medium]map[Role]string{
		Control: {
			RoleGateway: "plan prompt stop abort ping pong",
			RolePrefill: "facts abort outcome settled ping pong",
			RoleDecode:  "facts reserved sealed output abort outcome settled ping pong",
		},
		Data: {
			RoleGateway: "abort ping pong",
			RolePrefill: "attach page manifest end abort ping pong",
			RoleDecode:  "grant abort ping pong",
		},
	}
	for m, roles := range want {
		for r, kinds := range roles {
			var got []string
			for k := Kind(0); k <= numKinds; k++ {
				if May(m, r, k) {
					got = append(got, k.String())
				}
			}
			if strings.Join(got, " ") != kinds {
				t.Errorf("%s on %s: %v", r, m, got)
			}
		}
	}
}
