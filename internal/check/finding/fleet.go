package finding

import (
	"sort"
	"strings"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/source"
)

// Fleet is what the rules look at.
type Fleet struct {
	source.Inventory
	Advisories []*advisory.Entry
	Context    int    // the context to check for; 0: each node's own
	Version    string // assumed for nodes whose release nothing names
	// Probed are the answers of the live probe by node name: True affected, False not. They decide instead of the version.
	Probed map[string]advisory.Truth
	Probes []Finding // what the probe itself has to say

	groups []group
}

// group is the nodes that serve one model.
type group struct {
	model           string
	prefill, decode []*facts.Node
	all             []*facts.Node
}

// compared reports whether THE comparison is made for an engine: not for routers and for engines of which only the
// version is looked at.
func compared(n *facts.Node) bool {
	if n.Int(facts.NodeRank) > 0 { // a further machine of a node whose first one speaks for it
		return false
	}
	switch n.Text(facts.Engine) {
	case "sglang", "vllm", "native", "":
		return true
	}
	return false
}

// serving is the nodes of the fleet that hold KV.
func (f *Fleet) serving() (ns []*facts.Node) {
	for _, n := range f.Nodes {
		if compared(n) && !packagesOnly(n) && len(n.Facts) > 0 {
			ns = append(ns, n)
		}
	}
	return ns
}

// packagesOnly is a list of installed packages, or lines that name a version and nothing else: no node.
func packagesOnly(n *facts.Node) bool {
	for _, x := range n.Facts {
		switch x.Key {
		case facts.Engine, facts.Version, facts.Starlette, facts.LMCache:
		default:
			if x.Weight > facts.Guessed {
				return false
			}
		}
	}
	return !n.Live && !n.Launch && len(n.Events) == 0 && len(n.Facts) > 0 && n.Manifest
}

func (f *Fleet) group() {
	byModel := map[string]*group{}
	var order []string
	for _, n := range f.serving() {
		if n.Text(facts.Engine) == "" {
			continue
		}
		m := n.Group()
		g := byModel[m]
		if g == nil {
			g = &group{model: m}
			byModel[m] = g
			order = append(order, m)
		}
		g.all = append(g.all, n)
		switch n.Text(facts.Role) {
		case "prefill":
			g.prefill = append(g.prefill, n)
		case "decode":
			g.decode = append(g.decode, n)
		}
	}
	sort.Strings(order)
	// Logs may name no model: nodes without one belong to the one model that is named.
	if u := byModel[""]; u != nil && len(order) == 2 {
		g := byModel[order[1]]
		g.all = append(g.all, u.all...)
		g.prefill = append(g.prefill, u.prefill...)
		g.decode = append(g.decode, u.decode...)
		order = order[1:]
	}
	f.groups = nil
	for _, m := range order {
		f.groups = append(f.groups, *byModel[m])
	}
}

// Check holds the fleet against every rule.
func (f *Fleet) Check() []Finding {
	f.group()
	c := &collector{}
	f.problems(c)
	for _, n := range f.Nodes {
		f.missing(c, n)
		f.version(c, n)
		f.disagreements(c, n)
		f.config(c, n)
		f.events(c, n)
	}
	for _, n := range f.serving() {
		f.capacity(c, n)
	}
	f.followers(c)
	for _, g := range f.groups {
		f.pairs(c, g)
	}
	f.exposed(c)
	f.advisories(c)
	c.fs = append(c.fs, f.Probes...)
	Sort(c.fs)
	return c.fs
}

// followers reports further machines of a node whose first machine was not seen.
func (f *Fleet) followers(c *collector) {
	first := map[string]bool{}
	for _, n := range f.serving() {
		first[n.Group()] = true
	}
	for _, n := range f.Nodes {
		if r := n.Int(facts.NodeRank); r > 0 && !first[n.Group()] {
			c.add(MissingFact, Medium, n.Name, n.At(facts.NodeRank).String(), "give the log of the node's first machine (node rank 0), which states pool and context",
				"this is machine %d of a node whose first machine was not seen: nothing was compared", r).Blind = true
		}
	}
}

// release is what is known of a node's release.
func (f *Fleet) release(n *facts.Node) advisory.Release {
	v := n.Text(facts.Version)
	if v == "" {
		v = f.Version
	}
	return advisory.Release{Version: v, Min: n.MinVer, Max: n.MaxVer}
}

// below reports whether a node's release is surely before v; above, surely v or later.
func (f *Fleet) below(n *facts.Node, v string) bool {
	r := f.release(n)
	if r.Version != "" {
		if _, ok := advisory.ParseVersion(r.Version); !ok {
			return false
		}
		return advisory.Compare(r.Version, v) < 0
	}
	return r.Max != "" && advisory.Compare(r.Max, v) <= 0
}

func (f *Fleet) above(n *facts.Node, v string) bool {
	r := f.release(n)
	if r.Version != "" {
		if _, ok := advisory.ParseVersion(r.Version); !ok {
			return false
		}
		return advisory.Compare(r.Version, v) >= 0
	}
	return r.Min != "" && advisory.Compare(r.Min, v) >= 0
}

// names is a few names of many.
func names(ns []*facts.Node) string {
	const few = 4
	var s []string
	for i, n := range ns {
		if i == few && len(ns) > few+1 {
			s = append(s, "and "+itoa(len(ns)-few)+" more")
			break
		}
		s = append(s, n.Name)
	}
	return strings.Join(s, ", ")
}
