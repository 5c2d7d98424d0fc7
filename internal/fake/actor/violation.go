package actor

import (
	"fmt"
	"sync"
)

// Rule that a request to a worker broke. A gateway that works breaks none, whatever clients and workers do.
type Rule string

const (
	RuleBody         Rule = "body"           // not strict JSON, or two parsers read it differently
	RulePath         Rule = "path"           // a path that a gateway has no business with
	RuleHeader       Rule = "header"         // a header of the client's reached the engine, or one is missing
	RuleKey          Rule = "key"            // the wrong upstream key, or a client's
	RuleForged       Rule = "forged"         // a value that tests give clients to forge with
	RuleControl      Rule = "control"        // a control field that the gateway does not set
	RuleModel        Rule = "model"          // a model that the worker does not serve
	RuleRoom         Rule = "room"           // missing, guessable or of the wrong shape
	RuleRoomReused   Rule = "room-reused"    // a room that was used before, by any request of the fleet
	RuleRank         Rule = "rank"           // the room or the fields name the wrong data-parallel rank
	RuleBootstrap    Rule = "bootstrap"      // an address that is no prefill's of the fleet
	RuleID           Rule = "id"             // a request id that is missing, reused, differs between legs, or is reserved
	RuleLegs         Rule = "legs"           // the legs got different prompts or limits
	RulePrefillLeg   Rule = "prefill-leg"    // streamed, or more than one token asked for
	RuleNoHandle     Rule = "no-handle"      // a decode leg without the handle that prefill gave
	RuleHandle       Rule = "handle"         // a handle that is not what that prefill gave, byte for byte
	RuleHandleReused Rule = "handle-reused"  // a handle that was used before
	RuleHandleStale  Rule = "handle-stale"   // a handle whose lease has run out
	RuleEngineStale  Rule = "engine-stale"   // decode is told of a prefill process that has ended: for a moment nobody can know
	RuleSalt         Rule = "salt"           // the cache partition is missing or the client's
	RuleTransferID   Rule = "transfer-id"    // missing, guessable or used before
	RuleSequences    Rule = "sequences"      // more than one sequence or prompt
	RuleAbort        Rule = "abort-transfer" // an abort, or a closed connection, while pages were being written
)

// Violation is one broken rule.
type Violation struct {
	Worker string
	Rule   Rule
	What   string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Worker, v.Rule, v.What) }

// Leak is a reply that said what another request had written.
type Leak struct {
	Worker  string
	Request string // id of the reply
	Tokens  int    // tokens of others in it
}

// Values that tests give clients to forge control fields with. A worker that meets one in a request reports it.
const (
	ForgedText = "forged-by-a-client"
	ForgedInt  = 4104104104104104
)

// Reporter is told of violations; a *testing.T is one.
type Reporter interface {
	Errorf(format string, args ...any)
}

// Stage is one test's worth of workers.
type Stage struct {
	report Reporter

	mu         sync.Mutex
	owners     Owner
	violations []Violation
	leaks      []Leak
	ids        map[string]string // request ids that were seen, and by which worker
}

// NewStage makes a stage. Violations are told to r at once; nil only records them.
func NewStage(r Reporter) *Stage { return &Stage{report: r, ids: map[string]string{}} }

// Violate records a broken rule.
func (s *Stage) Violate(worker string, rule Rule, format string, args ...any) {
	v := Violation{worker, rule, fmt.Sprintf(format, args...)}
	s.mu.Lock()
	s.violations = append(s.violations, v)
	r := s.report
	s.mu.Unlock()
	if r != nil {
		r.Errorf("fake worker: %s", v)
	}
}

// Violations so far.
func (s *Stage) Violations() []Violation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Violation(nil), s.violations...)
}

// Leaks so far: replies with text of others that workers have sent. Whether they got past a gateway is for the test to see.
func (s *Stage) Leaks() []Leak {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Leak(nil), s.leaks...)
}

// Quiet ends reports: what a client does to workers behind a test's back is recorded only.
func (s *Stage) Quiet() {
	s.mu.Lock()
	s.report = nil
	s.mu.Unlock()
}

// Arrive gives a request its number.
func (s *Stage) Arrive() Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners++
	return s.owners
}

// leaked records a reply with tokens of others.
func (s *Stage) leaked(l Leak) {
	s.mu.Lock()
	s.leaks = append(s.leaks, l)
	s.mu.Unlock()
}

// Once reports whether an id is new on the stage, and remembers it.
func (s *Stage) Once(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.ids[id]; seen {
		return false
	}
	s.ids[id] = ""
	return true
}
