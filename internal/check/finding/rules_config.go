package finding

import (
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/source"
)

// config looks at one node's settings.
func (f *Fleet) config(c *collector, n *facts.Node) {
	engine := n.Text(facts.Engine)
	role := n.Text(facts.Role)
	pd := role == "prefill" || role == "decode"
	at := func(k facts.Key) string { return n.At(k).String() }
	off := func(k facts.Key) bool { yes, known := n.Bool(k); return known && !yes }
	on := func(k facts.Key) bool { yes, known := n.Bool(k); return known && yes }

	switch engine {
	case "sglang":
		if pd && f.above(n, "0.5.21") && off(facts.Checksum) {
			c.add(Checksum, Low, n.Name, at(facts.Checksum), "pass --disaggregation-enable-kv-checksum on both legs", "the KV checksum is off")
		}
		if role == "decode" && off(facts.DeferredRelease) && !strings.HasPrefix(at(facts.DeferredRelease), "default of") {
			c.add(DeferredRelease, Medium, n.Name, at(facts.DeferredRelease), "unset SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE, or set it to 1",
				"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE turns the deferred release off")
		} else if role == "decode" && off(facts.DeferredRelease) && f.above(n, "0.5.19") {
			c.add(DeferredRelease, Low, n.Name, at(facts.DeferredRelease), "set SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1 on decode, or upgrade to 0.5.21",
				"the deferred release exists in this release and is off by default")
		}
		if role == "decode" && f.above(n, "0.5.22") && n.Text(facts.Allocation) == "early" {
			c.add(Allocation, Low, n.Name, at(facts.Allocation), "pass --disaggregation-decode-allocation-policy prefill_complete on decode", "decode's allocation policy is early")
		}
		if off(facts.Metrics) {
			c.add(MetricsOff, Low, n.Name, at(facts.Metrics), "pass --enable-metrics", "/metrics is off")
		}
		if off(facts.APIKey) && off(facts.AdminKey) {
			s := Low
			if n.Live {
				s = Medium
			}
			c.add(AdminOpen, s, n.Name, at(facts.AdminKey), "pass --admin-api-key (0.5.8 and later), and keep the port from clients", "neither --api-key nor --admin-api-key is set")
		}
	case "vllm":
		if on(facts.PD) {
			switch p := n.Text(facts.LoadPolicy); {
			case p != "" && p != "fail":
				c.add(LoadPolicy, Low, n.Name, at(facts.LoadPolicy), `put "kv_load_failure_policy":"fail" into --kv-transfer-config`, "kv_load_failure_policy is %s", p)
			case p == "" && f.below(n, "0.16.0"):
				c.add(LoadPolicy, Medium, n.Name, at(facts.Version), `upgrade to vLLM 0.17.0 or later, and put "kv_load_failure_policy":"fail" into --kv-transfer-config`,
					"kv_load_failure_policy is not set, and this release's default is not fail")
			}
		}
		if o := n.Int(facts.BlocksOverride); o > 0 {
			c.add(BlocksOverride, Low, n.Name, at(facts.BlocksOverride), "drop --num-gpu-blocks-override", "--num-gpu-blocks-override is %d", o)
		}
		if on(facts.DevMode) {
			c.add(AdminOpen, Medium, n.Name, at(facts.DevMode), "unset VLLM_SERVER_DEV_MODE", "development endpoints are on: /collective_rpc, /update_weights, /abort_requests and more answer without a key")
		}
		if off(facts.Metrics) {
			c.add(MetricsOff, Low, n.Name, at(facts.Metrics), "let /metrics be reached from where the check runs", "/metrics does not answer")
		}
	}
	if on(facts.PrefixCache) && (engine == "sglang" || engine == "vllm") {
		c.add(PrefixSharing, Low, n.Name, at(facts.PrefixCache), prefixFix(engine), "the prefix cache is on; tenants share it unless each request carries a salt")
	}
	if on(facts.Unauthenticated) {
		c.add(InfoOpen, Low, n.Name, at(facts.Unauthenticated), "set a key, and keep the port from clients", "/server_info answered without a key")
	}
	if a := n.Text(facts.BootstrapOpen); a != "" {
		c.add(BootstrapOpen, Low, n.Name, at(facts.BootstrapOpen), "close "+a+" to everything but the fleet's workers", "%s takes connections", a)
	}
	if a := n.Text(facts.SideChannelOpen); a != "" {
		c.add(SideChannelOpen, Low, n.Name, at(facts.SideChannelOpen), "close "+a+" to everything but the fleet's workers", "%s takes connections", a)
	}
	if h := n.Text(facts.SideChannelHost); h == "0.0.0.0" || h == "::" {
		c.add(SideChannelOpen, Medium, n.Name, at(facts.SideChannelHost), "set VLLM_NIXL_SIDE_CHANNEL_HOST to the pod's own address", "VLLM_NIXL_SIDE_CHANNEL_HOST is %s: every interface", h)
	}
}

