package admission

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

type ring []ed25519.PublicKey

func (r ring) Gateway(k ed25519.PublicKey) bool {
	for _, p := range r {
		if p.Equal(k) {
			return true
		}
	}
	return false
}

func newPlan() Plan {
	return Plan{Attempt: attempt.New(), Request: "req-1", Scope: Scope{1}, Model: [32]byte{2}, PromptTokens: 100, LastToken: 7,
		Digest: Digest(Scope{1}, []int32{1, 2, 3}), MaxTokens: 10, Limit: 200, Sampling: Sampling{Temperature: .5, TopP: .9, Seed: 3},
		Prefill: Endpoint{Name: "p0", Boot: 11, Key: [32]byte{1}}, Decode: Endpoint{Name: "d0", Boot: 12, Data: "127.0.0.1:1", Key: [32]byte{2}},
		Budget: time.Minute, Session: [16]byte{9}, Seq: 5}
}

func here(role capacity.Role, boot page.Boot, limit int) Here {
	return Here{Role: role, Limit: capacity.Limit{Tokens: limit, Setter: "the KV pool of x"}, Boot: boot, Model: [32]byte{2}, Session: [16]byte{9}, LastSeq: 4}
}

func signed(t *testing.T, p Plan) ([]byte, ring) {
	t.Helper()
	pub, key, _ := ed25519.GenerateKey(nil)
	b, err := Sign(p, key)
	if err != nil {
		t.Fatal(err)
	}
	return b, ring{pub}
}

func TestASignedPlanOpensWholeOnBothLegs(t *testing.T) {
	p := newPlan()
	b, keys := signed(t, p)
	for _, h := range []Here{here(capacity.Prefill, 11, 200), here(capacity.Decode, 12, 200)} {
		tk, v := Open(b, keys, h)
		if !v.IsZero() || !tk.Valid() || tk.Plan() != p {
			t.Fatalf("%s: %v %+v", h.Role, v, tk)
		}
	}
}

func TestOpenRefusesByName(t *testing.T) {
	p := newPlan()
	b, keys := signed(t, p)
	other, _ := signed(t, p)
	flip := bytes.Clone(b)
	flip[40] ^= 1
	for name, c := range map[string]struct {
		b    []byte
		h    func(*Here)
		want string
	}{
		"another signer": {b: other, want: "not signed by a gateway"},
		"flipped bit":    {b: flip, want: "signature"},
		"trailing":       {b: append(bytes.Clone(b), 0), want: "malformed"},
		"short":          {b: b[:len(b)-1], want: "malformed"},
		"empty":          {b: nil, want: "malformed"},
		"boot":           {h: func(h *Here) { h.Boot++ }, want: "this is boot"},
		"model":          {h: func(h *Here) { h.Model[0]++ }, want: "this worker runs"},
		"session":        {h: func(h *Here) { h.Session[0]++ }, want: "another session"},
		"replay":         {h: func(h *Here) { h.LastSeq = 5 }, want: "replayed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := here(capacity.Decode, 12, 200)
			if c.h != nil {
				c.h(&h)
			}
			if c.h != nil {
				c.b = b
			}
			tk, v := Open(c.b, keys, h)
			if v.Code != verdict.PlanRefused || v.Layer != verdict.Open || !strings.Contains(v.Reason, c.want) || tk.Valid() {
				t.Fatalf("%v", v)
			}
		})
	}
}

// The gateway's view may be stale: a worker compares with its own limit, and for the same limit says the same.
func TestBothSidesRefuseTheSameWithTheSameWords(t *testing.T) {
	l := capacity.Limit{Tokens: 99, Setter: "the KV pool of x"}
	p := newPlan()
	_, atGateway := Admit(p, l)
	b, keys := signed(t, p)
	_, atWorker := Open(b, keys, here(capacity.Decode, 12, 99))
	_, atPrefill := Open(b, keys, here(capacity.Prefill, 11, 99))
	if atGateway.Code != verdict.ContextLength || atGateway.At(verdict.Open) != atWorker || atPrefill != atWorker {
		t.Fatalf("%v\n%v\n%v", atGateway, atWorker, atPrefill)
	}
}

