package actor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Leg of an attempt that a worker plays.
type Leg uint8

const (
	Prefill Leg = iota
	Decode
	Both // a worker that is not disaggregated
)

func (l Leg) String() string { return [...]string{"prefill", "decode", "both"}[l] }

// ParseLeg reads a role.
func ParseLeg(s string) (Leg, error) {
	for _, l := range []Leg{Prefill, Decode, Both} {
		if l.String() == s {
			return l, nil
		}
	}
	return 0, fmt.Errorf("a role is prefill, decode or both, not %q", s)
}

// Kind of a lie.
type Kind string

// Lie is something that a worker does wrong.
type Lie struct {
	Kind Kind
	Leg  Leg
	// Every is which requests of the leg it is told to: each n-th; 0 is each.
	Every int
	// Times is how often it is told before the worker is honest again; 0 is for ever.
	Times int
	// Stale lets decode answer from what its pages held before: the lie costs somebody their privacy. Without it the reply is
	// honest as far as the lie permits.
	Stale bool
	// Wait is how long the slow lies take. Default 30 s: longer than any test's patience.
	Wait time.Duration
	// Host that redirects and handles name; default 192.0.2.1, which nobody has.
	Host string
}

// Seen is when the wire can tell, at best.
type Seen uint8

const (
	AtStatus Seen = iota // by status and headers
	AtBody               // by the prefill leg's body, or decode's first usage: before anything leaves
	AtEnd                // when the reply ends, or breaks off
	Never                // not on the wire: the residual
)

func (s Seen) String() string { return [...]string{"status", "body", "end", "never"}[s] }

// About is what the catalogue says of a kind.
type About struct {
	Kind    Kind
	Legs    []Leg
	Engines []string // "" is all; else sglang, vllm-nixl, vllm-mooncake, plain
	Stream  bool     // streamed replies only
	Whole   bool     // whole replies only
	Slow    bool     // the gateway's own patience is what ends it
	Seen    Seen
	What    string
}

// Applies reports whether a lie can be told by a leg of an engine in a reply of this kind.
func (a About) Applies(engine string, leg Leg, stream bool) bool {
	if leg == Prefill && stream {
		stream = false // a prefill leg is never streamed
	}
	return slices.Contains(a.Legs, leg) && (len(a.Engines) == 0 || slices.Contains(a.Engines, engine)) && !(a.Stream && !stream) && !(a.Whole && stream)
}

// The kinds.
const (
	// What a leg says it did.
	Placeholder   Kind = "placeholder"
	Refused       Kind = "refused"
	Failed        Kind = "failed"
	Unavailable   Kind = "unavailable"
	AbortFinish   Kind = "abort-finish"
	RefusedAside  Kind = "refused-aside"
	ErrorIn200    Kind = "error-in-200"
	ErrorMidway   Kind = "error-midway"
	ErrorNoDone   Kind = "error-no-done"
	CountOne      Kind = "count-one"
	CountShort    Kind = "count-short"
	CountLong     Kind = "count-long"
	CountZero     Kind = "count-zero"
	CountMissing  Kind = "count-missing"
	CountText     Kind = "count-text"
	CountTwice    Kind = "count-twice"
	CountLate     Kind = "count-late"
	NoneComputed  Kind = "none-computed"
	TwoComputed   Kind = "two-computed"
	FinishMissing Kind = "finish-missing"
	Empty         Kind = "empty"
	Silent        Kind = "silent"
	OtherID       Kind = "other-id"
	IDChanges     Kind = "id-changes"
	OtherIndex    Kind = "other-index"
	OtherModel    Kind = "other-model"
	Early         Kind = "early"
	StalePages    Kind = "stale-pages"

	// What prefill hands over.
	HandleMissing  Kind = "handle-missing"
	HandleEmpty    Kind = "handle-empty"
	HandleFlat     Kind = "handle-flat"
	HandlePartial  Kind = "handle-partial"
	HandleForeign  Kind = "handle-foreign"
	HandleBlocks   Kind = "handle-blocks"
	HandleReplayed Kind = "handle-replayed"
	HandleEngine   Kind = "handle-engine"
	HandleHost     Kind = "handle-host"
	HandlePort     Kind = "handle-port"
	HandleShort    Kind = "handle-short"
	HandleCount    Kind = "handle-count"
	HandleUnasked  Kind = "handle-unasked"
	HandleHuge     Kind = "handle-huge"

	// How it says it.
	NoDone      Kind = "no-done"
	CutMidway   Kind = "cut-midway"
	CutAtEnd    Kind = "cut-at-end"
	Reset       Kind = "reset"
	AfterDone   Kind = "after-done"
	Trailing    Kind = "trailing"
	Truncated   Kind = "truncated"
	Garbage     Kind = "garbage"
	HTML        Kind = "html"
	NotUTF8     Kind = "not-utf8"
	NoContent   Kind = "no-content"
	WrongShape  Kind = "wrong-shape"
	GzipBomb    Kind = "gzip-bomb"
	Endless     Kind = "endless"
	LongLine    Kind = "long-line"
	Redirect    Kind = "redirect"
	SlowHeaders Kind = "slow-headers"
	HangHeaders Kind = "hang-headers"
	HangBody    Kind = "hang-body"
	HalfOpen    Kind = "half-open"
)