func prefixFix(engine string) string {
	if engine == "vllm" {
		return "send a cache_salt per tenant, or pass --no-enable-prefix-caching"
	}
	return "send an extra_key or cache_salt per tenant, or pass --disable-radix-cache"
}

// exposed looks at the Services of manifests.
func (f *Fleet) exposed(c *collector) {
	for _, e := range f.Exposed {
		what := source.InsidePort(e.Port)
		s := Low
		if e.Type == "NodePort" || e.Type == "LoadBalancer" {
			s = High
		} else if e.Type == "ClusterIP" || e.Type == "None" {
			s = Info
		}
		c.add(PortExposed, s, e.Name, e.At.String(), fmt.Sprintf("take port %d out of this Service, or restrict it with a NetworkPolicy", e.Port),
			"Service of type %s carries port %d (%s)", e.Type, e.Port, what)
	}
}

// events turns what the engines logged and counted into findings.
func (f *Fleet) events(c *collector, n *facts.Node) {
	role := n.Text(facts.Role)
	for _, kind := range []string{source.EventRejected, source.EventTruncated, source.EventLateRelease, source.EventLateRead, source.EventExpiredReads,
		source.EventTransfer, source.EventLoadFailed, source.EventExpired, source.EventChecksum, source.EventMetadata, source.EventCanary} {
		e := n.Events[kind]
		if e == nil {
			continue
		}
		at := e.First.String()
		if e.Count > 1 && e.Last != e.First {
			at += " to " + e.Last.String()
		}
		switch kind {
		case source.EventRejected:
			switch {
			case role == "prefill" && !f.above(n, "0.5.20"):
				c.add(RejectedPrompt, High, n.Name, at, "treat decode's replies to these requests as other requests' text; upgrade to SGLang 0.5.21 or later",
					"%d prompts over the limit (the longest %s tokens, the limit %s) reached the prefill scheduler", e.Count, Thousands(e.Largest), Thousands(n.Int(facts.MaxPrompt)))
			case role == "":
				c.add(RejectedPrompt, Medium, n.Name, at, "say which role this node has (give its /server_info or the whole log); on a prefill node before 0.5.20 each of them leaked",
					"%d prompts over the limit (the longest %s tokens) reached the scheduler; the role is not known", e.Count, Thousands(e.Largest))
			default:
				c.add(RejectedPrompt, Low, n.Name, at, "refuse such prompts in front of the engine", "%d prompts over the limit (the longest %s tokens) reached the scheduler and were refused there", e.Count, Thousands(e.Largest))
			}
		case source.EventTruncated:
			s := Low
			if role == "prefill" || role == "decode" {
				s = Medium
			}
			c.add(TruncatedPrompt, s, n.Name, at, "drop --allow-auto-truncate", "%d prompts were cut to the limit (the longest had %s tokens)", e.Count, Thousands(e.Largest))
		case source.EventLateRelease:
			c.add(LateRelease, High, n.Name, at, "find the requests of these rooms and what ran next; upgrade; keep prefill and its network healthy", "%d times pages were released after a time-out without prefill's word that it was done", e.Count)
		case source.EventLateRead, source.EventExpiredReads:
			c.add(LateRead, High, n.Name, at, "hand over at once and once only; raise kv_lease_duration if decode queues for long", "%d reads of pages that their owner had already given back", e.Count)
		case source.EventTransfer:
			c.add(TransferFailed, Low, n.Name, at, "look at the network and at the peers' restarts", "%d failed transfers or handshakes", e.Count)
		case source.EventLoadFailed:
			c.add(TransferFailed, Low, n.Name, at, "look at the network and at the peers' restarts", "%d times KV could not be loaded and the load-failure policy was applied", e.Count)
		case source.EventExpired:
			c.add(TransferFailed, Medium, n.Name, at, "raise kv_lease_duration, or shorten decode's queue", "%d handed-over prompts expired before decode read them", e.Count)
		default:
			c.add(Corrupted, High, n.Name, at, "take the pair out of use and keep its logs; upgrade", "%d times: %s", e.Count, strings.ReplaceAll(kind, "-", " "))
		}
	}
}

