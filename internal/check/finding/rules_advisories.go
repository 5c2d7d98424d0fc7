package finding

import (
	"fmt"
	"sort"
	"strings"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// advisories holds every entry against every node, and pair entries against pairs of the same model.
func (f *Fleet) advisories(c *collector) {
	open := map[*facts.Node]*undecided{}
	for _, n := range f.Nodes {
		if n.Text(facts.Engine) == "" && n.Text(facts.Starlette) == "" {
			continue
		}
		env := advisory.NodeEnv(n)
		for _, e := range f.Advisories {
			if e.Specific.Sluice.Scope != "node" || !e.For(n.Text(facts.Engine)) {
				continue
			}
			m := e.Hold(f.release(n), env)
			if _, uncertain := advisory.Uncertain(f.release(n).Version); uncertain && f.release(n).Version != "" && m.Release == advisory.False &&
				e.Specific.Sluice.Severity == "high" && !e.Predicate().Bare() && e.Predicate().Eval(env) == advisory.True {
				// A build of one's own may lack a fix that its number promises.
				m.Release, m.Config = advisory.Unknown, advisory.True
			}
			f.match(c, open, m, n, n.Name)
		}
	}
	for _, g := range f.groups {
		f.pairAdvisories(c, open, g)
	}
	var nodes []*facts.Node
	for n := range open {
		nodes = append(nodes, n)
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Name < nodes[j].Name })
	for _, n := range nodes {
		u := open[n]
		why := "the version"
		if len(u.facts) > 0 {
			why = strings.Join(sortedKeys(u.facts), ", ")
		}
		c.add(Undecided, Low, n.Name, firstSource(n), "give the check what is missing", "%d advisories depend on facts that are not known (%s): %s", len(u.ids), why, strings.Join(sortedKeys(u.ids), ", "))
	}
}

type undecided struct {
	ids, facts map[string]bool
}

func sortedKeys(m map[string]bool) (ks []string) {
	for k := range m {
		ks = append(ks, k)
	}
	sort.Strings(ks)
	return ks
}

// match turns a match into a finding of its own when the configuration makes the fault reachable and the release is
// affected, or may be and the fault is a high one; else it is counted as undecided.
func (f *Fleet) match(c *collector, open map[*facts.Node]*undecided, m advisory.Match, n *facts.Node, name string) {
	if !m.Applies() {
		return
	}
	e := m.Entry
	sev, err := ParseSeverity(e.Specific.Sluice.Severity)
	if err != nil {
		panic("finding: " + e.ID + ": " + err.Error()) // checked when the entry was read
	}
	probed, asked := f.Probed[n.Name]
	if asked && e.ID == "SGL-KV-01" {
		switch probed {
		case advisory.False:
			return
		case advisory.True:
			m.Release = advisory.True
		}
	}
	if m.Config != advisory.True || m.Release != advisory.True && (sev < High || e.Predicate().Bare()) {
		u := open[n]
		if u == nil {
			u = &undecided{map[string]bool{}, map[string]bool{}}
			open[n] = u
		}
		u.ids[e.ID] = true
		for _, x := range m.Missing {
			u.facts[x] = true
		}
		if m.Release != advisory.True {
			u.facts["version"] = true
		}
		return
	}
	r := f.release(n)
	said := r.Version
	if said == "" {
		said = "unknown"
	}
	msg := fmt.Sprintf("%s (%s %s; affected %s)", e.Summary, n.Text(facts.Engine), said, e.Ranges())
	if m.Release != advisory.True {
		why := "this release is in a range that is not certain"
		if w, yes := advisory.Uncertain(r.Version); yes {
			why = w
		}
		msg = fmt.Sprintf("possible: %s (%s: it cannot be told from the version; affected %s)", e.Summary, why, e.Ranges())
	}
	if e.ID == "SGL-KV-01" && n.Int(facts.Context) > 0 {
		msg = fmt.Sprintf("%s: pool %s, context %s (%s %s; affected %s)", e.Summary, Thousands(poolOf(n)), Thousands(n.Int(facts.Context)), n.Text(facts.Engine), said, e.Ranges())
	}
	src := n.At(facts.Version).String()
	switch {
	case src != "":
	case f.Version != "":
		src = "--engine-version"
	default:
		src = firstSource(n)
	}
	c.fs = append(c.fs, Finding{ID: e.ID, Severity: sev, Node: name, Message: msg, Fix: e.Specific.Sluice.Fix, Source: src,
		Why: sentence(e.Details), Link: e.Link(), Gateway: e.Specific.Sluice.Gateway, How: e.Specific.Sluice.Note})
}

// sentence is the first sentence of a text.
func sentence(s string) string {
	if i := strings.Index(s, ". "); i > 0 {
		return s[:i+1]
	}
	return s
}

// pairAdvisories holds pair entries against each kind of pair: nodes whose facts are alike are looked at once.
func (f *Fleet) pairAdvisories(c *collector, open map[*facts.Node]*undecided, g group) {
	ps, ds := alike(g.prefill), alike(g.decode)
	for _, e := range f.Advisories {
		if e.Specific.Sluice.Scope != "pair" {
			continue
		}
	pairs:
		for _, p := range ps {
			for _, d := range ds {
				if !e.For(d.Text(facts.Engine)) {
					continue
				}
				m := e.Hold(f.release(d), advisory.PairEnv(p, d))
				if m.Release == advisory.False { // either leg's release counts
					m = e.Hold(f.release(p), advisory.PairEnv(p, d))
				}
				f.match(c, open, m, d, p.Name+" with "+d.Name)
				if m.Certain() {
					break pairs // one pair shows it
				}
			}
		}
	}
}

// alike keeps one node of each set whose facts that matter to a pair are the same.
func alike(ns []*facts.Node) (out []*facts.Node) {
	seen := map[string]bool{}
	for _, n := range ns {
		var b strings.Builder
		for _, k := range []facts.Key{facts.Version, facts.PageSize, facts.KVDType, facts.TP, facts.Checksum, facts.Hybrid, facts.Connector} {
			b.WriteString(n.Text(k))
			b.WriteByte(0)
		}
		if !seen[b.String()] {
			seen[b.String()] = true
			out = append(out, n)
		}
	}
	return out
}
