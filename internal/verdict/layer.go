package verdict

import "fmt"

// Layer names who said it. The numbers are on the wire: append, never renumber.
type Layer uint8

const (
	NoLayer   Layer = iota
	Body            // body limits
	Parser          // JSON and fields
	Tenant          // keys, quotas, allowed models
	Prompt          // encoding and template
	Admission       // the limit, at the gateway
	PlanLayer       // making and signing the plan; choosing a pair
	Open            // a worker's check of the plan
	Reserve         // pages
	Prefill         // prompt computation
	Gate            // where bytes land
	Seal            // decode's acceptance of the manifest
	Echo            // decode's check of content
	Decode          // generation
	Stream          // gateway to client
	Legs            // the gateway's reconciliation
	numLayers
)

var layers = [numLayers]string{"none", "body", "parser", "tenant", "prompt", "admission", "plan", "open", "reserve",
	"prefill", "gate", "seal", "echo", "decode", "stream", "legs"}

func (l Layer) String() string {
	if l >= numLayers {
		return fmt.Sprintf("layer(%d)", uint8(l))
	}
	return layers[l]
}

// MarshalText writes the name.
func (l Layer) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a name that String writes.
func (l *Layer) UnmarshalText(b []byte) error {
	for i, n := range layers {
		if n == string(b) {
			*l = Layer(i)
			return nil
		}
	}
	return fmt.Errorf("verdict: unknown layer %q", b)
}
