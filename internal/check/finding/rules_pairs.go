package finding

import (
	"fmt"
	"sort"
	"strings"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// pairs compares the nodes of one model: roles with each other, and nodes within a role.
func (f *Fleet) pairs(c *collector, g group) {
	for _, role := range [][]*facts.Node{g.prefill, g.decode} {
		f.withinRole(c, role)
	}
	switch {
	case len(g.prefill) > 0 && len(g.decode) > 0:
	case len(g.prefill)+len(g.decode) > 0:
		seen, other := "prefill", "decode"
		ns := g.prefill
		if len(ns) == 0 {
			seen, other, ns = "decode", "prefill", g.decode
		}
		c.add(OneLeg, Low, "", ns[0].At(facts.Role).String(), "check both legs in one call: give the "+other+" nodes' logs, answers or manifests too",
			"%s: %s of role %s (%s) and no %s node", modelName(g.model), plural(len(ns), "node"), seen, names(ns), other)
		return
	default:
		return
	}
	f.across(c, g)
	f.limitsAcross(c, g)
	f.countsAcross(c, g)
}

// who is a node's role, and its name if that says more.
func who(n *facts.Node) string {
	role := n.Text(facts.Role)
	if role == n.Name {
		return role
	}
	return role + " " + n.Name
}

func modelName(m string) string {
	if m == "" {
		return "the fleet"
	}
	return "model " + m
}

// crossed are the facts that both legs must share.
var crossed = []struct {
	key  facts.Key
	id   string
	flag map[string]string // engine -> flag
}{
	{facts.PageSize, PageSize, map[string]string{"sglang": "--page-size", "vllm": "--block-size"}},
	{facts.KVDType, KVDType, map[string]string{"sglang": "--kv-cache-dtype", "vllm": "--kv-cache-dtype"}},
	{facts.Revision, ModelRevision, map[string]string{"sglang": "--revision", "vllm": "--revision"}},
	{facts.WeightVersion, ModelRevision, map[string]string{"sglang": "--weight-version"}},
	{facts.Model, ModelRevision, map[string]string{"sglang": "--model-path", "vllm": "--model"}},
	{facts.Quantization, ModelRevision, map[string]string{"sglang": "--quantization", "vllm": "--quantization"}},
	{facts.Tokenizer, Tokenizer, map[string]string{"sglang": "--tokenizer-path", "vllm": "--tokenizer"}},
	{facts.Template, Template, map[string]string{"sglang": "--chat-template", "vllm": "--chat-template"}},
	{facts.Speculative, Speculative, map[string]string{"sglang": "--speculative-algorithm", "vllm": "--speculative-config"}},
	{facts.Connector, Connector, map[string]string{"sglang": "--disaggregation-transfer-backend", "vllm": "--kv-transfer-config"}},
	{facts.Engine, Connector, nil},
}

func (f *Fleet) across(c *collector, g group) {
	for _, x := range crossed {
		p, d := values(g.prefill, x.key), values(g.decode, x.key)
		if len(p) == 0 && len(d) == 0 {
			continue
		}
		// One leg silent about an optional thing (a draft model, a template) is a difference when its arguments were seen.
		optional := x.key == facts.Speculative || x.key == facts.Template || x.key == facts.Revision
		if len(p) == 0 || len(d) == 0 {
			if !optional {
				f.uncompared(c, g, x.key)
				continue
			}
			if !argumentsSeen(g.prefill) || !argumentsSeen(g.decode) {
				continue
			}
		} else if same(x.key, p, d) {
			continue
		}
		sev := Medium
		switch x.id {
		case PageSize, KVDType:
			// From 0.5.10 on SGLang's legs exchange both and refuse; vLLM hashes them.
			for _, n := range g.all {
				if n.Text(facts.Engine) == "sglang" && !f.above(n, "0.5.10") {
					sev = High
				}
			}
		case Tokenizer, Template, ModelRevision:
			sev = High
		}
		engine := g.prefill[0].Text(facts.Engine)
		flag := x.flag[engine]
		if flag == "" {
			flag = strings.ReplaceAll(string(x.key), "_", " ")
		}
		src := both2(g.prefill[0], g.decode[0], x.key)
		c.add(x.id, sev, "", src, fmt.Sprintf("give both legs the same %s", flag),
			"%s: %s is %s on prefill (%s) and %s on decode (%s)", modelName(g.model), x.key, list(p), names(g.prefill), list(d), names(g.decode))
	}
}

// uncompared says that one leg does not name a fact that both must share.
func (f *Fleet) uncompared(c *collector, g group, k facts.Key) {
	if k != facts.PageSize && k != facts.KVDType && k != facts.Connector && k != facts.Model {
		return
	}
	for i, ns := range [][]*facts.Node{g.prefill, g.decode} {
		for _, n := range ns {
			if _, ok := n.Get(k); ok {
				continue
			}
			c.add(MissingFact, Low, n.Name, firstSource(n), "give /server_info or the whole start-up log of this node", "%s is not known: it was not compared with the %s leg's", k, [...]string{"decode", "prefill"}[i])
		}
	}
}

func argumentsSeen(ns []*facts.Node) bool {
	for _, n := range ns {
		if _, ok := n.Get(facts.TP); !ok {
			return false
		}
	}
	return true
}

func both2(p, d *facts.Node, k facts.Key) string {
	a, b := p.At(k).String(), d.At(k).String()
	switch {
	case a == "":
		return b
	case b == "":
		return a
	}
	return a + ", " + b
}

// values are the distinct values of k, folded by Same.
func values(ns []*facts.Node, k facts.Key) (vs []string) {
next:
	for _, n := range ns {
		v := n.Text(k)
		if v == "" || v == "auto" {
			continue
		}
		for _, o := range vs {
			if facts.Same(k, v, o) {
				continue next
			}
		}
		vs = append(vs, v)
	}
	sort.Strings(vs)
	return vs
}

func same(k facts.Key, a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if !facts.Same(k, x, y) {
				return false
			}
		}
	}
	return true
}

