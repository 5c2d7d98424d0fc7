// Package capacity says how many tokens fit: the one function of facts that workers, gateway and check share.
//
// The incident this product exists for was two numbers that nobody compared: a context of 1,048,576 tokens and a KV
// pool of 681,280. The comparison is here, once. Pure: no clock, no socket, no logger.
package capacity

import "fmt"

// Role of a worker.
type Role string

const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "both" // plain, not disaggregated
)

// Facts are what a worker says of itself, or what a log, a manifest or a config file says of it. Tokens throughout.
// A zero number is a fact that could not be had.
type Facts struct {
	Name        string `json:"name"`
	Engine      string `json:"engine"` // native | sglang | vllm
	Version     string `json:"version"`
	Role        Role   `json:"role"`
	PoolTokens  int    `json:"pool_tokens"`         // KV slots of the pool
	PageSize    int    `json:"page_size"`           // tokens a page; 0 reads as 1
	Context     int    `json:"context"`             // longest sequence the model or its flags allow
	Reserved    int    `json:"reserved_tokens"`     // slots the engine never gives to one request (engine margins)
	MaxPrompt   int    `json:"max_prompt,omitzero"` // the engine's own cap on a prompt, if it has one
	DType       string `json:"dtype,omitzero"`      // of the KV cache
	Model       string `json:"model,omitzero"`
	Revision    string `json:"revision,omitzero"`
	Fingerprint string `json:"fingerprint,omitzero"` // native: hex of the model fingerprint
	Connector   string `json:"connector,omitzero"`
	Boot        string `json:"boot,omitzero"`
	EncryptData bool   `json:"encrypt_data,omitzero"` // native: data links run over TLS, too; both ends of a pair must say the same
}

// Limit is how many tokens of one sequence fit, and what set it.
type Limit struct {
	Tokens int    `json:"tokens"`
	Setter string `json:"setter"` // e.g. "the KV pool of prefill p0" or "the context of decode d0"
	Node   string `json:"node"`
	Pool   bool   `json:"pool"` // a pool set it, not a context
}

// Usable is the pool of f that one sequence can have: whole pages, less the reserve. Never negative.
func (f Facts) Usable() int {
	page := max(f.PageSize, 1)
	return max((f.PoolTokens-f.Reserved)/page*page, 0)
}

// who names the worker for people: its role, and its name if that says more.
func (f Facts) who() string {
	if f.Name == "" || f.Name == string(f.Role) {
		return string(f.Role)
	}
	return string(f.Role) + " " + f.Name
}

// Node is the limit of one worker: the smaller of its usable pool and its context (and its own cap on a prompt).
// An unknown pool or context (0) gives a limit of 0: what is not known does not fit.
func Node(f Facts) Limit {
	l := Limit{Tokens: f.Context, Node: f.Name, Setter: "the context of " + f.who()}
	if f.MaxPrompt > 0 && f.MaxPrompt < l.Tokens {
		l.Tokens, l.Setter = f.MaxPrompt, "the longest prompt of "+f.who()
	}
	if u := f.Usable(); u < l.Tokens {
		l.Tokens, l.Pool, l.Setter = u, true, "the KV pool of "+f.who()
	}
	return l
}

// Pair is the limit of a pair: the smaller of the two; prefill is named when they are equal.
func Pair(prefill, decode Facts) Limit {
	p, d := Node(prefill), Node(decode)
	if d.Tokens < p.Tokens {
		return d
	}
	return p
}

// Widest is the largest of the limits: what a fleet can promise when a request may use any of its pairs.
func Widest(ls ...Limit) (w Limit) {
	for _, l := range ls {
		if l.Tokens > w.Tokens {
			w = l
		}
	}
	return w
}

// Shortfall is the error of a worker whose pool cannot hold its context (rule 2).
type Shortfall struct {
	Role          Role
	Pool, Context int // usable pool tokens, context tokens
}

func (s Shortfall) Error() string {
	return fmt.Sprintf("%s: the KV pool holds %d tokens but the context is %d: a prompt in between could be accepted and not be held; "+
		"raise --%s-kv-tokens to at least %d, or lower --context to %d (or pass --serve-smaller-context to advertise %d)",
		s.Role, s.Pool, s.Context, s.Role, s.Context, s.Pool, s.Pool)
}

// CheckStart compares a worker's pool with its context. It returns the facts to advertise: unchanged when the context
// fits, with the smaller context when smaller is set, else a Shortfall.
func CheckStart(f Facts, smaller bool) (Facts, error) {
	u := f.Usable()
	if u >= f.Context {
		return f, nil
	}
	if !smaller || u == 0 {
		return f, Shortfall{f.Role, u, f.Context}
	}
	f.Context = u
	return f, nil
}

// PagesFor is the number of pages of pageSize tokens that hold n tokens.
func PagesFor(n, pageSize int) int { return (n + pageSize - 1) / pageSize }
