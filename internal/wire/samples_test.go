package wire

import (
	"strings"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

// ramp fills a fixed-size value with bytes that differ from each other and from their neighbours.
func ramp(b []byte, from byte) {
	for i := range b {
		b[i] = from + byte(i)
	}
}

func ramp16(from byte) (b [16]byte) { ramp(b[:], from); return b }
func ramp32(from byte) (b [32]byte) { ramp(b[:], from); return b }
func ramp64(from byte) (b [64]byte) { ramp(b[:], from); return b }

var (
	someAttempt  = attempt.ID(ramp16(1))
	someGeometry = page.Geometry{Tokens: 64, Layers: 30, KVHeads: 3, HeadDim: 64, Layout: page.LayoutPairs16}
	someEcho     = Echo{IDs: [8]int32{70, 65, 66, 3, 9, 1 << 20, 0, 2}, Logits: [8]float32{9.5, 8, 8, 1, 0.25, 0, -1, -100}}
	someRefusal  = verdict.TooLong(verdict.Open, 700000, 16, false, 681280, "the KV pool of prefill p0")
)

func someHello() Hello {
	return Hello{Role: RoleDecode, Name: "decode-1", Boot: 0x0102030405060708, Model: ramp32(16), Geometry: someGeometry,
		Session: ramp16(100), Path: "avx2", MaxPage: uint32(someGeometry.Bytes()), Key: ramp32(200)}
}

// sample is a frame with a name for the golden file.
type sample struct {
	name  string
	frame Frame
}

// samples has every kind, and the edges of those that vary.
func samples() []sample {
	gateway := Hello{Role: RoleGateway, Name: "gateway", Session: ramp16(3), Key: ramp32(4)}
	widest := someHello()
	widest.Name, widest.Path, widest.MaxPage = strings.Repeat("n", MaxName), strings.Repeat("p", MaxPath), MaxPagePayload
	longest := someRefusal
	longest.Reason = strings.Repeat("é", MaxReason/2)
	return []sample{
		{"hello-decode", someHello()},
		{"hello-gateway", gateway},
		{"hello-widest", widest},
		{"auth", Auth{Sig: ramp64(7)}},
		{"facts", Facts{JSON: []byte(`{"name":"decode-1"}`), Data: "127.0.0.1:9", Draining: true}},
		{"facts-prefill", Facts{JSON: []byte(`{}`)}},
		{"plan", Plan{Signed: []byte("a signed plan"), MACKey: ramp32(9)}},
		{"prompt", Prompt{Attempt: someAttempt, Offset: 65536, IDs: []int32{0, 1, 255, 1<<31 - 1}}},
		{"reserved", Reserved{Attempt: someAttempt, Pages: 12}},
		{"attach", Attach{Attempt: someAttempt, MAC: ramp16(50)}},
		{"grant", Grant{Attempt: someAttempt, Boot: 77, Pages: []GrantedPage{{ID: 3, Gen: 1 << 40}, {ID: 1<<32 - 1, Gen: 2}}, MAC: ramp16(51)}},
		{"page", PageHeader{Attempt: someAttempt, Tag: page.Tag{Boot: 77, ID: 3, Gen: 1 << 40}, Ordinal: 1, Length: 5, MAC: ramp16(52)}},
		{"page-largest", PageHeader{Attempt: someAttempt, Tag: page.Tag{Boot: 1, ID: 1<<32 - 1, Gen: 1<<64 - 1}, Ordinal: 1<<32 - 1, Length: MaxPagePayload}},
		{"manifest", Manifest{Attempt: someAttempt, Tokens: 8000, Pages: 125, Digest: ramp32(60), Root: ramp32(61), Echo: someEcho,
			Verdict: verdict.Served(verdict.Prefill), MAC: ramp16(53)}},
		{"manifest-refusal", Manifest{Attempt: someAttempt, Verdict: longest, MAC: ramp16(54)}},
		{"end", End{Attempt: someAttempt, MAC: ramp16(55)}},
		{"sealed", Sealed{Attempt: someAttempt, Tokens: 8000, Written: 124, Held: 1, Digest: ramp32(62), Root: ramp32(63)}},
		{"output", Output{Attempt: someAttempt, Index: 5, IDs: []int32{65}}},
		{"stop", Stop{Attempt: someAttempt}},
		{"abort", Abort{Attempt: someAttempt, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up"), MAC: ramp16(56)}},
		{"outcome", Outcome{Attempt: someAttempt, Verdict: someRefusal, Finish: FinishLength, Computed: 1, Completion: 2, Reserved: 3, Written: 4, Held: 5,
			Digest: ramp32(64), Root: ramp32(65), PhaseMicroBegin: 6, PhaseMicroEnd: 1 << 50}},
		{"settled", Settled{Attempt: someAttempt}},
		{"ping", Ping{Nonce: 1 << 63, Scan: true}},
		{"pong", Pong{Nonce: 1 << 63, PagesTotal: 1, PagesFree: 2, PagesFenced: 3, PagesHeld: 4, Pins: 5, Active: 6, Queued: 7, Settled: 8, NonzeroFree: 9}},
	}
}