var (
	anyLeg   = []Leg{Prefill, Decode, Both}
	replying = []Leg{Decode, Both}
	first    = []Leg{Prefill}
	nixl     = []string{"vllm-nixl"}
	pairs    = []string{"sglang", "vllm-nixl", "vllm-mooncake"}
)

var catalogue = []About{
	{Kind: Placeholder, Legs: first, Engines: []string{"sglang"}, Seen: AtBody, What: "the incident: a refused prompt becomes one token, one page is sent, success is said"},
	{Kind: Refused, Legs: first, Seen: AtStatus, What: "prefill says that the prompt is too long; decode answers all the same"},
	{Kind: Failed, Legs: anyLeg, Seen: AtStatus, What: "500 in the engine's own shape"},
	{Kind: Unavailable, Legs: anyLeg, Seen: AtStatus, What: "503"},
	{Kind: AbortFinish, Legs: anyLeg, Seen: AtBody, What: "a refusal in the finish reason of a 200"},
	{Kind: RefusedAside, Legs: anyLeg, Whole: true, Seen: AtBody, What: "a good body with an error beside it, in a field nobody reads"},
	{Kind: ErrorIn200, Legs: anyLeg, Seen: AtBody, What: "the error is the body, or the first event, of a 200"},
	{Kind: ErrorMidway, Legs: replying, Stream: true, Seen: AtEnd, What: "an error event amid the reply, then [DONE]"},
	{Kind: ErrorNoDone, Legs: replying, Stream: true, Seen: AtEnd, What: "an error event that ends the stream without [DONE]"},
	{Kind: CountOne, Legs: anyLeg, Engines: pairs, Seen: AtBody, What: "prompt_tokens is 1"},
	{Kind: CountShort, Legs: anyLeg, Engines: pairs, Seen: AtBody, What: "prompt_tokens is one less"},
	{Kind: CountLong, Legs: anyLeg, Engines: pairs, Seen: AtBody, What: "prompt_tokens is one more"},
	{Kind: CountZero, Legs: anyLeg, Seen: AtBody, What: "prompt_tokens is 0"},
	{Kind: CountMissing, Legs: anyLeg, Seen: AtBody, What: "no usage at all"},
	{Kind: CountText, Legs: anyLeg, Seen: AtBody, What: "prompt_tokens is a string"},
	{Kind: CountTwice, Legs: anyLeg, Whole: true, Seen: AtBody, What: "two usage members: the first is right"},
	{Kind: CountLate, Legs: []Leg{Decode}, Stream: true, Seen: AtEnd, What: "prompt_tokens is right in every chunk and wrong in the last usage"},
	{Kind: NoneComputed, Legs: first, Seen: AtBody, What: "prefill says that it made no token"},
	{Kind: TwoComputed, Legs: first, Seen: AtBody, What: "prefill says that it made two tokens"},
	{Kind: FinishMissing, Legs: anyLeg, Seen: AtEnd, What: "no finish reason"},
	{Kind: Empty, Legs: anyLeg, Seen: AtEnd, What: "success with nothing in it: no choices, no tokens"},
	{Kind: Silent, Legs: replying, Stream: true, Seen: AtEnd, What: "200 and [DONE], nothing between"},
	{Kind: OtherID, Legs: anyLeg, Engines: []string{"vllm-nixl", "vllm-mooncake"}, Seen: AtBody, What: "the answer to another request's id"},
	{Kind: IDChanges, Legs: replying, Stream: true, Seen: AtEnd, What: "chunks of another id amid the stream"},
	{Kind: OtherIndex, Legs: replying, Seen: AtEnd, What: "a choice that nobody asked for"},
	{Kind: OtherModel, Legs: anyLeg, Seen: AtBody, What: "another model's name"},
	{Kind: Early, Legs: []Leg{Decode}, Engines: []string{"sglang", "vllm-mooncake"}, Seen: AtBody, What: "decode answers before prefill has, from pages nobody wrote; prefill then refuses"},
	{Kind: StalePages, Legs: []Leg{Decode}, Seen: Never, What: "everything is said right, and decode reads pages nobody wrote"},

	{Kind: HandleMissing, Legs: first, Engines: nixl, Seen: AtBody, What: "no kv_transfer_params"},
	{Kind: HandleEmpty, Legs: first, Engines: nixl, Seen: AtBody, What: "kv_transfer_params is {}"},
	{Kind: HandleFlat, Legs: first, Engines: nixl, Seen: AtBody, What: "block ids in one list, not one a group"},
	{Kind: HandlePartial, Legs: first, Engines: nixl, Seen: AtBody, What: "no remote_request_id"},
	{Kind: HandleForeign, Legs: first, Engines: nixl, Seen: AtBody, What: "another request's handle of the same worker"},
	{Kind: HandleBlocks, Legs: first, Engines: nixl, Seen: Never, What: "another request's blocks under the own request's id"},
	{Kind: HandleReplayed, Legs: first, Engines: nixl, Seen: AtBody, What: "the handle of the request before, once more"},
	{Kind: HandleEngine, Legs: first, Engines: nixl, Seen: AtBody, What: "another engine's id"},
	{Kind: HandleHost, Legs: first, Engines: nixl, Seen: AtBody, What: "a host that is none of the fleet's"},
	{Kind: HandlePort, Legs: first, Engines: nixl, Seen: AtBody, What: "another port of the right host"},
	{Kind: HandleShort, Legs: first, Engines: nixl, Seen: AtBody, What: "fewer blocks than the prompt takes"},
	{Kind: HandleCount, Legs: first, Engines: nixl, Seen: AtBody, What: "remote_num_tokens is not the prompt's"},
	{Kind: HandleUnasked, Legs: first, Engines: nixl, Seen: AtBody, What: "do_remote_prefill is false: decode would compute by itself, or not"},
	{Kind: HandleHuge, Legs: first, Engines: nixl, Seen: AtBody, What: "a handle of a megabyte"},

	{Kind: NoDone, Legs: replying, Stream: true, Seen: AtEnd, What: "the stream ends well, without [DONE]"},
	{Kind: CutMidway, Legs: replying, Stream: true, Seen: AtEnd, What: "the connection ends amid the stream, at an event's end"},
	{Kind: CutAtEnd, Legs: replying, Stream: true, Seen: AtEnd, What: "everything but the chunk with the finish reason, then [DONE]"},
	{Kind: Reset, Legs: anyLeg, Seen: AtEnd, What: "the connection is reset amid the answer"},
	{Kind: AfterDone, Legs: replying, Stream: true, Seen: AtEnd, What: "more chunks after [DONE]"},
	{Kind: Trailing, Legs: anyLeg, Whole: true, Seen: AtBody, What: "data after the body's JSON"},
	{Kind: Truncated, Legs: anyLeg, Seen: AtEnd, What: "half of what Content-Length promised, or an event that stops in the middle"},
	{Kind: Garbage, Legs: anyLeg, Seen: AtBody, What: "bytes that mean nothing"},
	{Kind: HTML, Legs: anyLeg, Seen: AtStatus, What: "a proxy's page, with 200"},
	{Kind: NotUTF8, Legs: anyLeg, Seen: AtBody, What: "invalid UTF-8 in the text"},
	{Kind: NoContent, Legs: anyLeg, Seen: AtStatus, What: "204"},
	{Kind: WrongShape, Legs: anyLeg, Seen: AtBody, What: "a stream where a body was asked for, or the other way"},
	{Kind: GzipBomb, Legs: anyLeg, Seen: AtStatus, What: "a small compressed body that becomes gigabytes; nobody asked for compression"},
	{Kind: Endless, Legs: anyLeg, Seen: AtEnd, What: "a body, or one reply, that never ends"},
	{Kind: LongLine, Legs: anyLeg, Seen: AtBody, What: "one event, or one field, of many megabytes"},
	{Kind: Redirect, Legs: anyLeg, Seen: AtStatus, What: "307 to another host"},
	{Kind: SlowHeaders, Legs: anyLeg, Slow: true, Seen: AtStatus, What: "headers, a byte at a time"},
	{Kind: HangHeaders, Legs: anyLeg, Slow: true, Seen: AtStatus, What: "no answer"},
	{Kind: HangBody, Legs: anyLeg, Slow: true, Seen: AtEnd, What: "headers, the beginning, and then nothing"},
	{Kind: HalfOpen, Legs: anyLeg, Slow: true, Seen: AtStatus, What: "the request is not read, the connection stays"},
}

