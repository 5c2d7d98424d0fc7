package openai

import (
	"net/http"

	"github.com/sluicekv/sluice/internal/verdict"
)

// AppendMessagesError appends {"type":"error","error":{"type","message"}} for v: the shape of Anthropic's API.
func AppendMessagesError(b []byte, v verdict.Verdict) []byte {
	return AppendMessagesErrorOf(b, v.Status, Explain(v))
}

// AppendMessagesErrorOf appends that error for a status. The types are those of the public API; of a status that it does not have
// (a 502, a 504) its clients read the class.
func AppendMessagesErrorOf(b []byte, status int, message string) []byte {
	kind := "api_error"
	switch {
	case status == http.StatusUnauthorized:
		kind = "authentication_error"
	case status == http.StatusForbidden:
		kind = "permission_error"
	case status == http.StatusNotFound:
		kind = "not_found_error"
	case status == http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case status == http.StatusGatewayTimeout:
		kind = "timeout_error"
	case status < http.StatusInternalServerError:
		kind = "invalid_request_error"
	}
	b = append(b, `{"type":"error","error":{"type":"`...)
	b = append(b, kind...)
	b = append(b, `","message":`...)
	return append(appendString(b, message), "}}"...)
}