// problems reports sources that could not be read, and remarks.
func (f *Fleet) problems(c *collector) {
	for _, p := range f.Problems {
		x := c.add(Unreadable, Medium, "", p.At.String(), "give a source that can be read", "%s: %s", p.At.Name, p.Text)
		x.Blind = p.Blind
		if !p.Blind {
			x.ID, x.Severity = SourceNote, Info
		}
	}
	for _, n := range f.Nodes {
		for _, p := range n.Notes {
			if p.Blind {
				c.add(Unreadable, Medium, n.Name, p.At.String(), "see the message", "%s", p.Text).Blind = true
			} else {
				c.add(SourceNote, Info, n.Name, p.At.String(), "", "%s", p.Text)
			}
		}
	}
}

// missing reports facts that could not be had.
func (f *Fleet) missing(c *collector, n *facts.Node) {
	engine := n.Text(facts.Engine)
	if !compared(n) || packagesOnly(n) {
		return
	}
	src := ""
	if len(n.Facts) > 0 {
		src = n.Facts[0].At.Name
	}
	say := func(s Severity, blind bool, fix, format string, a ...any) {
		c.add(MissingFact, s, n.Name, src, fix, format, a...).Blind = blind
	}
	if n.Live && (len(n.Facts) == 0 || engine == "") {
		for _, p := range n.Notes {
			if p.Blind { // it is said already why
				return
			}
		}
		say(Medium, true, "check the address; give the node's log or saved answers instead", "nothing is known of this node")
		return
	}
	if engine == "" {
		say(Medium, true, "give the start-up log, or /server_info", "the engine could not be told")
	}
	pool := n.Int(facts.Pool) > 0 || n.Int(facts.PoolCap) > 0
	context := n.Int(facts.Context) > 0 || f.Context > 0
	// vLLM compares the two itself at start and refuses; a launch command cannot know its pool.
	enforced := engine == "vllm" && n.Manifest && n.Int(facts.BlocksOverride) == 0
	switch {
	case !pool && !context:
		say(Medium, !enforced, missingFix(n, "both"), "neither the KV pool nor the context is known: they were not compared%s", half(n))
	case !pool:
		s := Medium
		if enforced {
			s = Low
		}
		say(s, !enforced, missingFix(n, "pool"), "the KV pool is not known: it was not compared with the context of %s%s", Thousands(n.Int(facts.Context)), half(n))
	case !context:
		say(Medium, !enforced, missingFix(n, "context"), "the context is not known: the pool of %s tokens was not compared with it%s", Thousands(poolOf(n)), half(n))
	}
	if pool && n.Int(facts.Pool) == 0 {
		say(Low, false, "check the start-up log too", "the pool is only what --max-total-tokens asks for (%s tokens); the engine may have less memory", Thousands(n.Int(facts.PoolCap)))
	}
	if n.Text(facts.Role) == "" && engine == "sglang" {
		say(Low, false, "give the whole start-up log (its server_args line) or /server_info", "the role is not known: prefill, decode or both")
	}
}

func poolOf(n *facts.Node) int {
	if p := n.Int(facts.Pool); p > 0 {
		return p
	}
	return n.Int(facts.PoolCap)
}

// half says that a log seems to end before the engine was up.
func half(n *facts.Node) string {
	if n.Live || n.Manifest || n.Starts {
		return ""
	}
	if _, args := n.Get(facts.TP); args && n.Int(facts.Pool) == 0 {
		return " (the log ends before the engine had its pool)"
	}
	return ""
}

