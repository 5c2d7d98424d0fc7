package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// enter counts the request against its tenant's limits, before its body is read.
func (x *walk) enter() verdict.Verdict {
	lease, no := x.tenant.Enter(x.start)
	x.lease = lease
	return x.over(no)
}

// overTokens charges what the request is planned to use, and answers one that is over its tenant's limit of tokens.
func (x *walk) overTokens() bool {
	v := x.over(x.lease.Charge(x.plannedTokens(), time.Now()))
	if v.IsZero() {
		return false
	}
	x.refuse(v, "")
	return true
}

func (x *walk) over(no *tenant.Refused) verdict.Verdict {
	if no == nil {
		return verdict.Verdict{}
	}
	x.wait = no.Wait
	x.g.metrics.tenantRefused(x.tenant.Label(), string(no.Limit))
	return no.Verdict
}

// bytesPerToken is what text has at least, mostly: a prompt that nobody counted is planned with so many, until the engine has said.
const bytesPerToken = 3

// plannedTokens is the prompt and the longest reply that was asked for; the end settles what it really was.
func (x *walk) plannedTokens() int {
	if x.guarded == nil {
		return len(x.ids) + x.maxTokens(x.g.limits.ChatTokens)
	}
	prompt := int(x.rec.Tokens.Planned)
	if prompt == 0 {
		prompt = x.guarded.tokens / bytesPerToken
	}
	return prompt + x.maxTokens(x.g.limits.ChatTokens)
}

// find is the model of a name that the tenant may use. One that it may not use does not exist.
func (x *walk) find(name string) *model {
	m := x.catalog.find(name)
	if m == nil || !x.tenant.May(m.name) {
		return nil
	}
	return m
}

// leave ends what the request holds of its tenant's limits. What its legs still compute is counted when they are quiet.
func (x *walk) leave() {
	if x.lease != nil {
		x.lease.Leave(time.Now())
	}
	x.log()
}

// spent tells the tenant's limit and the metrics what an attempt computed.
func (g *Gateway) spent(lease *tenant.Lease, label string, prompt, completion int) {
	prompt, completion = max(prompt, 0), max(completion, 0)
	lease.Spend(prompt+completion, time.Now())
	g.metrics.computed(label, prompt, completion)
}

// computed is the prompt tokens of an attempt that count for its tenant: those that a leg computed; and where its client or the gateway
// went before a leg could say so, those that it was planned with. A fault of a worker costs the tenant nothing.
func computed(r *record.Record) int {
	if n := max(r.Tokens.PrefillComputed, r.Tokens.DecodeSealed); n > 0 {
		return int(n)
	}
	switch r.Verdict.Code {
	case verdict.ClientGone, verdict.Deadline, verdict.ModelOff, verdict.ShuttingDown:
		return int(r.Tokens.Planned)
	}
	return 0
}

// challenge says how to authenticate, as a 401 must.
func challenge(h http.Header, v verdict.Verdict) {
	if v.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
}

// retryAfter is the header's value: whole seconds, rounded up.
func retryAfter(wait time.Duration) string {
	return strconv.FormatInt(max(int64((wait+time.Second-1)/time.Second), 1), 10)
}

// adminTenants answers with the tenants, what they may use and what is left: GET /admin/tenants.
func (g *Gateway) adminTenants(w http.ResponseWriter, _ *http.Request) {
	writeIndented(w, struct {
		Tenants []tenant.Status `json:"tenants"`
	}{g.tenants.Status()})
}
