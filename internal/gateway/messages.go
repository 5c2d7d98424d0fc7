package gateway

import (
	"bytes"
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
	doc, no := jsonedit.Read(body, nil)
	if no != nil {
		return nil, nil, no.Verdict(), no.Path
	}
	m = x.modelIn(doc)
	if m == nil || m.guarded == nil || m.guarded.policies[openai.Messages] == nil {
		return nil, nil, verdict.Of(verdict.ModelNotFound, verdict.PlanLayer, "there is no such model on /v1/messages; GET /v1/models lists those of the other paths"), "model"
	}
	if doc, no = jsonedit.Read(body, m.guarded.policies[openai.Messages]); no != nil {
		return nil, nil, no.Verdict(), no.Path
	}
	for _, name := range []string{"system", "messages"} {
		where := doc.Get(name)
		if name == "system" {
			if fetched(where) {
				return nil, nil, byAddress(), name
			}
			continue
		}
		found := false
		where.Each(func(_ []byte, one jsonedit.Value) bool {
			found = fetched(one.Get("content"))
			return !found
		})
		if found {
			return nil, nil, byAddress(), name
		}
	}
	return m, doc, verdict.Verdict{}, ""
}

func byAddress() verdict.Verdict {
	return verdict.Of(verdict.Unsupported, verdict.Parser, "media by address are not fetched: put them into the body")
}

// fetched reports whether content blocks name an address that the worker would fetch. In this dialect blocks have blocks inside: results
// of tools, documents.
func fetched(content jsonedit.Value) (found bool) {
	if content.Kind() != jsonedit.Array {
		return false
	}
	content.Each(func(_ []byte, block jsonedit.Value) bool {
		if block.Kind() != jsonedit.Object {
			return true
		}
		block.Each(func(name []byte, v jsonedit.Value) bool {
			switch {
			case string(name) == "input": // of a tool: data
			case string(name) == "content":
				found = fetched(v)
			case v.Kind() == jsonedit.Object:
				v.Each(func(name []byte, in jsonedit.Value) bool {
					found = isAddress(name, in) || string(name) == "content" && fetched(in)
					return !found
				})
			default:
				found = isAddress(name, v)
			}
			return !found
		})
		return !found
	})
	return found
}

func isAddress(name []byte, v jsonedit.Value) bool {
	if !bytes.HasSuffix(bytes.ToLower(name), []byte("url")) || v.Kind() != jsonedit.String {
		return false
	}
	text, ok := v.Text()
	return !ok || len(text) < 5 || !bytes.EqualFold(text[:5], []byte("data:"))
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
