package advisory

import (
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// Release is what is known of an engine's release: its version, or what the form of its lines allows.
type Release struct {
	Version  string
	Min, Max string // when Version is "": from Min on, before Max; "" for no bound
}

// In reports whether a release lies in the entry's ranges. Unknown: it may.
func (e *Entry) In(r Release) Truth {
	if len(e.Affected) == 0 {
		return Unknown
	}
	in := False
	for _, a := range e.Affected {
		if len(a.Ranges) == 0 {
			in = max(in, True) // no range: every release
		}
		for _, rg := range a.Ranges {
			in = max(in, rg.contains(r))
		}
	}
	if in == True {
		return True
	}
	for _, rg := range e.Specific.Sluice.Uncertain {
		if rg.contains(r) != False {
			return Unknown
		}
	}
	return in
}

func (rg Range) contains(r Release) Truth {
	if r.Version != "" {
		if _, ok := ParseVersion(r.Version); !ok {
			return Unknown
		}
		return truth(rg.has(r.Version))
	}
	if r.Min == "" && r.Max == "" {
		return Unknown
	}
	// Compare the two half-open intervals.
	all, some := false, false
	for i := 0; i < len(rg.Events); i += 2 {
		from, to := rg.Events[i].Introduced, ""
		if i+1 < len(rg.Events) {
			to = rg.Events[i+1].Fixed
			if l := rg.Events[i+1].LastAffected; l != "" {
				to = l + ".post999"
			}
		}
		below := to != "" && r.Min != "" && Compare(r.Min, to) >= 0 // wholly after the range
		above := from != "0" && r.Max != "" && Compare(r.Max, from) <= 0
		if below || above {
			continue
		}
		some = true
		if (from == "0" || r.Min != "" && Compare(r.Min, from) >= 0) && (to == "" || r.Max != "" && Compare(r.Max, to) <= 0) {
			all = true
		}
	}
	switch {
	case all:
		return True
	case some:
		return Unknown
	}
	return False
}

func (rg Range) has(v string) bool {
	in := false
	for _, ev := range rg.Events {
		switch {
		case ev.Introduced == "0" || ev.Introduced != "" && Compare(v, ev.Introduced) >= 0:
			in = true
		case ev.Fixed != "" && Compare(v, ev.Fixed) >= 0:
			in = false
		case ev.LastAffected != "" && Compare(v, ev.LastAffected) > 0:
			in = false
		}
	}
	return in
}

// NodeEnv gives the facts of a node to a predicate, with a few that follow from others.
func NodeEnv(n *facts.Node) Env {
	return func(name string) (string, bool) {
		if name == "dsa" { // sparse attention with an index beside the KV
			a := strings.ToLower(n.Text(facts.Architecture) + " " + n.Text(facts.Model))
			if strings.TrimSpace(a) == "" {
				return "", false
			}
			for _, s := range []string{"dsa", "deepseekv32", "deepseek-v3.2", "glm-5", "glm5"} {
				if strings.Contains(a, s) {
					return "true", true
				}
			}
			return "false", n.Text(facts.Architecture) != ""
		}
		f, ok := n.Get(facts.Key(name))
		if !ok && name == string(facts.Pool) { // what was asked for is the most that the pool can be
			f, ok = n.Get(facts.PoolCap)
		}
		return f.Value, ok
	}
}

// PairEnv gives the facts of two legs.
func PairEnv(prefill, decode *facts.Node) Env {
	p, d := NodeEnv(prefill), NodeEnv(decode)
	return func(name string) (string, bool) {
		if rest, ok := strings.CutPrefix(name, "prefill."); ok {
			return p(rest)
		}
		return d(strings.TrimPrefix(name, "decode."))
	}
}

// Match is an entry held against a node or a pair.
type Match struct {
	Entry   *Entry
	Release Truth // is the release affected?
	Config  Truth // does the configuration make it reachable?
	Missing []string
}

// Applies says whether the match is to be reported at all.
func (m Match) Applies() bool { return m.Release != False && m.Config != False }

// Certain says that both are known.
func (m Match) Certain() bool { return m.Release == True && m.Config == True }

// Hold holds e against a release and facts.
func (e *Entry) Hold(r Release, env Env) Match {
	m := Match{Entry: e, Release: e.In(r)}
	if m.Release == False {
		return m
	}
	m.Config = e.predicate.Eval(env)
	if m.Config == Unknown {
		m.Missing = e.predicate.Missing(env)
	}
	return m
}

// For reports whether e is about an engine.
func (e *Entry) For(engine string) bool {
	return e.Specific.Sluice.Engine == "any" || e.Specific.Sluice.Engine == engine
}
