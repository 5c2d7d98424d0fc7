// Package record is what remains of an attempt: one line, whatever happened, without content.
//
// Records are JSON lines today and leaves of a transparency log later: the meaning of a field does not change casually.
package record

import (
	"encoding/json"
	"time"

	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Phase of an attempt, for Times.
type Phase uint8

const (
	PhaseEncode  Phase = iota // body read to token ids
	PhasePlan                 // admitted, pair chosen, plan signed
	PhaseReserve              // decode's pages granted
	PhasePrefill              // the prompt computed and shipped
	PhaseSeal                 // decode accepted the manifest and its echo agreed
	PhaseHold                 // first byte held until the legs agreed
	PhaseDecode               // generation
	PhaseSettle               // pages back on both legs
	NumPhases
)

var phaseNames = [NumPhases]string{"encode", "plan", "reserve", "prefill", "seal", "hold", "decode", "settle"}

func (p Phase) String() string { return phaseNames[p] }

// Times are durations by phase; a phase that was not reached is 0.
type Times [NumPhases]time.Duration

// MarshalJSON writes {"encode_us":…}, phases that were reached only.
func (t Times) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, d := range t {
		if d == 0 {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, phaseNames[i]...)
		b = append(b, `_us":`...)
		b = appendInt(b, max(d.Microseconds(), 1))
	}
	return append(b, '}'), nil
}

// Pair names the two workers.
type Pair struct {
	Prefill string `json:"prefill,omitzero"`
	Decode  string `json:"decode,omitzero"`
}

// Guard that objected, and whether it only observed.
type Guard struct {
	Name     string `json:"name"`
	Observed bool   `json:"observed,omitzero"`
	Detail   string `json:"detail,omitzero"` // numbers and ids
}

// Record of one attempt. Digest is keyed per scope: equal prompts of two scopes do not look equal.
type Record struct {
	Attempt     string       `json:"attempt"`
	Request     string       `json:"request"`
	Scope       string       `json:"scope"`
	Model       string       `json:"model"`
	Revision    string       `json:"revision"`
	TestTraffic bool         `json:"test_traffic,omitzero"`
	Pair        Pair         `json:"pair,omitzero"`
	Boots       [2]page.Boot `json:"boots"`
	Tokens      struct {
		Planned         uint32 `json:"planned"`
		PrefillComputed uint32 `json:"prefill_computed"` // as it said: 0 of one that was lost, whatever landed (Pages.Written)
		DecodeSealed    uint32 `json:"decode_sealed"`
		Completion      uint32 `json:"completion"`
	} `json:"tokens"`
	Pages struct {
		Reserved uint32 `json:"reserved"`
		Written  uint32 `json:"written"`
		Held     uint32 `json:"held"`
	} `json:"pages"`
	Digest       Hash            `json:"digest"`
	ManifestRoot Hash            `json:"manifest_root"`
	Verdict      verdict.Verdict `json:"verdict"`
	Spoke        []Guard         `json:"spoke"`
	Times        Times           `json:"times"`
	Start        time.Time       `json:"start"`
}

// UnmarshalJSON is the inverse of MarshalJSON, to the microsecond.
func (t *Times) UnmarshalJSON(b []byte) error {
	var m map[string]int64
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	*t = Times{}
	for i, name := range phaseNames {
		t[i] = time.Duration(m[name+"_us"]) * time.Microsecond
	}
	return nil
}