func list(vs []string) string {
	if len(vs) == 0 {
		return "not set"
	}
	return strings.Join(vs, " or ")
}

// withinRole compares nodes that stand in for each other.
func (f *Fleet) withinRole(c *collector, ns []*facts.Node) {
	if len(ns) < 2 {
		return
	}
	role := ns[0].Text(facts.Role)
	for _, x := range crossed {
		if x.key == facts.Quantization || x.key == facts.Engine {
			continue
		}
		vs := values(ns, x.key)
		if len(vs) < 2 {
			continue
		}
		c.add(x.id, Medium, "", ns[0].At(x.key).String(), "give all "+role+" nodes the same "+strings.ReplaceAll(string(x.key), "_", " "),
			"%s differs between %s nodes: %s", x.key, role, strings.Join(vs, ", "))
	}
	// Pools differ by a few pages honestly; what a node promises should not.
	var lo, hi capacity.Limit
	var loNode *facts.Node
	for _, n := range ns {
		cf := n.Capacity(f.Context)
		if cf.PoolTokens == 0 || cf.Context == 0 {
			continue
		}
		l := capacity.Node(cf)
		if loNode == nil || l.Tokens < lo.Tokens {
			lo, loNode = l, n
		}
		if l.Tokens > hi.Tokens {
			hi = l
		}
	}
	if loNode != nil && lo.Tokens < hi.Tokens {
		c.add(RoleLimits, Medium, "", both(loNode, facts.Pool, facts.Context),
			fmt.Sprintf("give all %s nodes one %s that fits the smallest pool: %d", role, contextFlag(loNode.Text(facts.Engine)), lo.Tokens),
			"%s nodes hold %s to %s tokens of one sequence; the smallest is %s", role, Thousands(lo.Tokens), Thousands(hi.Tokens), lo.Setter)
	}
}

