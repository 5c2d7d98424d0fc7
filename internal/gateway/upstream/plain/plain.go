// Package plain makes plans for OpenAI-compatible workers that are not disaggregated: one leg, the client's body but for what the
// gateway owns.
package plain

import (
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
)

// Plan of an attempt.
func Plan(a web.Asked) web.Plan {
	p := a.Plan()
	p.Usage, p.Every = true, true // nothing was asked for that the client did not ask for
	e := a.Edit()
	if a.SaltAs != "" {
		e.SetText(a.SaltAs, a.Salt)
	}
	p.Decode = a.Call(a.Pair.Decode, e.Body())
	return p
}
