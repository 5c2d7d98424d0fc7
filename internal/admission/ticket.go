// Package admission is the one way in: Admit at the gateway, Open at a worker. Both make a Ticket, nothing else can, and
// everything downstream (queues, grants, leases, batches) takes a Ticket and never a Plan.
//
// The package is pure: keys, limits and boots come in as arguments.
package admission

import (
	"crypto/ed25519"
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Ticket is proof in memory that a plan was admitted here. The zero Ticket is useless: every method but Valid panics on it.
type Ticket struct{ t *ticket }

type ticket struct {
	plan    Plan
	limit   capacity.Limit
	verdict verdict.Cell
}

// Valid reports whether the ticket was made by Admit or Open and its attempt has no verdict yet (rule 1: a request that
// has a verdict cannot enter a queue, a grant or a handoff).
func (t Ticket) Valid() bool {
	if t.t == nil {
		return false
	}
	if guard.Off(guard.Verdict) {
		return true
	}
	_, done := t.t.verdict.Get()
	return !done
}

// Plan returns the admitted plan.
func (t Ticket) Plan() Plan { return t.must().plan }

// Attempt returns the plan's attempt.
func (t Ticket) Attempt() attempt.ID { return t.must().plan.Attempt }

// Limit returns the limit that the plan was checked against here.
func (t Ticket) Limit() capacity.Limit { return t.must().limit }

// Verdict returns the attempt's verdict cell in this process.
func (t Ticket) Verdict() *verdict.Cell { return &t.must().verdict }

func (t Ticket) must() *ticket {
	if t.t == nil {
		panic("admission: the zero ticket was used")
	}
	return t.t
}

// Admit checks a plan at the gateway. A plan over the limit gets no ticket but a verdict.
func Admit(p Plan, l capacity.Limit) (Ticket, verdict.Verdict) {
	if v := fits(p, l, verdict.Admission); !v.IsZero() && !guard.Off(guard.Admission) {
		return Ticket{}, v
	}
	return Ticket{&ticket{plan: p, limit: l}}, verdict.Verdict{}
}

func fits(p Plan, l capacity.Limit, at verdict.Layer) verdict.Verdict {
	switch {
	case p.PromptTokens == 0:
		return verdict.Of(verdict.Encoding, at, "the prompt has no tokens")
	case p.MaxTokens == 0:
		return verdict.Of(verdict.BadRequest, at, "no completion tokens are asked for")
	case int64(p.PromptTokens) > int64(l.Tokens):
		return verdict.TooLong(at, int(p.PromptTokens), 0, false, l.Tokens, l.Setter)
	case int64(p.PromptTokens)+int64(p.MaxTokens)-1 > int64(l.Tokens):
		return verdict.TooLong(at, int(p.PromptTokens), int(p.MaxTokens), false, l.Tokens, l.Setter)
	}
	return verdict.Verdict{}
}

// Keyring says which gateways may sign plans.
type Keyring interface {
	// Gateway reports whether k is the public key of a gateway of this fleet.
	Gateway(k ed25519.PublicKey) bool
}

// Here is what a worker compares a signed plan with: its own facts, and the state of the connection the plan came on.
type Here struct {
	Role    capacity.Role
	Limit   capacity.Limit // this worker's own
	Boot    page.Boot
	Model   [32]byte
	Session [16]byte
	LastSeq uint64 // of the previous plan on this connection
}

// Open verifies a signed plan at a worker and re-checks it against the worker's own limits: the gateway's view may be stale,
// and a gateway that skipped its own check is caught here, with the same code and, for the same limit, the same words.
// Prefill checks the prompt alone: it never holds generated tokens.
func Open(signed []byte, keys Keyring, here Here) (Ticket, verdict.Verdict) {
	p, err := Verify(signed, keys)
	if err != nil {
		return Ticket{}, verdict.Of(verdict.PlanRefused, verdict.Open, "%v", err)
	}
	own := p.Decode
	if here.Role == capacity.Prefill {
		own = p.Prefill
	}
	refuse := func(format string, args ...any) (Ticket, verdict.Verdict) {
		return Ticket{}, verdict.Of(verdict.PlanRefused, verdict.Open, "%s", fmt.Sprintf(format, args...))
	}
	switch {
	case own.Boot != here.Boot:
		return refuse("the plan is for boot %s of %s, this is boot %s", own.Boot, own.Name, here.Boot)
	case p.Model != here.Model:
		return refuse("the plan is for model %x, this worker runs %x", p.Model[:8], here.Model[:8])
	case p.Session != here.Session:
		return refuse("the plan belongs to another session")
	case p.Seq <= here.LastSeq:
		return refuse("plan %d came after plan %d: replayed or out of order", p.Seq, here.LastSeq)
	}
	check := p
	if here.Role == capacity.Prefill {
		check.MaxTokens = 1
	}
	if v := fits(check, here.Limit, verdict.Open); !v.IsZero() && !guard.Off(guard.Admission) {
		return Ticket{}, v
	}
	return Ticket{&ticket{plan: p, limit: here.Limit}}, verdict.Verdict{}
}