// Catalogue of the lies.
func Catalogue() []About { return slices.Clone(catalogue) }

// Lookup finds a kind in the catalogue.
func Lookup(k Kind) (About, bool) {
	for _, a := range catalogue {
		if a.Kind == k {
			return a, true
		}
	}
	return About{}, false
}

// ParseLie reads LEG:KIND, with options after commas: stale, every=N, times=N, wait=DURATION, host=ADDRESS.
func ParseLie(s string) (l Lie, err error) {
	head, options, _ := strings.Cut(s, ",")
	leg, kind, ok := strings.Cut(head, ":")
	if !ok {
		return l, fmt.Errorf("a lie is LEG:KIND, not %q", s)
	}
	if l.Leg, err = ParseLeg(leg); err != nil {
		return l, err
	}
	about, ok := Lookup(Kind(kind))
	if !ok {
		return l, fmt.Errorf("no lie is called %q; sluice fake lies lists them", kind)
	}
	if !slices.Contains(about.Legs, l.Leg) {
		return l, fmt.Errorf("%s cannot tell the lie %s", l.Leg, kind)
	}
	l.Kind = Kind(kind)
	for o := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "":
		case "stale":
			l.Stale = true
		case "every":
			_, err = fmt.Sscanf(value, "%d", &l.Every)
		case "times":
			_, err = fmt.Sscanf(value, "%d", &l.Times)
		case "wait":
			l.Wait, err = time.ParseDuration(value)
		case "host":
			l.Host = value
		default:
			err = fmt.Errorf("a lie has no option %q", name)
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", o, err)
		}
	}
	return l, nil
}

// Is reports whether the lie is one of these; a nil lie is none.
func (l *Lie) Is(kinds ...Kind) bool { return l != nil && slices.Contains(kinds, l.Kind) }

// Patience of the slow lies.
func (l *Lie) patience() time.Duration {
	if l.Wait > 0 {
		return l.Wait
	}
	return 30 * time.Second
}

// Elsewhere is a host that is none of the fleet's.
func (l *Lie) Elsewhere() string {
	if l.Host != "" {
		return l.Host
	}
	return "192.0.2.1"
}

// Explain prints the catalogue.
func Explain(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "LIE\tLEGS\tENGINES\tREPLIES\tSEEN\tWHAT")
	for _, a := range catalogue {
		legs := make([]string, len(a.Legs))
		for i, l := range a.Legs {
			legs[i] = l.String()
		}
		replies := "all"
		switch {
		case a.Stream:
			replies = "streamed"
		case a.Whole:
			replies = "whole"
		}
		engines := strings.Join(a.Engines, ",")
		if engines == "" {
			engines = "all"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", a.Kind, strings.Join(legs, ","), engines, replies, a.Seen, a.What)
	}
	return tw.Flush()
}
