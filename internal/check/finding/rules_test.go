package finding

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/source"
)

// node makes a node from "key=value …".
func node(name, spec string) *facts.Node {
	n := &facts.Node{Name: name, ID: name}
	for i, f := range strings.Fields(spec) {
		k, v, _ := strings.Cut(f, "=")
		n.Put(facts.Key(k), v, facts.Source{Name: name + ".log", Line: i + 1}, facts.Said)
	}
	return n
}

const (
	goodP = "pd=true engine=sglang version=0.5.23 role=prefill model=m pool_tokens=681280 context=600000 page_size=64 kv_dtype=fp8_e4m3 tp=8 tokenizer=m auto_truncate=false checksum=true connector=mooncake allocation_policy=prefill_complete metrics=true admin_key=true api_key=true prefix_cache=false deferred_release=true"
	goodD = "pd=true engine=sglang version=0.5.23 role=decode model=m pool_tokens=2040000 context=600000 page_size=64 kv_dtype=fp8_e4m3 tp=8 tokenizer=m auto_truncate=false checksum=true connector=mooncake allocation_policy=prefill_complete metrics=true admin_key=true api_key=true prefix_cache=false deferred_release=true"
	goodV = "engine=vllm version=0.32.0 role=prefill model=m pool_tokens=32768 context=8192 page_size=32 connector=NixlConnector pd=true load_failure_policy=fail metrics=true"
)

// set replaces or adds facts.
func set(spec string, changes ...string) string {
	for _, c := range changes {
		k, _, _ := strings.Cut(c, "=")
		var out []string
		for _, f := range strings.Fields(spec) {
			if !strings.HasPrefix(f, k+"=") {
				out = append(out, f)
			}
		}
		if !strings.HasSuffix(c, "=") {
			out = append(out, c)
		}
		spec = strings.Join(out, " ")
	}
	return spec
}

func check(f Fleet) map[string]Finding {
	m := map[string]Finding{}
	for _, x := range f.Check() {
		if old, ok := m[x.ID]; !ok || x.Severity > old.Severity {
			m[x.ID] = x
		}
	}
	return m
}

func fleet(ns ...*facts.Node) Fleet { return Fleet{Inventory: source.Inventory{Nodes: ns}} }

func TestAGoodPairHasNoFindings(t *testing.T) {
	for id, f := range check(fleet(node("p", goodP), node("d", goodD))) {
		t.Errorf("%s: %s", id, f.Message)
	}
	for id, f := range check(fleet(node("p", goodV), node("d", set(goodV, "role=decode")))) {
		t.Errorf("%s: %s", id, f.Message)
	}
}

