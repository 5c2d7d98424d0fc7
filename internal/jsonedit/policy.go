package jsonedit

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Engine whose fields a policy knows. The names are those of the fleet's configuration.
type Engine string

const (
	SGLang       Engine = "sglang"
	VLLMNixl     Engine = "vllm-nixl"
	VLLMMooncake Engine = "vllm-mooncake"
	Plain        Engine = "plain" // any OpenAI-compatible server, not disaggregated
)

// disaggregated engines run one request on two legs: one prompt, one sequence, and a count that both legs must say.
func (e Engine) disaggregated() bool { return e != Plain }

// Endpoint that a body is for.
type Endpoint uint8

const (
	Chat         Endpoint = iota // /v1/chat/completions
	Completions                  // /v1/completions
	AnthropicAPI                 // /v1/messages, for plain workers
)

func (e Endpoint) String() string { return [...]string{"chat", "completions", "messages"}[e] }

// UnknownFields says what to do with a field that the engine's table does not have.
type UnknownFields uint8

const (
	PassPublic UnknownFields = iota // pass what the public API defines, strip the rest: the default
	RejectUnknown
	StripUnknown
	PassUnknown // but look for control names inside
)

// ParseUnknown reads a setting: "" is the default, else reject, strip or pass.
func ParseUnknown(s string) (UnknownFields, error) {
	switch s {
	case "":
		return PassPublic, nil
	case "reject":
		return RejectUnknown, nil
	case "strip":
		return StripUnknown, nil
	case "pass":
		return PassUnknown, nil
	}
	return 0, fmt.Errorf("unknown must be reject, strip or pass, not %q", s)
}

// Config of a Policy.
type Config struct {
	Engine   Engine
	Version  string // of the oldest worker that may get the body; "" or one that cannot be read: the newest table
	Endpoint Endpoint
	Unknown  UnknownFields
	// DropControl removes control fields that a client sends instead of refusing the request. Inside another field they are refused
	// all the same. The gateway's own are set either way.
	DropControl bool
	RemoteMedia bool // let engines fetch media from addresses that clients name
	Bounds      Bounds
}

// Policy is the allow-list of one engine, version and endpoint. It is immutable.
type Policy struct {
	cfg    Config
	laws   map[string]*law
	folded map[string]*law // by the name as parsers that ignore case see it
}

// action on a field.
type action uint8

const (
	pass    action = iota // reaches the engine as it stands, if check has nothing against it
	strip                 // means nothing to the engine, or is answered by the gateway: removed
	take                  // removed; the gateway reads it and may set its own
	control               // belongs to the gateway: refused, or removed with DropControl
)

func (a action) String() string { return [...]string{"pass", "strip", "take", "control"}[a] }

// law is what a table says about one field.
type law struct {
	name    string
	action  action
	check   check
	carrier bool                   // the engine unpacks it: names inside are judged too
	within  func(name []byte) bool // of what is not unpacked: names that may not be inside all the same
	since   string                 // first version of the engine that reads it; "" as long as the tables go back
	note    string
}

// check judges a value that would pass; a zero no means that it may.
type check func(d *Doc, v Value) no

type no struct {
	reason Reason
	what   string
}

var (
	everything  = &law{action: pass}
	isControls  = controlNames()
	knownFields map[string]bool
)

// NewPolicy makes the policy of an engine. It panics on an engine or endpoint that has no table: configurations are checked before.
func NewPolicy(cfg Config) *Policy {
	p := &Policy{cfg: cfg, laws: map[string]*law{}, folded: map[string]*law{}}
	version, dated := parseVersion(cfg.Version)
	for _, l := range tableOf(cfg.Engine, cfg.Endpoint) {
		if dated && l.since != "" {
			if since, _ := parseVersion(l.since); version.before(since) {
				continue
			}
		}
		if _, twice := p.laws[l.name]; twice {
			panic("jsonedit: " + l.name + " is in a table twice")
		}
		p.laws[l.name] = &l
	}
	for name, l := range p.laws {
		p.folded[fold([]byte(name))] = l
	}
	return p
}

// Config of the policy.
func (p *Policy) Config() Config { return p.cfg }

// find returns the law on a name, and the name as a string (the table's own if it is there).
func (p *Policy) find(name []byte) (string, *law) {
	if p == nil {
		if known, ok := said[string(name)]; ok {
			return known, everything
		}
		return string(name), everything
	}
	if l, ok := p.laws[string(name)]; ok {
		return l.name, l
	}
	return string(name), p.foreign(name)
}

// said are the names that engines' answers consist of, so that reading a chunk of a stream makes none.
var said = func() map[string]string {
	m := map[string]string{}
	for _, n := range []string{"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "kv_transfer_params",
		"ec_transfer_params", "metrics", "prompt_logprobs", "prompt_token_ids", "prompt_text", "metadata", "error", "text", "output_ids",
		"meta_info", "index", "delta", "message", "role", "content", "logprobs", "finish_reason", "stop_reason", "matched_stop", "token_ids",
		"prompt_tokens", "completion_tokens", "total_tokens", "type", "code", "param"} {
		m[n] = n
	}
	return m
}()

