package finding

import "sort"

// The kinds of findings, beside the advisories.
const (
	PoolBelowContext = "pool-below-context"
	PoolAtEdge       = "pool-at-the-edge"
	RefusedToStart   = "refused-to-start"
	WantedContext    = "context-not-served"
	PairLimits       = "pair-limits-differ"
	RoleLimits       = "role-limits-differ"
	RankLimits       = "rank-limits-differ"
	AutoTruncate     = "auto-truncate-one-leg"
	PageSize         = "page-size-differs"
	KVDType          = "kv-dtype-differs"
	ModelRevision    = "model-revision-differs"
	Tokenizer        = "tokenizer-differs"
	Template         = "chat-template-differs"
	Speculative      = "speculative-differs"
	Connector        = "connector-differs"
	Checksum         = "checksum-off"
	DeferredRelease  = "deferred-release-off"
	LoadPolicy       = "load-failure-policy"
	Allocation       = "early-allocation"
	BlocksOverride   = "pool-overridden"
	AdminOpen        = "admin-endpoints-open"
	InfoOpen         = "unauthenticated-endpoints"
	BootstrapOpen    = "bootstrap-port-reachable"
	SideChannelOpen  = "side-channel-reachable"
	PortExposed      = "transfer-port-exposed"
	MetricsOff       = "metrics-off"
	PrefixSharing    = "prefix-sharing-unsalted"
	RejectedPrompt   = "rejected-prompt-in-prefill"
	TruncatedPrompt  = "prompt-was-truncated"
	LateRelease      = "pages-released-early"
	LateRead         = "page-read-late"
	TransferFailed   = "transfer-failed"
	Corrupted        = "corruption-caught"
	LegCounts        = "leg-counts-differ"
	MissingFact      = "missing-fact"
	VersionUncertain = "version-uncertain"
	Undecided        = "advisories-undecided"
	Disagree         = "facts-disagree"
	SeveralBoots     = "several-boots"
	Unreadable       = "source-unreadable"
	SourceNote       = "source-note"
	OneLeg           = "one-leg-missing"
	WaiverExpired    = "waiver-expired"
	WaiverUnused     = "waiver-unused"
	ProbeAffected    = "probe-affected"
	ProbeSafe        = "probe-safe"
	ProbeUnclear     = "probe-unclear"
)

const (
	incident = "https://github.com/sgl-project/sglang/issues/30233"
	sgl      = "https://github.com/sgl-project/sglang/"
	vllmRepo = "https://github.com/vllm-project/vllm/"
)

var kinds = map[string]Kind{}

