package openai

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Refusal is a request that was not taken, and the parameter at fault ("" for none). Param may hold a bounded name that
// the client chose; it goes back to that client and nowhere else, while Verdict.Reason is safe to log and record.
type Refusal struct {
	Verdict verdict.Verdict
	Param   string
}

func (r *Refusal) Error() string { return r.Verdict.String() }

// Param is the parameter that a verdict is about on an endpoint. It depends on the code alone, so that the body of a
// refusal reads the same whichever layer refused.
func Param(c verdict.Code, e Endpoint) string {
	switch c {
	case verdict.ContextLength, verdict.Encoding:
		return e.PromptField()
	case verdict.ModelNotFound, verdict.Forbidden, verdict.ModelOff:
		return "model"
	}
	return ""
}

// refused reports whether c is a no that was decided about the request, whose words do not depend on who said it. The
// rest are failures: their message names the layer, because that is what an operator is asked about first.
func refused(c verdict.Code) bool {
	switch c {
	case verdict.Overloaded, verdict.PoolExhausted, verdict.ShuttingDown, verdict.ModelOff:
		return true
	}
	return c.About().Status < 500
}

// Explain is the text that a client sees for v.
func Explain(v verdict.Verdict) string {
	if refused(v.Code) {
		return v.Reason
	}
	return v.Reason + " (layer " + v.Layer.String() + ")"
}

// AppendError appends {"error":{"message","type","param","code"}} for v. An empty param is null.
func AppendError(b []byte, v verdict.Verdict, param string) []byte {
	about := v.Code.About()
	b = append(b, `{"error":{"message":`...)
	b = appendString(b, Explain(v))
	b = append(b, `,"type":`...)
	b = appendString(b, about.Type)
	b = append(b, `,"param":`...)
	if param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, param)
	}
	b = append(b, `,"code":`...)
	b = appendString(b, about.API)
	return append(b, "}}"...)
}

// appendString quotes s; invalid UTF-8 becomes U+FFFD rather than an error, because a reply must not fail on a model's
// half character.
func appendString[B ~[]byte | ~string](b []byte, s B) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
