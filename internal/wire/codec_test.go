package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

var update = flag.Bool("update", false, "write the golden files")

// encode appends f and takes the header off again.
func encode(t testing.TB, f Frame) (Header, []byte) {
	t.Helper()
	b, err := Append(nil, f)
	if err != nil {
		t.Fatalf("%s: %v", f.Kind(), err)
	}
	h, err := ParseHeader(b)
	if err != nil {
		t.Fatalf("%s: %v", f.Kind(), err)
	}
	return h, b[HeaderSize:]
}

func TestEveryFrameComesBackAsItWas(t *testing.T) {
	seen := map[Kind]bool{}
	for _, s := range samples() {
		h, body := encode(t, s.frame)
		seen[h.Kind] = true
		want := len(body)
		if p, ok := s.frame.(PageHeader); ok {
			want += int(p.Length)
		}
		if h.Kind != s.frame.Kind() || h.Body != want {
			t.Errorf("%s: header %+v, body %d", s.name, h, want)
		}
		got, err := Decode(h.Kind, body)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		} else if diff := cmp.Diff(s.frame, got); diff != "" {
			t.Errorf("%s:\n%s", s.name, diff)
		}
	}
	for k := Kind(1); k < numKinds; k++ {
		if !seen[k] {
			t.Errorf("no sample of %s", k)
		}
	}
}

// The bytes on the wire are a promise to every worker that is already running.
func TestBytesOnTheWireDoNotChange(t *testing.T) {
	var got strings.Builder
	for _, s := range samples() {
		b, err := Append(nil, s.frame)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s %s\n", s.name, hex.EncodeToString(b))
	}
	const file = "testdata/frames.golden"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Fatalf("the wire changed: another Version, or put it back:\n%s", diff)
	}
}

func TestCutOrExtendedBodiesAreErrors(t *testing.T) {
	for _, s := range samples() {
		h, body := encode(t, s.frame)
		for n := range body {
			if f, err := Decode(h.Kind, body[:n]); !errors.Is(err, ErrShort) || f != nil {
				t.Fatalf("%s cut to %d of %d: %v, %v", s.name, n, len(body), f, err)
			}
		}
		if f, err := Decode(h.Kind, append(bytes.Clone(body), 0)); !errors.Is(err, ErrTrailing) || f != nil {
			t.Fatalf("%s with a byte more: %v, %v", s.name, f, err)
		}
	}
}

func TestDecodedFramesShareNoMemoryWithTheBody(t *testing.T) {
	for _, s := range samples() {
		h, body := encode(t, s.frame)
		got, err := Decode(h.Kind, body)
		if err != nil {
			t.Fatal(err)
		}
		clear(body)
		if diff := cmp.Diff(s.frame, got); diff != "" {
			t.Errorf("%s changed with its buffer:\n%s", s.name, diff)
		}
	}
}

func header(length uint32, version, kind byte, flags uint16) []byte {
	b := le.AppendUint32(nil, length)
	return le.AppendUint16(append(b, version, kind), flags)
}

func TestHeadersThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"half a header", []byte{1, 2, 3, 4, 5, 6, 7}, ErrShort, "7 bytes"},
		{"version before all else", header(0, 9, 200, 7), ErrVersion, "speaks version 9, this end version 1"},
		{"kind 0", header(4, Version, 0, 0), ErrKind, "0"},
		{"the kind after the last", header(4, Version, byte(numKinds), 0), ErrKind, "20"},
		{"a flag", header(4+MaxPing, Version, byte(KindPing), 1), ErrFlags, "0x0001 on ping"},
		{"a length that does not hold its own fields", header(3, Version, byte(KindPing), 0), ErrShort, "3 on ping"},
		{"4 GB", header(math.MaxUint32, Version, byte(KindPage), 0), ErrLength, "4294967291 bytes on page"},
		{"4 GB less what overflows", header(0, Version, byte(KindPage), 0), ErrShort, "0 on page"},
	} {
		h, err := ParseHeader(c.b)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || h != (Header{}) {
			t.Errorf("%s: %+v, %v", c.name, h, err)
		}
	}
	for k := Kind(1); k < numKinds; k++ {
		if h, err := ParseHeader(header(uint32(4+MaxBody(k)), Version, byte(k), 0)); err != nil || h.Body != MaxBody(k) || h.Kind != k {
			t.Errorf("%s at its bound: %+v, %v", k, h, err)
		}
		if _, err := ParseHeader(header(uint32(5+MaxBody(k)), Version, byte(k), 0)); !errors.Is(err, ErrLength) {
			t.Errorf("%s one over its bound: %v", k, err)
		}
	}
	var v VersionError
	if _, err := ParseHeader(header(0, 7, 0, 0)); !errors.As(err, &v) || v != (VersionError{Own: Version, Peer: 7}) {
		t.Errorf("%v does not carry both versions", err)
	}
}