func TestTheLastGeneratedTokenNeedsNoSlot(t *testing.T) {
	for _, c := range []struct {
		prompt, out uint32
		limit       int
		ok          bool
	}{{100, 1, 100, true}, {100, 2, 100, false}, {101, 1, 100, false}, {1, 100, 100, true}, {1, 101, 100, false},
		{1 << 31, 1 << 31, 100, false}, {4294967295, 4294967295, 1 << 40, true}, {0, 1, 10, false}, {1, 0, 10, false}} {
		p := newPlan()
		p.PromptTokens, p.MaxTokens = c.prompt, c.out
		if tk, v := Admit(p, capacity.Limit{Tokens: c.limit}); tk.Valid() != c.ok {
			t.Errorf("%+v: %v", c, v)
		}
	}
	// prefill never holds generated tokens
	p := newPlan()
	b, keys := signed(t, p)
	if _, v := Open(b, keys, here(capacity.Prefill, 11, 100)); !v.IsZero() {
		t.Errorf("prefill: %v", v)
	}
	if _, v := Open(b, keys, here(capacity.Decode, 12, 100)); v.Code != verdict.ContextLength {
		t.Errorf("decode: %v", v)
	}
}

func TestATicketWithAVerdictIsNoLongerValid(t *testing.T) {
	tk, _ := Admit(newPlan(), capacity.Limit{Tokens: 1000})
	if !tk.Valid() {
		t.Fatal("a fresh ticket is not valid")
	}
	tk.Verdict().Set(verdict.Of(verdict.Deadline, verdict.Prefill, ""))
	if tk.Valid() {
		t.Fatal("a request that has a verdict may still enter a queue")
	}
	if (Ticket{}).Valid() {
		t.Fatal("the zero ticket is valid")
	}
	defer func() {
		if recover() == nil {
			t.Fatal("the zero ticket was usable")
		}
	}()
	Ticket{}.Plan()
}

func TestDigestsAreKeyedByScopeAndDoNotDependOnTheCut(t *testing.T) {
	ids := make([]int32, 5000)
	for i := range ids {
		ids[i] = int32(i * 7)
	}
	whole := Digest(Scope{1}, ids)
	d := NewDigester(Scope{1})
	d.Add(ids[:1])
	d.Add(ids[1:1500])
	d.Add(ids[1500:])
	if d.Sum() != whole || d.Tokens() != 5000 {
		t.Fatal("the digest depends on the cut")
	}
	if Digest(Scope{2}, ids) == whole {
		t.Fatal("equal prompts of two scopes look equal")
	}
	ids[4999]++
	if Digest(Scope{1}, ids) == whole {
		t.Fatal("the last id is not in the digest")
	}
}

func TestSignRefusesWhatVerifyWould(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(nil)
	p := newPlan()
	p.Request = strings.Repeat("x", 129)
	if _, err := Sign(p, key); err == nil {
		t.Error("a request id of 129 bytes was signed")
	}
	p = newPlan()
	p.Decode.Name = strings.Repeat("x", 65)
	if _, err := Sign(p, key); err == nil {
		t.Error("a name of 65 bytes was signed")
	}
	for _, breakIt := range []func(*Plan){func(p *Plan) { p.Attempt = attempt.ID{} }, func(p *Plan) { p.Budget = 0 }, func(p *Plan) { p.LastToken = -1 }, func(p *Plan) { p.Sampling.TopP = 2 }} {
		p := newPlan()
		breakIt(&p)
		b, keys := signed(t, p)
		if _, err := Verify(b, keys); !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestTheReleaseBuildCannotSkipAdmission(t *testing.T) {
	if guard.Unsafe {
		t.Skip("unsafe build")
	}
	if guard.Off(guard.All) {
		t.Fatal("a guard is off in the release build")
	}
}

type anyone struct{}

func (anyone) Gateway(ed25519.PublicKey) bool { return true }

func FuzzVerify(f *testing.F) {
	_, key, _ := ed25519.GenerateKey(nil)
	b, _ := Sign(newPlan(), key)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Verify(b, anyone{}); err == nil && len(b) > MaxSigned {
			t.Fatal("over-long")
		}
		if len(b) > 3 { // the body alone, as if it had been signed
			if p, err := parsePlan(b[3:]); err == nil {
				again, err := appendPlan(nil, p)
				if err != nil || !bytes.Equal(again, b[3:]) {
					t.Fatalf("not canonical: %x %x", again, b[3:])
				}
			}
		}
	})
}

// TestNoStringOfAPlanIsLongerThanItMayBe: a signed plan is still read with bounds.
func TestNoStringOfAPlanIsLongerThanItMayBe(t *testing.T) {
	p := newPlan()
	p.Request = strings.Repeat("x", 128)
	b, err := appendPlan(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parsePlan(b); err != nil {
		t.Fatal(err)
	}
	long := append([]byte(nil), b[:16]...)
	long = append(append(long, 129), "x"...)
	if _, err := parsePlan(append(long, b[17:]...)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a request id of 129 bytes: %v", err)
	}
}
