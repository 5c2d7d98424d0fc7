package admission

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
)

func fixedPlan() Plan {
	p := Plan{Attempt: [16]byte{1, 15: 2}, Request: "req-1", Scope: Scope{3}, Model: [32]byte{4}, PromptTokens: 100, LastToken: 7,
		Digest: [32]byte{5}, MaxTokens: 10, Limit: 200, Sampling: Sampling{Temperature: .5, TopP: .9, Seed: 3},
		Prefill: Endpoint{Name: "p0", Boot: 11, Key: [32]byte{6}}, Decode: Endpoint{Name: "d0", Boot: 12, Data: "127.0.0.1:1", Key: [32]byte{7}},
		Budget: time.Minute, TestTraffic: true, Session: [16]byte{9}, Seq: 5}
	return p
}

// A plan's bytes and its signature (Ed25519 is deterministic) are what they were: the context keeps a signature over anything else from being
// one over a plan, and the layout is between builds.
func TestSignedBytesDoNotChange(t *testing.T) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, 32))
	b, err := Sign(fixedPlan(), key)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/plan.hex")
	if err != nil || strings.TrimSpace(string(want)) != hex.EncodeToString(b) {
		t.Errorf("%v; the signed plan is\n%s", err, hex.EncodeToString(b))
	}
	n := len(b) - ed25519.SignatureSize
	body := b[3 : n-ed25519.PublicKeySize]
	message := append([]byte("sluice plan v1\x00\x01"), body...)
	if !ed25519.Verify(key.Public().(ed25519.PublicKey), message, b[n:]) {
		t.Error("the signature is not over context, version and body")
	}
	keys := ring{key.Public().(ed25519.PublicKey)}
	for _, context := range []string{"", "sluice plan v1\x00", "sluice plan v1\x00\x02", "sluice auth v1\x00\x01"} {
		other := append(bytes.Clone(b[:n]), ed25519.Sign(key, append([]byte(context), body...))...)
		if _, err := Verify(other, keys); !errors.Is(err, ErrSignature) {
			t.Errorf("signed over %q: %v", context, err)
		}
	}
}

// Each field of a plan reaches the other end, and none stands in for another.
func TestEveryFieldOfAPlanIsCarried(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(nil)
	keys := ring{key.Public().(ed25519.PublicKey)}
	seen := map[string]string{}
	var each func(v reflect.Value, name string, try func(string))
	each = func(v reflect.Value, name string, try func(string)) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				each(v.Field(i), name+"."+v.Type().Field(i).Name, try)
			}
			return
		case reflect.Array:
			each(v.Index(0), name+"[0]", try)
			each(v.Index(v.Len()-1), name+"[last]", try)
			return
		}
		was := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Float32:
			v.SetFloat(v.Float() / 2)
		case reflect.Int32, reflect.Int64:
			v.SetInt(v.Int() + 1<<20)
		case reflect.Uint8:
			v.SetUint(v.Uint() ^ 0x80)
		default:
			v.SetUint(v.Uint() + 1<<20)
		}
		try(name)
		v.Set(was)
	}
	p := fixedPlan()
	each(reflect.ValueOf(&p).Elem(), "Plan", func(name string) {
		b, err := Sign(p, key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Verify(b, keys)
		if err != nil || got != p {
			t.Errorf("%s: %v, came back as %+v", name, err, got)
		}
		if other, ok := seen[string(b)]; ok {
			t.Errorf("%s is not told from %s", name, other)
		}
		seen[string(b)] = name
	})
	if len(seen) != 31 {
		t.Errorf("%d fields were tried", len(seen))
	}
}