// largest frames fill their bounds exactly: a bound that is too small would refuse an honest frame, one that is too large is
// memory given away.
func TestBoundsAreTight(t *testing.T) {
	longest := someRefusal
	longest.Reason = strings.Repeat("r", MaxReason)
	hello := someHello()
	hello.Name, hello.Path = strings.Repeat("n", MaxName), strings.Repeat("p", MaxPath)
	largest := []Frame{
		hello, Auth{}, Facts{JSON: make([]byte, MaxFacts), Data: strings.Repeat("d", MaxAddress)},
		Plan{Signed: make([]byte, maxSigned)}, Prompt{Attempt: someAttempt, IDs: make([]int32, PromptChunk)}, Reserved{Attempt: someAttempt},
		Attach{Attempt: someAttempt}, Grant{Attempt: someAttempt, Boot: 1, Pages: make([]GrantedPage, MaxGrantPages)},
		PageHeader{Attempt: someAttempt, Length: MaxPagePayload}, Manifest{Attempt: someAttempt, Verdict: longest}, End{Attempt: someAttempt},
		Sealed{Attempt: someAttempt}, Output{Attempt: someAttempt, IDs: make([]int32, OutputChunk)}, Stop{Attempt: someAttempt},
		Abort{Attempt: someAttempt, Verdict: longest}, Outcome{Attempt: someAttempt, Verdict: longest}, Settled{Attempt: someAttempt}, Ping{}, Pong{},
	}
	if len(largest) != int(numKinds)-1 {
		t.Fatalf("%d of %d kinds", len(largest), numKinds-1)
	}
	for _, f := range largest {
		if h, _ := encode(t, f); h.Body != MaxBody(f.Kind()) {
			t.Errorf("the largest %s has %d bytes, its bound is %d", f.Kind(), h.Body, MaxBody(f.Kind()))
		}
	}
	if MaxBody(0) != 0 || MaxBody(numKinds) != 0 {
		t.Error("an unknown kind has a bound")
	}
}

