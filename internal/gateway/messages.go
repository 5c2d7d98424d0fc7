package gateway

import (
	"net/http"
	"strings"

	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/sse"
	"github.com/sluicekv/sluice/internal/verdict"
)

// messagesModel finds the model that a body for /v1/messages is for, and reads the body under its policy. There is one only where its
// workers are said to answer that path themselves: nothing translates.
func (x *walk) messagesModel(body []byte) (m *model, doc *jsonedit.Doc, v verdict.Verdict, param string) {
	var first *jsonedit.Policy
	if sole := x.catalog.sole; sole != nil {
		first = sole.guarded.policies[openai.Messages] // it serves whatever model is named: the body is read once
	}
	doc, no := jsonedit.Read(body, first)
	if no != nil {
		return nil, nil, no.Verdict(), no.Path
	}
	m = x.modelIn(doc)
	if m == nil || m.guarded == nil || m.guarded.policies[openai.Messages] == nil {
		return nil, nil, verdict.Of(verdict.ModelNotFound, verdict.PlanLayer, "there is no such model on /v1/messages; GET /v1/models lists those of the other paths"), "model"
	}
	if p := m.guarded.policies[openai.Messages]; first == nil {
		if doc, no = jsonedit.Read(body, p); no != nil {
			return nil, nil, no.Verdict(), no.Path
		}
	}
	return m, doc, verdict.Verdict{}, ""
}

// credentials are a request's as tenants are found by: clients of Anthropic's API name their key in X-Api-Key. Two keys that differ are
// none, as two Authorization headers are.
func credentials(e openai.Endpoint, h http.Header) http.Header {
	keys := h["X-Api-Key"]
	if e != openai.Messages || len(keys) == 0 {
		return h
	}
	all := append([]string(nil), h["Authorization"]...)
	for _, k := range keys {
		if b := "Bearer " + strings.TrimSpace(k); len(all) == 0 || all[0] != b {
			all = append(all, b)
		}
	}
	return http.Header{"Authorization": all}
}

// appendError appends a verdict as the endpoint's clients read it.
func appendError(b []byte, e openai.Endpoint, v verdict.Verdict, param string) []byte {
	if e == openai.Messages {
		return openai.AppendMessagesError(b, v)
	}
	return openai.AppendError(b, v, param)
}

// appendErrorEvent appends it as the last event of a stream.
func appendErrorEvent(b []byte, e openai.Endpoint, v verdict.Verdict, param string) []byte {
	if e == openai.Messages {
		b = append(b, "event: error\n"...)
	}
	return sse.AppendData(b, appendError(nil, e, v, param))
}

// messagesOnly answers what is not served below /v1/messages in the shape of its API.
func messagesOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, why := http.StatusNotFound, "there is no such path"
		switch {
		case r.URL.Path != "/v1/messages":
		case r.Method == http.MethodPost:
			h(w, r)
			return
		default:
			status, why = http.StatusMethodNotAllowed, "this path takes POST"
			w.Header().Set("Allow", http.MethodPost)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(openai.AppendMessagesErrorOf(nil, status, why))
	}
}