// limitsAcross compares what the legs of any pair can take: the weakest prefill against the most generous decode, and the
// other way round.
func (f *Fleet) limitsAcross(c *collector, g group) {
	type leg struct {
		n     *facts.Node
		f     capacity.Facts
		limit capacity.Limit
	}
	read := func(ns []*facts.Node) (least, most leg, ok bool) {
		for _, n := range ns {
			cf := n.Capacity(f.Context)
			if cf.PoolTokens == 0 || cf.Context == 0 {
				continue
			}
			l := leg{n, cf, capacity.Node(cf)}
			if !ok || l.limit.Tokens < least.limit.Tokens {
				least = l
			}
			if !ok || l.limit.Tokens > most.limit.Tokens {
				most = l
			}
			ok = true
		}
		return
	}
	pl, pm, okP := read(g.prefill)
	dl, dm, okD := read(g.decode)
	if !okP || !okD {
		f.truncation(c, g, 0, 0)
		return
	}
	pair := capacity.Pair(pl.f, dl.f)
	if pl.limit.Tokens != dm.limit.Tokens || pm.limit.Tokens != dl.limit.Tokens {
		small, large := pl, dm
		if dl.limit.Tokens < pl.limit.Tokens {
			small, large = dl, pm
		}
		c.add(PairLimits, Medium, "", both(small.n, facts.Pool, facts.Context),
			fmt.Sprintf("set %s %d on both legs", contextFlag(small.f.Engine), pair.Tokens),
			"%s: %s holds %s tokens of one sequence, %s takes %s; the pair's limit is %s, set by %s", modelName(g.model),
			who(small.n), Thousands(small.limit.Tokens), who(large.n), Thousands(large.limit.Tokens), Thousands(pair.Tokens), pair.Setter)
	}
	f.truncation(c, g, pl.limit.Tokens, dm.limit.Tokens)
}

// truncation looks at auto-truncate: on in one leg only, or on in both with different limits.
func (f *Fleet) truncation(c *collector, g group, prefill, decode int) {
	on := func(ns []*facts.Node) (with, without []*facts.Node) {
		for _, n := range ns {
			switch yes, known := n.Bool(facts.AutoTruncate); {
			case yes:
				with = append(with, n)
			case known:
				without = append(without, n)
			}
		}
		return
	}
	pw, po := on(g.prefill)
	dw, do := on(g.decode)
	if len(pw)+len(dw) == 0 {
		return
	}
	fix := "drop --allow-auto-truncate on both legs"
	src := g.prefill[0].At(facts.AutoTruncate).String()
	if len(pw) == 0 {
		src = dw[0].At(facts.AutoTruncate).String()
	}
	switch {
	case len(po)+len(do) > 0:
		c.add(AutoTruncate, High, "", src, fix, "%s: --allow-auto-truncate is on for %s and off for %s", modelName(g.model), names(append(pw, dw...)), names(append(po, do...)))
	case prefill != decode:
		c.add(AutoTruncate, High, "", src, fix, "%s: --allow-auto-truncate is on and the legs' limits differ (prefill %s, decode %s)", modelName(g.model), Thousands(prefill), Thousands(decode))
	default:
		c.add(AutoTruncate, Low, "", src, fix, "%s: --allow-auto-truncate is on in both legs; replies may be to a part of the prompt", modelName(g.model))
	}
}

// countsAcross compares the prompt tokens that the two roles have counted since they started.
func (f *Fleet) countsAcross(c *collector, g group) {
	sum := func(ns []*facts.Node) (total int, at string, all bool) {
		all = true
		for _, n := range ns {
			v, ok := n.Get(facts.PromptTokens)
			if !ok {
				return 0, "", false
			}
			i, _ := v.Int()
			total += i
			at = v.At.String()
		}
		return
	}
	p, pAt, okP := sum(g.prefill)
	d, dAt, okD := sum(g.decode)
	if !okP || !okD || p+d == 0 {
		return
	}
	if diff := d - p; diff > max(d/100, 64) {
		c.add(LegCounts, Medium, "", pAt+", "+dAt, "compare the two counters' rates since the last restart of either role; look for prompts over the prefill pool in prefill's log",
			"%s: decode has counted %s prompt tokens, prefill %s (%s fewer)", modelName(g.model), Thousands(d), Thousands(p), Thousands(diff))
	}
}
