package wire

import "fmt"

// Kind of a frame.
type Kind uint8

// The kinds. The numbers are on the wire: append, never renumber.
const (
	KindHello    Kind = 1
	KindAuth     Kind = 2
	KindFacts    Kind = 3
	KindPlan     Kind = 4
	KindPrompt   Kind = 5
	KindReserved Kind = 6
	KindAttach   Kind = 7
	KindGrant    Kind = 8
	KindPage     Kind = 9
	KindManifest Kind = 10
	KindEnd      Kind = 11
	KindSealed   Kind = 12
	KindOutput   Kind = 13
	KindStop     Kind = 14
	KindAbort    Kind = 15
	KindOutcome  Kind = 16
	KindSettled  Kind = 17
	KindPing     Kind = 18
	KindPong     Kind = 19
	numKinds     Kind = 20
)

// Bounds of the strings and lists inside frames, in bytes unless said otherwise.
const (
	MaxName        = 64 // of Hello.Name
	MaxPath        = 32 // of Hello.Path
	MaxAddress     = 255
	MaxFacts       = 16 << 10
	MaxReason      = 1 << 10 // of a verdict
	PromptChunk    = 1 << 16 // ids in one Prompt
	OutputChunk    = 4096    // ids in one Output
	MaxGrantPages  = 1 << 20
	MaxPagePayload = 1 << 28 // page.Geometry.Validate has the same
)

// Largest body of each kind, in bytes. A link may bound a page further (Hello.MaxPage).
const (
	idSize         = 16
	macSize        = 16
	hashSize       = 32
	maxVerdictSize = 1 + 1 + 2 + 2 + MaxReason

	MaxHello    = helloFixed + MaxName + MaxPath
	MaxAuth     = 64
	MaxFactsLen = 1 + 1 + MaxAddress + 4 + MaxFacts
	MaxPlan     = 32 + 2 + maxSigned
	MaxPrompt   = idSize + 4 + 4 + 4*PromptChunk
	MaxReserved = idSize + 4
	MaxAttach   = idSize + macSize
	MaxGrant    = idSize + 8 + 4 + grantedSize*MaxGrantPages + macSize
	PageHead    = idSize + 8 + 4 + 8 + 4 + 4 + macSize // of a page's body, the part that Append and Decode handle
	MaxPageLen  = PageHead + MaxPagePayload
	MaxManifest = idSize + 4 + 4 + 2*hashSize + echoSize + maxVerdictSize + macSize
	MaxEnd      = idSize + macSize
	MaxSealed   = idSize + 3*4 + 2*hashSize
	MaxOutput   = idSize + 4 + 4 + 4*OutputChunk
	MaxStop     = idSize
	MaxAbort    = idSize + maxVerdictSize + macSize
	MaxOutcome  = idSize + 1 + 5*4 + 2*hashSize + 2*8 + maxVerdictSize
	MaxSettled  = idSize
	MaxPing     = 8 + 1
	MaxPong     = 8 + 7*4 + 2*8

	helloFixed  = 1 + 1 + 8 + 32 + geometrySize + 16 + 1 + 4 + 32
	grantedSize = 4 + 8
	echoSize    = EchoWidth * (4 + 4)
)

// maxBodies and kindNames say everything about a kind that its number does not.
var (
	maxBodies = [numKinds]int{
		KindHello: MaxHello, KindAuth: MaxAuth, KindFacts: MaxFactsLen, KindPlan: MaxPlan, KindPrompt: MaxPrompt,
		KindReserved: MaxReserved, KindAttach: MaxAttach, KindGrant: MaxGrant, KindPage: MaxPageLen, KindManifest: MaxManifest,
		KindEnd: MaxEnd, KindSealed: MaxSealed, KindOutput: MaxOutput, KindStop: MaxStop, KindAbort: MaxAbort,
		KindOutcome: MaxOutcome, KindSettled: MaxSettled, KindPing: MaxPing, KindPong: MaxPong,
	}
	kindNames = [numKinds]string{
		KindHello: "hello", KindAuth: "auth", KindFacts: "facts", KindPlan: "plan", KindPrompt: "prompt",
		KindReserved: "reserved", KindAttach: "attach", KindGrant: "grant", KindPage: "page", KindManifest: "manifest",
		KindEnd: "end", KindSealed: "sealed", KindOutput: "output", KindStop: "stop", KindAbort: "abort",
		KindOutcome: "outcome", KindSettled: "settled", KindPing: "ping", KindPong: "pong",
	}
)

// Known reports whether k is a kind of this version.
func (k Kind) Known() bool { return k > 0 && k < numKinds }

func (k Kind) String() string {
	if !k.Known() {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// MaxBody is the largest body of a kind in bytes, 0 for an unknown kind.
func MaxBody(k Kind) int {
	if !k.Known() {
		return 0
	}
	return maxBodies[k]
}