// Values that neither direction takes. Append must refuse what Decode refuses: else this end would be the one that breaks the wire.
func TestValuesThatAreRefused(t *testing.T) {
	with := func(change func(*Hello)) Hello { h := someHello(); change(&h); return h }
	served := verdict.Served(verdict.Prefill)
	abort := func(v verdict.Verdict) Abort { return Abort{Attempt: someAttempt, Verdict: v} }
	for _, c := range []struct {
		name string
		f    Frame
		want error
	}{
		{"role 0", with(func(h *Hello) { h.Role = 0 }), ErrValue},
		{"role 4", with(func(h *Hello) { h.Role = 4 }), ErrValue},
		{"long name", with(func(h *Hello) { h.Name = strings.Repeat("n", MaxName+1) }), ErrLength},
		{"name over the length byte", with(func(h *Hello) { h.Name = strings.Repeat("n", 256) }), ErrLength},
		{"name with a line end", with(func(h *Hello) { h.Name = "a\nb" }), ErrValue},
		{"name with an escape", with(func(h *Hello) { h.Name = "a\x1b[2J" }), ErrValue},
		{"name with U+2028", with(func(h *Hello) { h.Name = "a\u2028b" }), ErrValue},
		{"name in broken UTF-8", with(func(h *Hello) { h.Name = "\xff" }), ErrValue},
		{"long path", with(func(h *Hello) { h.Path = strings.Repeat("n", MaxPath+1) }), ErrLength},
		{"worker without a boot", with(func(h *Hello) { h.Boot = 0 }), ErrValue},
		{"geometry of 7 tokens", with(func(h *Hello) { h.Geometry.Tokens = 7 }), ErrValue},
		{"geometry that overflows", with(func(h *Hello) { h.Geometry.Layers = math.MaxUint32 }), ErrValue},
		{"unknown layout", with(func(h *Hello) { h.Geometry.Layout = 9 }), ErrValue},
		{"largest page over the bound", with(func(h *Hello) { h.MaxPage = MaxPagePayload + 1 }), ErrValue},
		{"long facts", Facts{JSON: make([]byte, MaxFacts+1)}, ErrLength},
		{"address with a line end", Facts{Data: "a\r\nb"}, ErrValue},
		{"long plan", Plan{Signed: make([]byte, maxSigned+1)}, ErrLength},
		{"prompt of nobody", Prompt{IDs: []int32{1}}, ErrValue},
		{"prompt without ids", Prompt{Attempt: someAttempt}, ErrValue},
		{"prompt with a negative id", Prompt{Attempt: someAttempt, IDs: []int32{1, -1}}, ErrValue},
		{"prompt past 2^32", Prompt{Attempt: someAttempt, Offset: math.MaxUint32, IDs: []int32{1}}, ErrValue},
		{"long prompt", Prompt{Attempt: someAttempt, IDs: make([]int32, PromptChunk+1)}, ErrLength},
		{"reserved of nobody", Reserved{}, ErrValue},
		{"attach of nobody", Attach{}, ErrValue},
		{"grant of nobody", Grant{Boot: 1}, ErrValue},
		{"grant of no boot", Grant{Attempt: someAttempt}, ErrValue},
		{"long grant", Grant{Attempt: someAttempt, Boot: 1, Pages: make([]GrantedPage, MaxGrantPages+1)}, ErrLength},
		{"page of nobody", PageHeader{}, ErrValue},
		{"long page", PageHeader{Attempt: someAttempt, Length: MaxPagePayload + 1}, ErrLength},
		{"page of 4 GB", PageHeader{Attempt: someAttempt, Length: math.MaxUint32}, ErrLength},
		{"manifest of nobody", Manifest{Verdict: served}, ErrValue},
		{"manifest without a verdict", Manifest{Attempt: someAttempt}, ErrValue},
		{"manifest with a NaN", Manifest{Attempt: someAttempt, Verdict: served, Echo: Echo{IDs: [8]int32{0, 1, 2, 3, 4, 5, 6, 7}, Logits: [8]float32{float32(math.NaN())}}}, ErrValue},
		{"end of nobody", End{}, ErrValue},
		{"sealed of nobody", Sealed{}, ErrValue},
		{"output of nobody", Output{IDs: []int32{1}}, ErrValue},
		{"output without ids", Output{Attempt: someAttempt}, ErrValue},
		{"long output", Output{Attempt: someAttempt, IDs: make([]int32, OutputChunk+1)}, ErrLength},
		{"stop of nobody", Stop{}, ErrValue},
		{"abort of nobody", Abort{Verdict: served}, ErrValue},
		{"abort without a verdict", abort(verdict.Verdict{}), ErrValue},
		{"code none", abort(verdict.Verdict{Layer: verdict.Gate, Status: 500}), ErrValue},
		{"unknown code", abort(verdict.Verdict{Code: 200, Layer: verdict.Gate, Status: 500}), ErrValue},
		{"no layer", abort(verdict.Verdict{Code: verdict.Internal, Status: 500}), ErrValue},
		{"unknown layer", abort(verdict.Verdict{Code: verdict.Internal, Layer: 99, Status: 500}), ErrValue},
		{"status 99", abort(verdict.Verdict{Code: verdict.Internal, Layer: verdict.Gate, Status: 99}), ErrValue},
		{"status over the field", abort(verdict.Verdict{Code: verdict.Internal, Layer: verdict.Gate, Status: 65536 + 200}), ErrValue},
		{"outcome of nobody", Outcome{Verdict: served}, ErrValue},
		{"outcome without a verdict", Outcome{Attempt: someAttempt}, ErrValue},
		{"finish 3", Outcome{Attempt: someAttempt, Verdict: served, Finish: 3}, ErrValue},
		{"settled of nobody", Settled{}, ErrValue},
	} {
		before := []byte("before")
		if b, err := Append(before, c.f); !errors.Is(err, c.want) || string(b) != "before" {
			t.Errorf("Append, %s: %v (%d bytes)", c.name, err, len(b))
		}
		if c.name == "status over the field" {
			continue // it cannot be on the wire
		}
		if f, err := Decode(c.f.Kind(), appendBody(nil, c.f)); err == nil || f != nil {
			t.Errorf("Decode, %s: %+v, %v", c.name, f, err)
		}
	}
	if _, err := Decode(numKinds, nil); !errors.Is(err, ErrKind) {
		t.Errorf("an unknown kind: %v", err)
	}
}