// foreign is the law on a name that the table does not have as it is spelled.
func (p *Policy) foreign(name []byte) *law {
	// The engines that are known here match names exactly (pydantic, msgspec, orjson), but an engine in another language may not:
	// a name that differs from a known one by case only never passes.
	if IsControl(name) {
		return &law{action: control, name: string(name)}
	}
	carrier := carriers[fold(name)]
	_, variant := p.folded[fold(name)]
	switch {
	case p.cfg.Unknown == RejectUnknown:
		return &law{check: refuseUnknown, carrier: carrier}
	case variant:
	case p.cfg.Unknown == PassUnknown:
		return &law{carrier: true}
	case p.cfg.Unknown == PassPublic && public[p.cfg.Endpoint][string(name)]:
		// Engines do not unpack these, and may some day: no transfer parameters pass inside.
		return &law{within: isPairing}
	}
	if !carrier {
		return &law{action: strip, within: isPairing}
	}
	return &law{action: strip, carrier: true}
}

func refuseUnknown(*Doc, Value) no {
	return no{Unknown, "this field is not known"}
}

// judge decides about a member that was scanned.
func (p *Policy) judge(l *law, d *Doc, v Value) (keep bool, n no) {
	switch l.action {
	case strip, take:
		return false, no{}
	case control:
		// A null says nothing, in every SDK.
		if !v.Said() || p.cfg.DropControl {
			return false, no{}
		}
		return false, no{reason: Control}
	}
	if l.check != nil {
		if n := l.check(d, v); n.reason != 0 {
			return true, n
		}
	}
	return true, no{}
}

// whole judges what only the whole body can tell.
func (p *Policy) whole(d *Doc) *Refusal {
	for _, f := range required[p.cfg.Endpoint] {
		if !d.Get(f).Said() {
			return &Refusal{Reason: Invalid, Path: f, What: "is required"}
		}
	}
	if d.Get("stream_options").Said() {
		if on, _ := d.Get("stream").Bool(); !on {
			return &Refusal{Reason: Invalid, Path: "stream_options", What: "is only allowed when stream is true"}
		}
	}
	// Which of the two counts differs between engines.
	if a, b := d.Get("max_tokens"), d.Get("max_completion_tokens"); a.Said() && b.Said() && p.cfg.Endpoint == Chat {
		if string(a.raw) != string(b.raw) {
			return &Refusal{Reason: Invalid, Path: "max_tokens", What: "differs from max_completion_tokens"}
		}
	}
	if !p.cfg.Engine.disaggregated() {
		return nil
	}
	if d.prompt.N > 1 && d.prompt.Shape != Messages {
		return &Refusal{Reason: Unsupported, Path: "prompt", What: "one prompt a request is taken, not " + strconv.Itoa(d.prompt.N)}
	}
	// The engines turn this pair into logprobs of the prompt, which only a leg that computed the prompt has.
	if on, _ := d.Get("echo").Bool(); on && p.cfg.Endpoint == Completions && d.Get("logprobs").Said() {
		return &Refusal{Reason: Unsupported, Path: "echo", What: "is not taken together with logprobs"}
	}
	return nil
}

// Explain prints the policy: each field, what happens to it, and why.
func (p *Policy) Explain(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "FIELD\tACTION\tNOTE")
	names := make([]string, 0, len(p.laws))
	for n := range p.laws {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		l := p.laws[n]
		note := l.note
		if l.since != "" {
			note = strings.TrimPrefix(note+"; since "+l.since, "; ")
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", n, l.action, note)
	}
	return tw.Flush()
}

// IsControl reports whether a name, in any case, is one of the gateway's own on any engine.
func IsControl(name []byte) bool {
	if isControls[string(name)] {
		return true
	}
	f := fold(name)
	if isControls[f] {
		return true
	}
	for _, prefix := range controlPrefixes {
		if strings.HasPrefix(f, prefix) {
			return true
		}
	}
	return false
}

func known(name string) bool { return knownFields[name] }

// release of an engine: 0.5.12.post1 is {0, 5, 12, 1}.
type release [4]int

// parseVersion reads the numbers that a version begins with; anything else is not dated.
func parseVersion(s string) (r release, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(s, "v"), ".", 4)
	for i, part := range parts {
		if i == 3 {
			part = strings.TrimPrefix(part, "post")
		}
		end := 0
		for end < len(part) && '0' <= part[end] && part[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			return r, i >= 2
		}
		r[i] = n
		if end < len(part) {
			return r, i >= 1
		}
	}
	return r, len(parts) >= 2
}

func (r release) before(o release) bool { return slices.Compare(r[:], o[:]) < 0 }