func init() {
	for _, k := range []Kind{
		{PoolBelowContext, "The KV pool is smaller than the context",
			"a prompt between the two is accepted at the door and cannot be held; in a disaggregated fleet such prompts were answered out of other requests' pages", incident,
			"yes", "it refuses prompts over the pair's limit and holds decode's output until the legs agree",
			"The engine checks a prompt against its context in one place and against its pool in another. Nothing makes the first number fit into the second. " +
				"SGLang starts all the same (0.5.23 prints a warning). vLLM refuses to start, unless the pool is overridden or its estimate is wrong."},
		{PoolAtEdge, "The KV pool holds the context, but not with the engine's reserve",
			"the engine keeps some of the pool from any one request, so that the longest prompts are accepted and then never scheduled", sgl + "issues/39271",
			"yes", "it admits by the pool less the reserve",
			"SGLang needs a prompt's pages, its output and one page more below the pool; two pages are the margin. vLLM never hands out block 0."},
		{RefusedToStart, "The engine refused to start", "one sequence of the context does not fit into the pool, and vLLM says so at start", vllmRepo + "issues/25350",
			"no", "", "This is the right behaviour of the engine; the configuration still has to change."},
		{WantedContext, "The context asked for is not served", "a prompt of the wanted length is refused, or worse, by this node", incident, "yes", "it advertises what fits", ""},
		{PairLimits, "The legs of a pair take prompts of different lengths",
			"the leg with the larger limit reserves pages for a prompt that the other refuses, and waits for its time-out", sgl + "issues/34208",
			"yes", "it admits by the smaller of the two", "Give both legs one --context-length that fits the smaller pool."},
		{RoleLimits, "Nodes of one role have different limits", "what is served depends on which node a request meets", sgl + "issues/30326", "yes", "it knows each pair's limit", ""},
		{RankLimits, "Ranks of one node have different pools", "the summary of one rank is not the limit of the node: the smallest rank is", sgl + "issues/29249", "partly", "it takes the smallest rank that the engine names", ""},
		{AutoTruncate, "Auto-truncate is on where the legs' limits differ",
			"both legs must work on the same tokens of a prompt; a flag that changes prompts in one of them does not belong in a pair", sgl + "pull/38704",
			"yes", "it compares the legs' token counts before the first byte", "Turn --allow-auto-truncate off on both legs; refuse long prompts instead."},
		{PageSize, "The legs' page sizes differ", "pages are addressed by number: with different sizes a number means different tokens", sgl + "issues/19398", "yes", "it refuses the pair", ""},
		{KVDType, "The legs' KV types differ", "bytes written in one type are read in another", sgl + "issues/19398", "yes", "it refuses the pair", ""},
		{ModelRevision, "The legs' models or revisions differ", "pages computed with one set of weights are read with another; engines do not compare revisions", vllmRepo + "pull/29503", "yes", "it refuses the pair", ""},
		{Tokenizer, "The legs' tokenizers differ", "each leg tokenizes by itself: the same text then has different tokens, or a different number of them", vllmRepo + "pull/48145", "partly", "it compares the legs' counts, not their tokens", ""},
		{Template, "The legs' chat templates differ", "each leg renders by itself: the same conversation then has different tokens, or a different number of them", vllmRepo + "pull/48145", "partly", "it compares the legs' counts, not their tokens", ""},
		{Speculative, "The legs' speculative decoding differs", "a leg without a draft model sends no draft state; the other reads what is there", sgl + "pull/17212", "yes", "it refuses the pair", ""},
		{Connector, "The legs' transfer backends differ", "the legs cannot hand over, or only by a fallback that nobody chose", sgl + "issues/36033", "yes", "it refuses the pair", ""},
		{Checksum, "The KV checksum is off", "without it nothing tells decode that the pages which arrived are the pages that were computed", sgl + "pull/39500", "partly", "it compares counts, not content", "SGLang 0.5.21 and later, CUDA only. Both legs need the flag; with one only it is skipped without an error."},
		{DeferredRelease, "Decode gives pages back before prefill is known to be done", "a late write then lands in the next owner's pages", sgl + "pull/35049", "partly", "it sends no abort into a running transfer and rests the pair", ""},
		{LoadPolicy, "A failed KV load does not fail the request", "the request goes on after pages did not arrive", vllmRepo + "pull/34896", "partly", "it compares the legs' counts", "The default is fail since February 2026; before that it was recompute, and before December 2025 there was no policy."},
		{Allocation, "Decode reserves pages before prefill has finished", "a request that prefill refuses holds pages for the whole time-out, and a room that is used twice is not refused", sgl + "issues/40125", "yes", "rooms are its own, and it ends decode's leg when prefill refuses", ""},
		{BlocksOverride, "The pool's size is set by hand", "vLLM's own check at start is made against the number given, not against memory", vllmRepo + "issues/48317", "no", "", ""},
		{AdminOpen, "Admin endpoints answer without a key", "whoever reaches the port can flush caches, load weights, abort requests and release memory", "https://docs.vllm.ai/en/latest/usage/security.html", "yes", "it passes a short list of paths", ""},
		{InfoOpen, "An endpoint that tells all arguments answers without a key", "arguments name paths, ports and more; the answer is not for clients", "https://docs.vllm.ai/en/latest/usage/security.html", "yes", "it passes a short list of paths", ""},
		{BootstrapOpen, "The bootstrap server takes connections from here", "it has no authentication: whoever reaches it can register workers and read the fleet's layout", sgl + "pull/9931", "no", "", "Close the port (8998 by default) with a network policy to everything but the fleet's workers."},
		{SideChannelOpen, "The NIXL side channel takes connections from here", "it has no authentication and is meant for the fleet's own processes", "https://docs.vllm.ai/en/latest/usage/security.html", "no", "", "Close the port (5600 by default) with a network policy to everything but the fleet's workers."},
		{PortExposed, "A transfer port is reachable through a Service", "bootstrap and side-channel ports have no authentication", sgl + "pull/9931", "no", "", ""},
		{MetricsOff, "Metrics are off", "the counters that would show a late release, a failed transfer or diverging legs are not there", "https://docs.sglang.ai/references/production_metrics.html", "partly", "it has metrics of its own", ""},
		{PrefixSharing, "Prefix cache is shared between tenants unless each request carries a salt", "hits can be told from latency, and a wrong hit crosses tenants", "https://github.com/advisories/GHSA-4qjh-9fv9-r85r", "yes", "it sends a salt per tenant", ""},
		{RejectedPrompt, "Prompts over the limit reached the scheduler", "on releases before 0.5.20 each of them was answered by decode out of pages that nobody wrote for it", incident, "yes", "such prompts are refused before any leg", "Treat the replies to these requests as other tenants' text."},
		{TruncatedPrompt, "Prompts were cut to the engine's limit", "the reply is to a part of the prompt, and the other leg may hold all of it", sgl + "pull/29017", "yes", "it refuses prompts over the limit", ""},
		{LateRelease, "Decode gave pages back while a transfer was not known to be over", "a write that lands after that lands in the next owner's pages: text may have been mixed", sgl + "pull/38961", "no", "", "Count these in sglang:decode_deferred_kv_release_total{outcome=\"timeout\"}; any is an incident."},
		{LateRead, "Pages were read after their owner had given them back", "what was read may have been another request's", vllmRepo + "issues/52234", "partly", "a handle is used once, at once, and never again", "Count these in vllm:nixl_num_notifications_after_expiry_total; any is an incident."},
		{TransferFailed, "Transfers failed", "failures are reported here; what matters is that none is taken for a success", sgl + "issues/36033", "partly", "it reads both legs' answers", ""},
		{Corrupted, "The engine caught corrupted pages", "its own check found content or ownership that did not match", sgl + "pull/39500", "no", "", ""},
		{LegCounts, "Prefill and decode counted different numbers of prompt tokens", "each prompt token is computed once by prefill: decode cannot have more, unless prompts were answered that prefill did not compute", incident, "yes", "it compares the counts of each request", ""},
		{MissingFact, "A fact could not be had", "what is not known is not compared, and does not count as safe", incident, "no", "", ""},
		{VersionUncertain, "The version does not say what is in the build", "fixes are matched by release; a nightly or a build of one's own may have them or not", "https://peps.python.org/pep-0440/", "no", "", ""},
		{Undecided, "Advisories that could not be decided", "facts on which they depend are not known", "https://ossf.github.io/osv-schema/", "no", "", "Give the check more: /server_info or the whole start-up log, and the version."},
		{Disagree, "Two sources state one fact differently", "one of them is wrong or old, and the check may have used it", vllmRepo + "issues/50456", "no", "", ""},
		{SeveralBoots, "A log holds several starts", "the last one counts; the numbers before it are no longer true", incident, "no", "", ""},
		{Unreadable, "A source could not be read", "what it would have said is not known", incident, "no", "", ""},
		{SourceNote, "A remark on a source", "", incident, "no", "", ""},
		{OneLeg, "Only one leg of a pair was seen", "limits and settings across the pair were not compared", incident, "no", "", ""},
		{WaiverExpired, "A waiver has expired", "what it excused is no longer excused", incident, "no", "", ""},
		{WaiverUnused, "A waiver matches nothing", "it may hide a later finding", incident, "no", "", ""},
		{ProbeAffected, "The live probe was answered the wrong way", "a prompt over the limit was not refused by the leg that cannot hold it", incident, "yes", "such prompts are refused before any leg", ""},
		{ProbeSafe, "The live probe was refused, as it should be", "", incident, "yes", "", ""},
		{ProbeUnclear, "The live probe gave no clear answer", "the version decides instead", incident, "no", "", ""},
	} {
		if _, dup := kinds[k.ID]; dup {
			panic("finding: two kinds " + k.ID)
		}
		kinds[k.ID] = k
	}
}

// Lookup gives a kind by its id.
func Lookup(id string) (Kind, bool) { k, ok := kinds[id]; return k, ok }

// Kinds lists all kinds by id.
func Kinds() (ks []Kind) {
	for _, k := range kinds {
		ks = append(ks, k)
	}
	sort.Slice(ks, func(i, j int) bool { return ks[i].ID < ks[j].ID })
	return ks
}
