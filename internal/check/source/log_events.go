package source

import (
	"bytes"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// The events that a log or a counter can show. Each has a finding of its own.
const (
	EventRejected     = "rejected-prompt"   // a prompt over the engine's limit reached the scheduler
	EventTruncated    = "truncated-prompt"  // a prompt was cut to the engine's limit
	EventLateRelease  = "late-release"      // decode gave pages back while the transfer was not known to be over
	EventLateRead     = "late-read"         // pages were read after their owner had given them back
	EventTransfer     = "transfer-failed"   // a transfer or handshake failed and was reported
	EventChecksum     = "checksum-mismatch" // a page's content was not what was sent
	EventMetadata     = "metadata-mismatch" // a row belonged to another request
	EventCanary       = "canary-violation"  // the engine's own page tags did not match
	EventLoadFailed   = "kv-load-failed"    // vLLM: KV could not be loaded and the policy was applied
	EventExpired      = "kv-expired"        // vLLM: a lease ran out before decode read
	EventExpiredReads = "read-after-expiry" // vLLM's counter of reads after the lease
)

// sglangEvents and vllmEvents are the lines, by a piece that only they have.
var sglangEvents = []struct {
	needle, kind string
}{
	{"exceeds the maximum allowed length", EventRejected},
	{"Request length is longer than the KV cache pool size", EventTruncated},
	{"Deferred KV release for room", EventLateRelease},
	{"Decode transfer failed", EventTransfer},
	{"Decode handshake failed", EventTransfer},
	{"Prefill transfer failed", EventTransfer},
	{"Prefill bootstrap failed", EventTransfer},
	{"KV checksum mismatch", EventChecksum},
	{"Metadata corruption detected", EventMetadata},
}

var vllmEvents = []struct {
	needle, kind string
}{
	{"Potentially invalid KV blocks", EventLateRead},
	{"NIXL transfer failure", EventTransfer},
	{"due to KV load failure", EventLoadFailed},
	{"Releasing expired KV blocks", EventExpired},
}

// events reads the lines that an engine writes when something went wrong with pages.
func (s *logScan) events(st *stream, b []byte, at facts.Source) bool {
	for _, e := range sglangEvents {
		if !bytes.Contains(b, []byte(e.needle)) {
			continue
		}
		n := s.current(st, "sglang")
		size := 0
		switch e.kind {
		case EventRejected:
			v, ok := intAfter(b, "Input length (")
			if !ok {
				continue
			}
			size = v
			if l, ok := intAfter(b, "maximum allowed length ("); ok {
				n.Put(facts.MaxPrompt, itoa(l), at, facts.Said)
			}
		case EventTruncated:
			size, _ = intValue(b, "len(req.origin_input_ids)")
		case EventLateRelease:
			if !bytes.Contains(b, []byte("releasing anyway")) && !bytes.Contains(b, []byte("timed out")) {
				continue
			}
		}
		// All ranks of a group print the same line: one rank's are counted.
		if n.eventTP == nil {
			n.eventTP = map[string]string{}
		}
		tp := tensorRank(b)
		if first, ok := n.eventTP[e.kind]; !ok {
			n.eventTP[e.kind] = tp
		} else if first != tp {
			return true
		}
		n.Event(e.kind, at, size)
		return true
	}
	if bytes.Contains(b, []byte("anary")) && (bytes.Contains(b, []byte("violation")) || bytes.Contains(b, []byte("mismatch"))) &&
		bytes.Contains(b, []byte("KV")) {
		s.current(st, "sglang").Event(EventCanary, at, 0)
		return true
	}
	for _, e := range vllmEvents {
		if bytes.Contains(b, []byte(e.needle)) {
			s.current(st, "vllm").Event(e.kind, at, 0)
			return true
		}
	}
	// "Num failed transfers=2, Num KV expired reqs=0, Num notifs after expiry=3": counts since the last such line.
	if bytes.Contains(b, []byte("KV Transfer metrics:")) {
		n := s.current(st, "vllm")
		for _, m := range []struct{ key, kind string }{
			{"Num notifs after expiry=", EventExpiredReads}, {"Num KV expired reqs=", EventExpired}, {"Num failed transfers=", EventTransfer},
		} {
			if v, ok := intAfter(b, m.key); ok && v > 0 {
				n.AddEvent(m.kind, at, v)
			}
		}
		return true
	}
	return false
}