// Each rule fires on a pair that is good but for one fact.
func TestEachRule(t *testing.T) {
	event := func(n *facts.Node, kind string) *facts.Node {
		n.Event(kind, facts.Source{Name: "x.log", Line: 9}, 700000)
		return n
	}
	late := facts.Source{Name: "other.log", Line: 3}
	for name, c := range map[string]struct {
		fleet Fleet
		id    string
		sev   Severity
		says  string // in message or fix
	}{
		"pool":            {fleet(node("p", set(goodP, "context=1048576")), node("d", goodD)), PoolBelowContext, High, "--context-length 681152"},
		"pool, decode":    {fleet(node("p", goodP), node("d", set(goodD, "pool_tokens=500000"))), PoolBelowContext, High, "500,000"},
		"pool, vLLM":      {fleet(node("p", set(goodV, "pool_tokens=8000")), node("d", set(goodV, "role=decode"))), PoolBelowContext, High, "--max-model-len 7968"},
		"edge":            {fleet(node("p", set(goodP, "context=681280")), node("d", goodD)), PoolAtEdge, Medium, "keeps 128 of them back"},
		"refused":         {fleet(node("p", set(goodV, "pool_tokens=2016", "refused_to_start=true"))), RefusedToStart, High, "--max-model-len 2016"},
		"wanted":          {Fleet{Inventory: fleet(node("p", goodP), node("d", goodD)).Inventory, Context: 650000}, WantedContext, High, "650,000"},
		"pair limits":     {fleet(node("p", goodP), node("d", set(goodD, "context=1000000"))), PairLimits, Medium, "--context-length 600000 on both legs"},
		"role limits":     {fleet(node("p", goodP), node("p2", set(goodP, "context=500000")), node("d", goodD)), RoleLimits, Medium, "500000"},
		"truncate p":      {fleet(node("p", set(goodP, "auto_truncate=true")), node("d", goodD)), AutoTruncate, High, "on for p and off for d"},
		"truncate d":      {fleet(node("p", goodP), node("d", set(goodD, "auto_truncate=true"))), AutoTruncate, High, "on for d and off for p"},
		"truncate both":   {fleet(node("p", set(goodP, "auto_truncate=true")), node("d", set(goodD, "auto_truncate=true"))), AutoTruncate, Low, "in both legs"},
		"truncate limits": {fleet(node("p", set(goodP, "auto_truncate=true", "context=500000")), node("d", set(goodD, "auto_truncate=true"))), AutoTruncate, High, "500,000"},
		"page size":       {fleet(node("p", goodP), node("d", set(goodD, "page_size=32"))), PageSize, Medium, "64 on prefill (p) and 32 on decode (d)"},
		"page size, old":  {fleet(node("p", set(goodP, "version=0.5.9")), node("d", set(goodD, "page_size=32", "version=0.5.9"))), PageSize, High, "--page-size"},
		"kv dtype":        {fleet(node("p", goodP), node("d", set(goodD, "kv_dtype=bfloat16"))), KVDType, Medium, "--kv-cache-dtype"},
		"revision":        {fleet(node("p", set(goodP, "revision=abc")), node("d", set(goodD, "revision=def"))), ModelRevision, High, "abc on prefill"},
		"revision, one":   {fleet(node("p", set(goodP, "revision=abc")), node("d", goodD)), ModelRevision, High, "not set on decode"},
		"weights":         {fleet(node("p", set(goodP, "weight_version=1")), node("d", set(goodD, "weight_version=2"))), ModelRevision, High, "--weight-version"},
		"tokenizer":       {fleet(node("p", goodP), node("d", set(goodD, "tokenizer=other"))), Tokenizer, High, "--tokenizer-path"},
		"template":        {fleet(node("p", set(goodP, "chat_template=a.jinja")), node("d", set(goodD, "chat_template=b.jinja"))), Template, High, "--chat-template"},
		"speculative":     {fleet(node("p", goodP), node("d", set(goodD, "speculative=EAGLE"))), Speculative, Medium, "--speculative-algorithm"},
		"connector":       {fleet(node("p", goodP), node("d", set(goodD, "connector=nixl"))), Connector, Medium, "--disaggregation-transfer-backend"},
		"checksum":        {fleet(node("p", set(goodP, "checksum=false")), node("d", goodD)), Checksum, Low, "--disaggregation-enable-kv-checksum"},
		"deferred":        {fleet(node("p", goodP), node("d", set(goodD, "deferred_release=false"))), DeferredRelease, Medium, "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"},
		"load policy":     {fleet(node("p", goodV), node("d", set(goodV, "role=decode", "load_failure_policy=recompute"))), LoadPolicy, Low, "recompute"},
		"allocation":      {fleet(node("p", goodP), node("d", set(goodD, "allocation_policy=early"))), Allocation, Low, "prefill_complete"},
		"override":        {fleet(node("p", set(goodV, "blocks_override=512")), node("d", set(goodV, "role=decode"))), BlocksOverride, Low, "512"},
		"admin":           {fleet(node("p", set(goodP, "admin_key=false", "api_key=false")), node("d", goodD)), AdminOpen, Low, "--admin-api-key"},
		"dev mode":        {fleet(node("p", set(goodV, "dev_mode=true")), node("d", set(goodV, "role=decode"))), AdminOpen, Medium, "VLLM_SERVER_DEV_MODE"},
		"info":            {fleet(node("p", set(goodP, "unauthenticated=true")), node("d", goodD)), InfoOpen, Low, "/server_info"},
		"bootstrap":       {fleet(node("p", set(goodP, "bootstrap_open=10.0.0.1:8998")), node("d", goodD)), BootstrapOpen, Low, "10.0.0.1:8998"},
		"side channel":    {fleet(node("p", set(goodV, "side_channel_open=10.0.0.1:5600")), node("d", set(goodV, "role=decode"))), SideChannelOpen, Low, "10.0.0.1:5600"},
		"all interfaces":  {fleet(node("p", set(goodV, "side_channel_host=0.0.0.0")), node("d", set(goodV, "role=decode"))), SideChannelOpen, Medium, "every interface"},
		"metrics":         {fleet(node("p", set(goodP, "metrics=false")), node("d", goodD)), MetricsOff, Low, "--enable-metrics"},
		"prefix":          {fleet(node("p", set(goodP, "prefix_cache=true")), node("d", goodD)), PrefixSharing, Low, "salt"},
		"rejected, old":   {fleet(event(node("p", set(goodP, "version=0.5.19")), source.EventRejected), node("d", goodD)), RejectedPrompt, High, "700,000"},
		"rejected, new":   {fleet(event(node("p", goodP), source.EventRejected), node("d", goodD)), RejectedPrompt, Low, "refused there"},
		"truncated":       {fleet(event(node("p", goodP), source.EventTruncated), node("d", goodD)), TruncatedPrompt, Medium, "cut to the limit"},
		"late release":    {fleet(node("p", goodP), event(node("d", goodD), source.EventLateRelease)), LateRelease, High, "released after a time-out"},
		"late read":       {fleet(event(node("p", goodV), source.EventLateRead), node("d", set(goodV, "role=decode"))), LateRead, High, "already given back"},
		"after expiry":    {fleet(event(node("p", goodV), source.EventExpiredReads), node("d", set(goodV, "role=decode"))), LateRead, High, "already given back"},
		"transfer":        {fleet(node("p", goodP), event(node("d", goodD), source.EventTransfer)), TransferFailed, Low, "failed transfers"},
		"load failed":     {fleet(node("p", goodV), event(node("d", set(goodV, "role=decode")), source.EventLoadFailed)), TransferFailed, Low, "could not be loaded"},
		"expired":         {fleet(event(node("p", goodV), source.EventExpired), node("d", set(goodV, "role=decode"))), TransferFailed, Medium, "kv_lease_duration"},
		"checksum event":  {fleet(node("p", goodP), event(node("d", goodD), source.EventChecksum)), Corrupted, High, "checksum mismatch"},
		"canary event":    {fleet(node("p", goodP), event(node("d", goodD), source.EventCanary)), Corrupted, High, "canary violation"},
		"metadata event":  {fleet(node("p", goodP), event(node("d", goodD), source.EventMetadata)), Corrupted, High, "metadata mismatch"},
		"leg counts":      {fleet(node("p", set(goodP, "prompt_tokens_total=84119")), node("d", set(goodD, "prompt_tokens_total=106521"))), LegCounts, Medium, "22,402 fewer"},
		"no pool":         {fleet(node("p", set(goodP, "pool_tokens=")), node("d", goodD)), MissingFact, Medium, "not compared with the context of 600,000"},
		"no context":      {fleet(node("p", set(goodP, "context=")), node("d", goodD)), MissingFact, Medium, "the context is not known"},
		"no version":      {fleet(node("p", set(goodP, "version=")), node("d", goodD)), MissingFact, Medium, "--engine-version"},
		"nightly":         {fleet(node("p", set(goodP, "version=nightly-dev")), node("d", goodD)), VersionUncertain, Medium, "no release number"},
		"own build":       {fleet(node("p", set(goodP, "version=0.5.23+acme")), node("d", goodD)), VersionUncertain, Medium, "build of somebody's own"},
		"newer":           {fleet(node("p", set(goodP, "version=0.6.1")), node("d", goodD)), VersionUncertain, Low, "newer than the releases"},
		"no page size":    {fleet(node("p", goodP), node("d", set(goodD, "page_size="))), MissingFact, Low, "page_size is not known: it was not compared with the prefill leg's"},
		"follower":        {fleet(node("p", set(goodP, "node_rank=1"))), MissingFact, Medium, "first machine was not seen"},
		"one leg":         {fleet(node("p", goodP)), OneLeg, Low, "no decode node"},
	} {
		t.Run(name, func(t *testing.T) {
			f, ok := check(c.fleet)[c.id]
			if !ok || f.Severity != c.sev || !strings.Contains(f.Message+" | "+f.Fix, c.says) {
				t.Errorf("%s: %+v, want %s with %q", c.id, f, c.sev, c.says)
			}
			if f.Source == "" || f.Why == "" || f.Link == "" || f.Gateway == "" || f.Fix == "" {
				t.Errorf("source, why, link, gateway and fix are needed: %+v", f)
			}
		})
	}
	t.Run("disagreement", func(t *testing.T) {
		n := node("p", goodP)
		n.Put(facts.Pool, "302945", late, facts.Said)
		f := check(fleet(n, node("d", goodD)))[Disagree]
		if !strings.Contains(f.Message, "681280") && !strings.Contains(f.Message, "302945") || !strings.Contains(f.Source, "other.log:3") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("ranks", func(t *testing.T) {
		n := node("p", set(goodP, "pool_tokens="))
		n.PutRank(facts.Pool, "681280", late, facts.Said, "DP0")
		n.PutRank(facts.Pool, "650000", late, facts.Said, "DP1")
		if f := check(fleet(n, node("d", goodD)))[RankLimits]; !strings.Contains(f.Message, "DP1 650000") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("boots", func(t *testing.T) {
		n := node("p", goodP)
		n.Boots = []facts.Boot{{Pool: 400000, Context: 600000, At: late}}
		if f := check(fleet(n, node("d", goodD)))[SeveralBoots]; f.Severity != Low || !strings.Contains(f.Message, "400,000 to 681,280") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("service", func(t *testing.T) {
		fl := fleet(node("p", goodP), node("d", goodD))
		fl.Exposed = []source.Exposed{{Name: "s", Type: "LoadBalancer", Port: 8998, At: late}}
		if f := check(fl)[PortExposed]; f.Severity != High || !strings.Contains(f.Message, "8998 (bootstrap)") {
			t.Errorf("%+v", f)
		}
	})
}

// A nightly never passes: the check is blind, and a high fault that its configuration makes reachable is a finding.
func TestUncertainBuildsNeverPassAsSafe(t *testing.T) {
	es, err := advisory.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"0.5.24.dev3", "0.5.23+acme", "nightly-2026"} {
		f := fleet(node("p", set(goodP, "version="+v)), node("d", goodD))
		f.Advisories = es
		if got := Exit(f.Check(), High); got != 2 {
			t.Errorf("%s: exit %d, want 2", v, got)
		}
		f = fleet(node("p", set(goodP, "version="+v, "context=1048576")), node("d", goodD))
		f.Advisories = es
		if x, ok := check(f)["SGL-KV-01"]; !ok || x.Severity != High || !strings.HasPrefix(x.Message, "A prompt") && !strings.HasPrefix(x.Message, "possible") {
			t.Errorf("%s: %+v", v, x)
		}
	}
}

// The answer of the live probe decides instead of the version.
func TestTheProbeDecides(t *testing.T) {
	es, err := advisory.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version string
		probed  advisory.Truth
		want    bool
	}{{"0.5.19", advisory.False, false}, {"0.5.19+acme", advisory.False, false}, {"0.5.19", advisory.True, true}, {"0.5.21", advisory.False, false}} {
		f := fleet(node("p", set(goodP, "version="+c.version, "context=1048576")), node("d", goodD))
		f.Advisories, f.Probed = es, map[string]advisory.Truth{"p": c.probed}
		if _, got := check(f)["SGL-KV-01"]; got != c.want {
			t.Errorf("%s answered %s: finding %v, want %v", c.version, c.probed, got, c.want)
		}
	}
}

func TestNodesOfOtherModelsAreNotCompared(t *testing.T) {
	m := check(fleet(node("p", goodP), node("d", goodD), node("p2", set(goodP, "model=other", "page_size=16", "context=100000")), node("d2", set(goodD, "model=other", "page_size=16", "context=100000"))))
	for id, f := range m {
		t.Errorf("%s: %s", id, f.Message)
	}
}

func TestAFollowerWithItsFirstMachineIsNoNodeOfItsOwn(t *testing.T) {
	for id, f := range check(fleet(node("p", goodP), node("p-1", set(goodP, "node_rank=1", "pool_tokens=", "context=")), node("d", goodD))) {
		t.Errorf("%s: %s", id, f.Message)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1048576: "1,048,576", -1000: "-1,000", -999: "-999"} {
		if got := Thousands(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// A command whose arguments are not here (an array, a script) names an engine and nothing else. It passed as a list of
// packages once.
func TestALaunchWithoutNumbersDoesNotPass(t *testing.T) {
	n := node("p", "engine=sglang version=0.5.23")
	n.Manifest = true
	if m := check(fleet(n)); m[MissingFact].Blind {
		t.Errorf("a list of packages: %+v", m[MissingFact])
	}
	n.Launch = true
	if m := check(fleet(n)); !m[MissingFact].Blind {
		t.Errorf("a launch: %+v", m)
	}
}

// The check uses one of two values; if the fleet passes by it and would not by the other, it has not been compared.
func TestADisagreementThatHidesASmallPoolDoesNotPass(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		key   facts.Key
		file  string
		w     facts.Weight
		blind bool
	}{
		"another source's context": {"1048576", facts.Context, "info.json", facts.Args, true},
		"the log's own argument":   {"1048576", facts.Context, "p.log", facts.Args, true},
		"another source's pool":    {"100000", facts.Pool, "info.json", facts.Args, true},
		"a smaller context":        {"4096", facts.Context, "info.json", facts.Args, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("p", goodP)
			n.Put(c.key, c.value, facts.Source{Name: c.file, Line: 99}, c.w)
			f, ok := check(fleet(n, node("d", goodD)))[Disagree]
			if !ok || f.Blind != c.blind {
				t.Errorf("%+v, want blind %t", f, c.blind)
			}
		})
	}
}