func missingFix(n *facts.Node, what string) string {
	switch {
	case n.Manifest && what != "context":
		return "give the node's start-up log as well, set --max-total-tokens, or derive the pool with --fit"
	case n.Manifest:
		return "set " + contextFlag(n.Text(facts.Engine)) + ", or pass --context N"
	case n.Live:
		return "turn --enable-metrics on, or give the node's start-up log as well"
	case what == "context":
		return "pass --context N, or give /v1/models or the whole start-up log"
	}
	return "give the whole start-up log, /server_info or /metrics"
}

// version reports releases that are not known or say nothing.
func (f *Fleet) version(c *collector, n *facts.Node) {
	if !compared(n) || n.Text(facts.Engine) == "" || n.Text(facts.Engine) == "native" {
		return
	}
	r := f.release(n)
	v, _ := n.Get(facts.Version)
	if r.Version == "" {
		span := ""
		switch {
		case r.Min != "" && r.Max != "":
			span = fmt.Sprintf("; by the form of its lines it is %s or later and before %s", r.Min, r.Max)
		case r.Min != "":
			span = fmt.Sprintf("; by the form of its lines it is %s or later", r.Min)
		case r.Max != "":
			span = fmt.Sprintf("; by the form of its lines it is before %s", r.Max)
		}
		c.add(MissingFact, Medium, n.Name, firstSource(n), "pass --engine-version V, or give /server_info, the image or the package list", "the version is not known%s", span)
		return
	}
	if why, yes := advisory.Uncertain(r.Version); yes {
		c.add(VersionUncertain, Medium, n.Name, v.At.String(), "run a release, or show each fix to be in the build (--probe-live) and waive this", "%s: advisories are matched by release and this one may lack fixes or have them", why).Blind = true
	} else if newest := advisory.Newest[n.Text(facts.Engine)]; newest != "" && advisory.Compare(r.Version, newest) > 0 {
		c.add(VersionUncertain, Low, n.Name, v.At.String(), "update sluice, or give a signed file of advisories", "%s is newer than the releases that this database knows (up to %s %s): faults found since are not in it", r.Version, n.Text(facts.Engine), newest)
	} else if v.Weight == facts.Guessed {
		c.add(SourceNote, Info, n.Name, v.At.String(), "", "the version %s is taken from the file's name", r.Version)
	}
}

func firstSource(n *facts.Node) string {
	if len(n.Facts) == 0 {
		return ""
	}
	return n.Facts[0].At.Name
}

// disagreements reports facts on which sources differ, and several starts.
func (f *Fleet) disagreements(c *collector, n *facts.Node) {
	for _, d := range n.Disagreements() {
		s := Medium
		c.add(Disagree, s, n.Name, d.A.At.String()+", "+d.B.At.String(), "find out which is true; the check has used "+d.A.Value,
			"%s is %s at %s and %s at %s", d.Key, d.A.Value, d.A.At, d.B.Value, d.B.At).Blind = hides(n, d)
	}
	if len(n.Boots) == 0 {
		return
	}
	prev := n.Boots[len(n.Boots)-1]
	pool, context := n.Int(facts.Pool), n.Int(facts.Context)
	s, change := Info, "with the same numbers"
	if prev.Pool != pool || prev.Context != context {
		s = Low
		change = fmt.Sprintf("pool %s to %s, context %s to %s", number(prev.Pool), number(pool), number(prev.Context), number(context))
	}
	c.add(SeveralBoots, s, n.Name, firstBoot(n), "", "%d starts are in the log; the last one counts: %s", len(n.Boots)+1, change)
}

// hides reports whether the comparison of pool and context passes by the value that was used and would not by the other.
func hides(n *facts.Node, d facts.Disagreement) bool {
	pool, context := n.Int(facts.Pool), n.Int(facts.Context)
	if pool == 0 || context == 0 || pool < context {
		return false
	}
	other, ok := d.B.Int()
	return ok && other > 0 && (d.Key == facts.Pool && other < context || d.Key == facts.Context && pool < other)
}

func firstBoot(n *facts.Node) string {
	if at := n.Boots[0].At.String(); at != "" {
		return at
	}
	return firstSource(n)
}

func number(n int) string {
	if n == 0 {
		return "unknown"
	}
	return Thousands(n)
}
