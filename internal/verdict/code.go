package verdict

import "fmt"

// Code says what the outcome is. The numbers are on the wire: append, never renumber.
type Code uint8

const (
	None              Code = iota // no verdict yet
	OK                            // served: every token computed from pages this attempt wrote
	BadRequest                    // the request is malformed
	Unsupported                   // a field that would change the reply and is not supported
	BodyTooLarge                  // over the body limit
	Unauthorized                  // no or unknown API key
	Forbidden                     // the tenant may not use this model
	ModelNotFound                 // no such model in the fleet
	ContextLength                 // prompt, or prompt + max_tokens, over the limit
	Encoding                      // the prompt cannot be encoded (invalid UTF-8, template failed)
	RateLimited                   // tenant or queue full; try again
	Overloaded                    // no pair can take it now
	PoolExhausted                 // not enough free pages within the deadline
	ShuttingDown                  // draining
	ModelOff                      // switched off by an operator
	ClientGone                    // the client hung up
	Deadline                      // out of time
	PeerLost                      // the other leg's connection ended
	PlanRefused                   // a plan that this worker may not run: signature, session, sequence, boot, fingerprint
	ProtocolViolation             // a peer broke the wire's rules
	GateRefused                   // a page frame without a live grant, or with a tag that is not ours
	MACMismatch                   // a page or manifest whose MAC is wrong
	CountMismatch                 // tokens or pages do not add up to the plan
	DigestMismatch                // the legs computed from other token ids
	RootMismatch                  // the manifest's root is not the root of what landed
	EchoMismatch                  // decode's last position disagrees with prefill's
	TagMismatch                   // a view met a page that is not this lease's
	ZeroViolation                 // a page was not zero when granted
	LegsDisagree                  // the gateway saw the legs contradict each other
	EngineFailed                  // the engine failed (non-finite logits, internal error)
	Internal                      // a broken invariant
	KeyOff                        // the API key is known, and switched off
	numCodes
)

// About holds the fixed properties of a code: its name on the wire of humans, HTTP status, OpenAI error type and code.
type About struct {
	Name   string
	Status int
	Type   string // OpenAI error.type
	API    string // OpenAI error.code; empty means Name
	Retry  bool   // nothing of the attempt can be at fault: a new attempt on another pair may be made, once, if no byte was sent
	Proof  bool   // the legs contradict each other: the pair rests (design rule 6)
}

var abouts = [numCodes]About{
	None:              {Name: "none", Status: 500, Type: "server_error"},
	OK:                {Name: "ok", Status: 200},
	BadRequest:        {Name: "invalid_request", Status: 400, Type: "invalid_request_error", API: "invalid_request_error"},
	Unsupported:       {Name: "unsupported_parameter", Status: 400, Type: "invalid_request_error"},
	BodyTooLarge:      {Name: "body_too_large", Status: 413, Type: "invalid_request_error"},
	Unauthorized:      {Name: "invalid_api_key", Status: 401, Type: "authentication_error"},
	Forbidden:         {Name: "model_not_allowed", Status: 403, Type: "permission_error"},
	ModelNotFound:     {Name: "model_not_found", Status: 404, Type: "invalid_request_error"},
	ContextLength:     {Name: "context_length_exceeded", Status: 400, Type: "invalid_request_error"},
	Encoding:          {Name: "invalid_prompt", Status: 400, Type: "invalid_request_error"},
	RateLimited:       {Name: "rate_limit_exceeded", Status: 429, Type: "rate_limit_error"},
	Overloaded:        {Name: "overloaded", Status: 503, Type: "server_error", Retry: true},
	PoolExhausted:     {Name: "kv_pool_exhausted", Status: 503, Type: "server_error", Retry: true},
	ShuttingDown:      {Name: "shutting_down", Status: 503, Type: "server_error"},
	ModelOff:          {Name: "model_off", Status: 503, Type: "server_error"},
	ClientGone:        {Name: "client_closed_request", Status: 499, Type: "invalid_request_error"},
	Deadline:          {Name: "deadline_exceeded", Status: 504, Type: "server_error"},
	PeerLost:          {Name: "worker_lost", Status: 502, Type: "server_error", Retry: true},
	PlanRefused:       {Name: "plan_refused", Status: 502, Type: "server_error", Retry: true},
	ProtocolViolation: {Name: "protocol_violation", Status: 502, Type: "server_error"},
	GateRefused:       {Name: "gate_refused", Status: 502, Type: "server_error", Proof: true},
	MACMismatch:       {Name: "mac_mismatch", Status: 502, Type: "server_error", Proof: true},
	CountMismatch:     {Name: "count_mismatch", Status: 502, Type: "server_error", Proof: true},
	DigestMismatch:    {Name: "digest_mismatch", Status: 502, Type: "server_error", Proof: true},
	RootMismatch:      {Name: "root_mismatch", Status: 502, Type: "server_error", Proof: true},
	EchoMismatch:      {Name: "echo_mismatch", Status: 502, Type: "server_error", Proof: true},
	TagMismatch:       {Name: "tag_mismatch", Status: 500, Type: "server_error", Proof: true},
	ZeroViolation:     {Name: "page_not_zero", Status: 500, Type: "server_error", Proof: true},
	LegsDisagree:      {Name: "legs_disagree", Status: 502, Type: "server_error", Proof: true},
	EngineFailed:      {Name: "engine_failed", Status: 500, Type: "server_error"},
	Internal:          {Name: "internal_error", Status: 500, Type: "server_error"},
	KeyOff:            {Name: "key_off", Status: 403, Type: "permission_error"},
}

// About returns the fixed properties of c; an unknown code (a newer peer's) reads as Internal.
func (c Code) About() About {
	if c >= numCodes {
		c = Internal
	}
	a := abouts[c]
	if a.API == "" {
		a.API = a.Name
	}
	return a
}

// Known reports whether c is one of this build's codes other than None.
func (c Code) Known() bool { return c > None && c < numCodes }

func (c Code) String() string {
	if c >= numCodes {
		return fmt.Sprintf("code(%d)", uint8(c))
	}
	return abouts[c].Name
}

// MarshalText writes the name.
func (c Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name that String writes.
func (c *Code) UnmarshalText(b []byte) error {
	for i := range abouts {
		if abouts[i].Name == string(b) {
			*c = Code(i)
			return nil
		}
	}
	return fmt.Errorf("verdict: unknown code %q", b)
}
