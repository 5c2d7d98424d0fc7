// Package wire is the frames: a pure, fuzzed codec. It owns bytes and lengths, no socket and no policy.
//
// # Links
//
// Control: gateway to worker, TLS 1.3 with pinned keys. Data: prefill to decode, plain TCP whose hello is signed and whose frames carry
// MACs under the attempt's key (TLS 1.3 too when both ends ask for it). Every link begins with one Hello each way.
//
// # Framing
//
//	offset 0  u32  length of everything after this field
//	offset 4  u8   wire version
//	offset 5  u8   frame kind
//	offset 6  u16  flags, 0
//	offset 8       body
//
// Little endian. Unknown kinds, unknown flags, trailing bytes and over-long lengths are errors that end the connection: there is
// nothing to skip. A length is checked against the kind's bound before a byte of the body is read, so memory is bounded by
// configuration, not by a peer.
//
// # An attempt, in frames
//
//	gateway -> decode   Plan                 decode -> gateway   Reserved | Outcome
//	gateway -> prefill  Plan, Prompt…        prefill -> decode   Attach        decode -> prefill  Grant
//	prefill -> decode   Page…, Manifest, End                     prefill -> gateway  Outcome
//	decode -> gateway   Sealed, Output…, Outcome                 both -> gateway     Settled (pages back)
//	anyone, any time    Abort
package wire

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Version of the wire. A peer with another is refused by name.
const Version = 1

// Frame is one of the structs below.
type Frame interface{ Kind() Kind }

// Role of the sender of a hello.
type Role uint8

const (
	RoleGateway Role = 1
	RolePrefill Role = 2
	RoleDecode  Role = 3
)