// What Append would have made to fit, Decode refuses: a peer of this version does not send it.
func TestBytesThatOnlyABrokenPeerSends(t *testing.T) {
	_, ping := encode(t, Ping{Nonce: 1})
	ping[8] = 2
	reason := func(s string) []byte {
		b := append([]byte(nil), someAttempt[:]...)
		b = appendVerdict(b, verdict.Verdict{Code: verdict.Internal, Layer: verdict.Gate, Status: 500, Reason: s})
		return append(b, make([]byte, macSize)...)
	}
	_, facts := encode(t, Facts{})
	facts[0] = 255
	for _, c := range []struct {
		name string
		kind Kind
		body []byte
		want error
	}{
		{"a bool of 2", KindPing, ping, ErrValue},
		{"a bool of 255", KindFacts, facts, ErrValue},
		{"a reason in broken UTF-8", KindAbort, reason("\xc3"), ErrValue},
		{"a reason with a line end", KindAbort, reason("a\nX-Sluice-Verdict: ok"), ErrValue},
		{"a reason over its bound", KindAbort, reason(strings.Repeat("r", MaxReason+1)), ErrLength},
	} {
		if f, err := Decode(c.kind, c.body); !errors.Is(err, c.want) || f != nil {
			t.Errorf("%s: %+v, %v", c.name, f, err)
		}
	}
}

func TestARefusalIsNotLostForItsWords(t *testing.T) {
	for _, c := range []struct{ reason, want string }{
		{strings.Repeat("r", MaxReason+100), strings.Repeat("r", MaxReason)},
		{strings.Repeat("é", MaxReason), strings.Repeat("é", MaxReason/2)},
		{"x" + strings.Repeat("é", MaxReason), "x" + strings.Repeat("é", MaxReason/2-1)},
		{"open /data: no such file\nor directory", "open /data: no such file?or directory"},
		{"\xff\xfe bytes", "?? bytes"},
		{"7 of 9 pages", "7 of 9 pages"},
	} {
		v := verdict.Of(verdict.Internal, verdict.Prefill, "%s", c.reason)
		for _, f := range []Frame{Abort{Attempt: someAttempt, Verdict: v}, Outcome{Attempt: someAttempt, Verdict: v}, Manifest{Attempt: someAttempt, Verdict: v}} {
			h, body := encode(t, f)
			got, err := Decode(h.Kind, body)
			if err != nil {
				t.Fatal(err)
			}
			var have verdict.Verdict
			switch g := got.(type) {
			case Abort:
				have = g.Verdict
			case Outcome:
				have = g.Verdict
			case Manifest:
				have = g.Verdict
			}
			if v.Reason = c.want; have != v {
				t.Errorf("%s: %q became %q", f.Kind(), c.reason, have.Reason)
			}
		}
		// The MAC is over what is sent, so both ends compute it over the same bytes.
		sent := Abort{Attempt: someAttempt, Verdict: verdict.Of(verdict.Internal, verdict.Prefill, "%s", c.reason)}
		h, body := encode(t, sent)
		got, _ := Decode(h.Kind, body)
		if !bytes.Equal(Authenticated(sent), Authenticated(got)) {
			t.Errorf("the MAC of %q differs between the ends", c.reason)
		}
	}
}

