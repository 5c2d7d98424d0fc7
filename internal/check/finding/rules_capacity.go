package finding

import (
	"fmt"
	"sort"
	"strings"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// contextFlag and poolFlag are how an operator sets the two numbers.
func contextFlag(engine string) string {
	if strings.HasPrefix(engine, "vllm") {
		return "--max-model-len"
	}
	if engine == "native" {
		return "--context"
	}
	return "--context-length"
}

func poolAdvice(f capacity.Facts) string {
	need := (f.Context + f.Reserved + max(f.PageSize, 1) - 1) / max(f.PageSize, 1) * max(f.PageSize, 1)
	switch {
	case strings.HasPrefix(f.Engine, "vllm"):
		return fmt.Sprintf("raise the pool to at least %d tokens (--gpu-memory-utilization, --kv-cache-dtype fp8, --tensor-parallel-size)", need)
	case f.Engine == "native":
		return fmt.Sprintf("raise the pool to at least %d tokens (--%s-kv-tokens)", need, f.Role)
	}
	return fmt.Sprintf("raise the pool to at least %d tokens (--mem-fraction-static, --kv-cache-dtype fp8_e4m3, --tp-size; --max-total-tokens must not be below it)", need)
}

// capacity makes THE comparison for one node.
func (f *Fleet) capacity(c *collector, n *facts.Node) {
	cf := n.Capacity(f.Context)
	if cf.PoolTokens == 0 || cf.Context == 0 {
		f.wanted(c, n, cf)
		return
	}
	src := both(n, facts.Pool, facts.Context)
	usable := cf.Usable()
	role := string(cf.Role)
	if role == "" || role == "both" {
		role = "node"
	}
	limit := capacity.Node(cf)
	flag := contextFlag(cf.Engine)
	switch {
	case n.Text(facts.Refused) == "true":
		c.add(RefusedToStart, High, n.Name, src, fmt.Sprintf("set %s %d, or %s", flag, cf.PoolTokens, poolAdvice(cf)),
			"the engine refused to start: its pool holds %s tokens, one sequence of the context needs %s", Thousands(cf.PoolTokens), Thousands(cf.Context))
	case cf.PoolTokens < cf.Context:
		c.add(PoolBelowContext, High, n.Name, src, fmt.Sprintf("set %s %d, or %s", flag, usable, poolAdvice(cf)),
			"%s: the KV pool holds %s tokens but the context is %s: prompts of %s to %s tokens are accepted and cannot be held", role,
			Thousands(cf.PoolTokens), Thousands(cf.Context), Thousands(capacity.LongestPrompt(cf.Engine, cf.PoolTokens, cf.Context)+1), Thousands(cf.Context))
	case limit.Pool:
		page := ""
		if cf.PageSize == 0 {
			page = " (page size not known, the widest is taken)"
		}
		c.add(PoolAtEdge, Medium, n.Name, src, fmt.Sprintf("set %s %d, or %s", flag, usable, poolAdvice(cf)),
			"%s: the KV pool holds %s tokens, %s more than the context of %s, but the engine keeps %s of them back%s", role,
			Thousands(cf.PoolTokens), Thousands(cf.PoolTokens-cf.Context), Thousands(cf.Context), Thousands(cf.Reserved), page)
	}
	f.wanted(c, n, cf)
	f.ranks(c, n)
}

// wanted compares the context asked for on the command line with a node whose own is known.
func (f *Fleet) wanted(c *collector, n *facts.Node, cf capacity.Facts) {
	own := n.Int(facts.Context)
	if f.Context == 0 || own == 0 || own >= f.Context && (cf.PoolTokens == 0 || cf.Usable() >= f.Context) {
		return
	}
	if own < f.Context {
		c.add(WantedContext, High, n.Name, n.At(facts.Context).String(), fmt.Sprintf("set %s %d, and a pool that holds it", contextFlag(cf.Engine), f.Context),
			"--context asks for %s tokens; this node's context is %s", Thousands(f.Context), Thousands(own))
		return
	}
	c.add(WantedContext, High, n.Name, n.At(facts.Pool).String(), "check for a smaller --context, or raise the pool",
		"--context asks for %s tokens; this node's pool holds %s of one sequence", Thousands(f.Context), Thousands(cf.Usable()))
}

// ranks compares the ranks of one node.
func (f *Fleet) ranks(c *collector, n *facts.Node) {
	for _, k := range []facts.Key{facts.Pool, facts.Context} {
		m := n.RankValues(k)
		if m == nil {
			continue
		}
		var rs []string
		for r, x := range m {
			if r == "" {
				r = "rank 0"
			}
			rs = append(rs, r+" "+x.Value)
		}
		sort.Strings(rs)
		if len(rs) > 8 {
			rs = append(rs[:8], fmt.Sprintf("and %d more", len(rs)-8))
		}
		best, _ := n.Get(k)
		c.add(RankLimits, Medium, n.Name, best.At.String(), "give all ranks the same memory; plan with "+best.Value,
			"%s differs between ranks: %s; %s counts", k, strings.Join(rs, ", "), best.Value)
	}
}

// both is the sources of two facts.
func both(n *facts.Node, a, b facts.Key) string {
	x, y := n.At(a).String(), n.At(b).String()
	switch {
	case x == "" || x == y:
		return y
	case y == "":
		return x
	}
	return x + ", " + y
}