func (r Role) String() string {
	switch r {
	case RoleGateway:
		return "gateway"
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Hello opens a link, each way. It binds both ends: a difference in version, model or geometry refuses the pair and names both values.
// A gateway's Geometry is zero.
//
//	role u8 · name u8+n · boot u64 · model [32] · geometry (tokens, layers, kv heads, head dim u32; layout u8)
//	session [16] · path u8+n · max page u32 · key [32]
type Hello struct {
	Role     Role
	Name     string // at most 64 bytes
	Boot     page.Boot
	Model    [32]byte // fingerprint of weights, tokenizer, rope and dtype
	Geometry page.Geometry
	Session  [16]byte // random, of this connection: plans on it are bound to the worker's, signatures of Auth to both
	Path     string   // numeric path of the kernels ("avx2", "go"): echoes of one path compare bit for bit; at most 32 bytes
	MaxPage  uint32   // largest page payload that the sender takes, in bytes
	Key      [32]byte // Ed25519 public key (data links; on control links TLS has it)
}

// Auth follows the Hellos on a data link: Sig is over "sluice data v1\0" || own role || both encoded Hellos (dialler's first).
//
//	signature [64]
type Auth struct{ Sig [64]byte }

// Facts is a worker's word on itself: after the hello, and again whenever it changes. JSON is capacity.Facts, at most 16 KiB.
//
//	draining u8 · data u8+n · json u32+n
type Facts struct {
	JSON     []byte
	Data     string // host:port of the data socket, of decode
	Draining bool
}

// Plan carries a signed plan and, on this leg's channel only, the attempt's MAC key.
//
//	mac key [32] · signed u16+n
type Plan struct {
	Signed []byte // admission.Sign
	MACKey [32]byte
}

// Prompt carries token ids to prefill, in order, at most PromptChunk a frame.
//
//	attempt [16] · offset u32 · count u32 · count × id i32
type Prompt struct {
	Attempt attempt.ID
	Offset  uint32
	IDs     []int32
}

// Reserved: decode has opened the plan and holds the pages; prefill's plan may go out.
//
//	attempt [16] · pages u32
type Reserved struct {
	Attempt attempt.ID
	Pages   uint32
}

// Attach: prefill is ready to take the grant of an attempt on this data link.
//
//	attempt [16] · mac [16]
type Attach struct {
	Attempt attempt.ID
	MAC     [16]byte
}

// Grant is decode's permission to write the named tags, each once: Tags[i] is for page ordinal i. They all have Boot.
//
//	attempt [16] · boot u64 · count u32 · count × (page u32, generation u64) · mac [16]
type Grant struct {
	Attempt attempt.ID
	Boot    page.Boot
	Pages   []GrantedPage // at most MaxGrantPages
	MAC     [16]byte
}

// GrantedPage is a tag without its boot.
type GrantedPage struct {
	ID  page.ID
	Gen page.Generation
}

// PageHeader is the head of a page frame; the payload of Length bytes follows it on the wire and is read into staging by
// the transport, not by this codec.
//
//	attempt [16] · boot u64 · page u32 · generation u64 · ordinal u32 · length u32 · mac [16] · payload [length]
type PageHeader struct {
	Attempt attempt.ID
	Tag     page.Tag
	Ordinal uint32
	Length  uint32
	MAC     [16]byte
}

// Manifest is prefill's closing statement. MAC is over all of it.
//
//	attempt [16] · tokens u32 · pages u32 · digest [32] · root [32] · echo (8 × id i32, 8 × logit f32) · verdict · mac [16]
//
//	A verdict, here and below: code u8 · layer u8 · status u16 · reason u16+n
type Manifest struct {
	Attempt attempt.ID
	Tokens  uint32   // whose KV was computed
	Pages   uint32   // sent
	Digest  [32]byte // of the token ids that were computed
	Root    [32]byte // over the page MACs in ordinal order (RootOf)
	Echo    Echo
	Verdict verdict.Verdict // whole: never a boolean
	MAC     [16]byte
}

// End marks that nothing follows for the attempt. A link that just ends is a lost peer.
//
//	attempt [16] · mac [16]
type End struct {
	Attempt attempt.ID
	MAC     [16]byte
}

// Sealed: decode accepted the manifest and its own last position agreed with the echo.
//
//	attempt [16] · tokens u32 · written u32 · held u32 · digest [32] · root [32]
type Sealed struct {
	Attempt       attempt.ID
	Tokens        uint32
	Written, Held uint32 // pages
	Digest, Root  [32]byte
}

// Output carries generated token ids; Index is that of the first.
//
//	attempt [16] · index u32 · count u32 · count × id i32
type Output struct {
	Attempt attempt.ID
	Index   uint32
	IDs     []int32 // at most 4096
}

// Stop asks decode to end a reply well: the gateway found a stop string.
//
//	attempt [16]
type Stop struct{ Attempt attempt.ID }

// Abort ends an attempt early, with the verdict that ended it. On a data link it carries a MAC; on a control link MAC is zero.
//
//	attempt [16] · verdict · mac [16]
type Abort struct {
	Attempt attempt.ID
	Verdict verdict.Verdict
	MAC     [16]byte
}

// Finish reasons of an Outcome.
const (
	FinishNone   uint8 = 0
	FinishStop   uint8 = 1
	FinishLength uint8 = 2
)

// Outcome is a leg's terminal word on an attempt, with what it computed.
//
//	attempt [16] · finish u8 · computed, completion, reserved, written, held u32 · digest [32] · root [32]
//	begin u64 · end u64 · verdict
type Outcome struct {
	Attempt         attempt.ID
	Verdict         verdict.Verdict
	Finish          uint8  // decode
	Computed        uint32 // prefill: prompt tokens; decode: sealed tokens
	Completion      uint32 // decode
	Reserved        uint32 // pages
	Written         uint32 // prefill: sent
	Held            uint32
	Digest, Root    [32]byte
	PhaseMicroBegin uint64 // microseconds from the plan's arrival to the begin of this leg's main work
	PhaseMicroEnd   uint64 // and to its end
}

// Settled: the leg's pages of the attempt are fenced, drained, zeroed and free.
//
//	attempt [16]
type Settled struct{ Attempt attempt.ID }

// Ping asks a worker for its status; Pong answers with the same nonce.
//
//	nonce u64 · scan u8
type Ping struct {
	Nonce uint64
	Scan  bool // also scan the free pages for non-zero bytes
}

// Pong is a worker's accounting at one moment.
//
//	nonce u64 · total, free, fenced, held, pins, active, queued u32 · settled u64 · nonzero free u64
type Pong struct {
	Nonce                                         uint64
	PagesTotal, PagesFree, PagesFenced, PagesHeld uint32
	Pins                                          uint32
	Active, Queued                                uint32 // attempts
	Settled                                       uint64 // attempts settled since boot
	NonzeroFree                                   uint64 // bytes found non-zero in free pages at this moment; counted only when Scan was asked
}

func (Hello) Kind() Kind      { return KindHello }
func (Auth) Kind() Kind       { return KindAuth }
func (Facts) Kind() Kind      { return KindFacts }
func (Plan) Kind() Kind       { return KindPlan }
func (Prompt) Kind() Kind     { return KindPrompt }
func (Reserved) Kind() Kind   { return KindReserved }
func (Attach) Kind() Kind     { return KindAttach }
func (Grant) Kind() Kind      { return KindGrant }
func (PageHeader) Kind() Kind { return KindPage }
func (Manifest) Kind() Kind   { return KindManifest }
func (End) Kind() Kind        { return KindEnd }
func (Sealed) Kind() Kind     { return KindSealed }
func (Output) Kind() Kind     { return KindOutput }
func (Stop) Kind() Kind       { return KindStop }
func (Abort) Kind() Kind      { return KindAbort }
func (Outcome) Kind() Kind    { return KindOutcome }
func (Settled) Kind() Kind    { return KindSettled }
func (Ping) Kind() Kind       { return KindPing }
func (Pong) Kind() Kind       { return KindPong }