func TestAuthenticatedIsTheBodyButForItsMAC(t *testing.T) {
	for _, s := range samples() {
		switch s.frame.Kind() {
		case KindAttach, KindGrant, KindManifest, KindEnd, KindAbort:
		default:
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s has no MAC, and no panic", s.name)
					}
				}()
				Authenticated(s.frame)
			}()
			continue
		}
		h, body := encode(t, s.frame)
		covered := len(body) - 16
		if !bytes.Equal(Authenticated(s.frame), body[:covered]) {
			t.Errorf("%s: not the body", s.name)
		}
		// Every bit but the MAC's own is covered: a frame that differs in one has another input.
		for bit := range 8 * len(body) {
			flipped := bytes.Clone(body)
			flipped[bit/8] ^= 1 << (bit % 8)
			f, err := Decode(h.Kind, flipped)
			if err != nil {
				continue
			}
			if same := bytes.Equal(Authenticated(f), body[:covered]); same != (bit/8 >= covered) {
				t.Fatalf("%s: bit %d flipped, same input: %v", s.name, bit, same)
			}
		}
	}
}

// A body that announces much and holds little must not cost much.
func TestAllocationIsBoundedByTheBody(t *testing.T) {
	grant := append(append([]byte(nil), someAttempt[:]...), make([]byte, 8)...)
	grant = le.AppendUint32(grant, MaxGrantPages)
	prompt := le.AppendUint32(append(append([]byte(nil), someAttempt[:]...), 0, 0, 0, 0), PromptChunk)
	facts := le.AppendUint32([]byte{0, 0}, MaxFacts)
	for kind, body := range map[Kind][]byte{KindGrant: grant, KindPrompt: prompt, KindFacts: facts} {
		// The least of several: the runtime's own work falls into one reading or another, what Decode takes into all.
		least := uint64(math.MaxUint64)
		for range 5 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Decode(kind, body)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrShort) {
				t.Errorf("%s: %v", kind, err)
			}
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > 4096 {
			t.Errorf("%s: %d bytes allocated", kind, least)
		}
	}
}

func TestAppendPutsFramesBehindEachOther(t *testing.T) {
	var all []byte
	for _, s := range samples() {
		if s.frame.Kind() == KindPage {
			continue
		}
		var err error
		if all, err = Append(all, s.frame); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range samples() {
		if s.frame.Kind() == KindPage {
			continue
		}
		h, err := ParseHeader(all)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(h.Kind, all[HeaderSize:HeaderSize+h.Body])
		if err != nil || cmp.Diff(s.frame, got) != "" {
			t.Fatalf("%s: %v", s.name, err)
		}
		all = all[HeaderSize+h.Body:]
	}
	if len(all) != 0 {
		t.Fatalf("%d bytes left", len(all))
	}
}

func TestBoundsAgreeWithThePackagesTheyComeFrom(t *testing.T) {
	g := page.Geometry{Tokens: 64, Layers: 1024, KVHeads: 1, HeadDim: 1024, Layout: page.LayoutPairs16}
	if g.Bytes() != MaxPagePayload || g.Validate() != nil {
		t.Errorf("a page of %d bytes: %v; the wire takes %d", g.Bytes(), g.Validate(), MaxPagePayload)
	}
	g.KVHeads = 2
	if g.Validate() == nil {
		t.Errorf("a page of %d bytes is valid", g.Bytes())
	}
	for l := verdict.Body; l <= verdict.Legs; l++ {
		if !layerKnown[l] {
			t.Errorf("layer %s cannot be sent", l)
		}
	}
	if layerKnown[verdict.NoLayer] || layerKnown[verdict.Legs+1] {
		t.Error("a layer without a name can be sent")
	}
}