func TestPlansThatNobodyMayMake(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(nil)
	keys := ring{key.Public().(ed25519.PublicKey)}
	sign := func(body []byte, version byte) []byte { // whatever it says
		b := append([]byte{version, byte(len(body)), byte(len(body) >> 8)}, body...)
		b = append(b, keys[0]...)
		return append(b, ed25519.Sign(key, append([]byte("sluice plan v1\x00\x01"), body...))...)
	}
	body, err := appendPlan(nil, fixedPlan())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := Verify(sign(body, planVersion), keys); err != nil || p != fixedPlan() {
		t.Fatalf("the plan itself: %v", err)
	}
	test := len(body) - 16 - 8 - 1
	bad := func(name string, b []byte) {
		if p, err := Verify(b, keys); !errors.Is(err, ErrMalformed) || p != (Plan{}) {
			t.Errorf("%s: %v, %+v", name, err, p)
		}
	}
	bad("version 0", sign(body, 0))
	bad("version 2", sign(body, 2))
	for n := range body {
		bad("cut", sign(body[:n], planVersion))
	}
	bad("longer", sign(append(bytes.Clone(body), 0), planVersion))
	two := bytes.Clone(body)
	two[test] = 2
	bad("neither test traffic nor not", sign(two, planVersion))
	long := bytes.Clone(body)
	long[16] = 129 // the request's length, over its bound, with the bytes there
	bad("a long string", sign(append(long, make([]byte, 200)...), planVersion))
	for name, edit := range map[string]func(*Plan){
		"no attempt":       func(p *Plan) { p.Attempt = [16]byte{} },
		"no budget":        func(p *Plan) { p.Budget = 0 },
		"a past budget":    func(p *Plan) { p.Budget = -1 },
		"a negative token": func(p *Plan) { p.LastToken = -1 },
		"cold":             func(p *Plan) { p.Sampling.Temperature = -0.1 },
		"hot":              func(p *Plan) { p.Sampling.Temperature = 100.5 },
		"no temperature":   func(p *Plan) { p.Sampling.Temperature = float32(math.NaN()) },
		"top-p under":      func(p *Plan) { p.Sampling.TopP = -0.1 },
		"top-p over":       func(p *Plan) { p.Sampling.TopP = 1.1 },
		"no top-p":         func(p *Plan) { p.Sampling.TopP = float32(math.NaN()) },
	} {
		p := fixedPlan()
		edit(&p)
		b, err := Sign(p, key)
		if err != nil {
			t.Fatal(err)
		}
		bad(name, b)
	}
	for name, edit := range map[string]func(*Plan){
		"token 0":  func(p *Plan) { p.LastToken = 0 },
		"the edge": func(p *Plan) { p.Sampling = Sampling{Temperature: 100, TopP: 1} },
		"greedy":   func(p *Plan) { p.Sampling = Sampling{} },
	} {
		p := fixedPlan()
		edit(&p)
		b, _ := Sign(p, key)
		if got, err := Verify(b, keys); err != nil || got != p {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(*Plan){
		"request": func(p *Plan) { p.Request = strings.Repeat("r", 129) },
		"name":    func(p *Plan) { p.Prefill.Name = strings.Repeat("r", 65) },
		"address": func(p *Plan) { p.Decode.Data = strings.Repeat("r", 256) },
	} {
		p := fixedPlan()
		edit(&p)
		if b, err := Sign(p, key); err == nil || b != nil {
			t.Errorf("a long %s was signed", name)
		}
	}
	p := fixedPlan() // at every bound at once
	p.Request, p.Prefill.Name, p.Decode.Name = strings.Repeat("r", 128), strings.Repeat("p", 64), strings.Repeat("d", 64)
	p.Prefill.Data, p.Decode.Data = strings.Repeat("a", 255), strings.Repeat("b", 255)
	b, err := Sign(p, key)
	if err != nil || len(b) > MaxSigned {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if got, err := Verify(b, keys); err != nil || got != p {
		t.Errorf("at the bounds: %v", err)
	}
	if _, err := Verify(make([]byte, MaxSigned+1), keys); !errors.Is(err, ErrMalformed) {
		t.Errorf("too long: %v", err)
	}
}

// The digest's formula, written again.
func TestDigestIsOverContextScopeAndIDs(t *testing.T) {
	want := sha256.Sum256(append([]byte("sluice prompt v1\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f))
	if got := Digest(Scope{3}, []int32{1, math.MaxInt32}); got != want {
		t.Errorf("%x, not %x", got, want)
	}
}

func TestSlotsAndLimitsOfATicket(t *testing.T) {
	p := fixedPlan()
	tk, v := Admit(p, capacity.Limit{Tokens: 109, Setter: "x"})
	if !v.IsZero() || p.Slots() != 109 || tk.Limit() != (capacity.Limit{Tokens: 109, Setter: "x"}) || tk.Attempt() != p.Attempt {
		t.Errorf("%v, %d slots, %+v", v, p.Slots(), tk.Limit())
	}
	for name, use := range map[string]func(){"plan": func() { Ticket{}.Plan() }, "attempt": func() { Ticket{}.Attempt() }, "limit": func() { Ticket{}.Limit() }, "verdict": func() { Ticket{}.Verdict() }} {
		func() {
			defer func() {
				if p := recover(); p != "admission: the zero ticket was used" {
					t.Errorf("%s of the zero ticket: %v", name, p)
				}
			}()
			use()
		}()
	}
}
