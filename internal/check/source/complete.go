package source

import (
	"path"
	"strings"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// suffixes are what the names of saved answers end with, after the node's own name: P_server_info.json, P.metrics.
var suffixes = []string{"server_info", "get_server_info", "model_info", "get_model_info", "metrics", "models", "version", "health", "loads", "startup", "route"}

// stem is the node's name in a file's name: directory, extension and the name of the saved answer taken off. A file
// that is called by its answer alone (metrics.txt) is named by its directory.
func stem(file string) string {
	base := path.Base(strings.ReplaceAll(file, "\\", "/"))
	base = strings.TrimSuffix(base, ".gz")
	ext := ""
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		base, ext = base[:i], base[i:]
	}
	if ext == ".log" || ext == ".metrics" || ext == ".prom" { // the extension says what it is
		return base
	}
	base = strings.TrimSuffix(base, ".body")
	for _, s := range suffixes {
		if base == s {
			dir := path.Base(path.Dir(strings.ReplaceAll(file, "\\", "/")))
			if dir == "." || dir == "/" {
				return base
			}
			return dir
		}
		for _, sep := range []string{"_", ".", "-"} {
			if r, ok := strings.CutSuffix(base, sep+s); ok && r != "" {
				return r
			}
		}
	}
	return base
}

// versionOfName is the release that a file's name begins with or names after the engine: 0.5.19-prefill.log,
// sglang-0.5.19.log. It is a guess and is marked as one.
func versionOfName(name, engine string) string {
	if v := leadingVersion(strings.TrimPrefix(name, "v")); v != "" && strings.Count(v, ".") >= 2 {
		return v
	}
	if engine != "" {
		if v := versionAfter(strings.NewReplacer("-", " ", "_", " ").Replace(name), engine); strings.Count(v, ".") >= 2 {
			return v
		}
	}
	return ""
}

// complete adds what follows from the rest: engine defaults where an argument list was seen, and a release guessed from
// the file's name where nothing else says one and the lines allow it.
func complete(n *facts.Node) {
	engine := n.Text(facts.Engine)
	if n.Text(facts.Version) == "" {
		seen := map[string]bool{}
		for _, f := range n.Facts {
			if seen[f.At.Name] || f.At.Line == 0 {
				continue
			}
			seen[f.At.Name] = true
			v := versionOfName(path.Base(f.At.Name), engine)
			if v == "" || n.MinVer != "" && advisory.Compare(v, n.MinVer) < 0 || n.MaxVer != "" && advisory.Compare(v, n.MaxVer) >= 0 {
				continue
			}
			n.Put(facts.Version, v, facts.Source{Name: f.At.Name + " (its name)"}, facts.Guessed)
			break
		}
	}
	if !hasArguments(n) {
		return
	}
	at := facts.Source{Name: "default of " + engine}
	put := func(k facts.Key, v string) {
		if _, ok := n.Get(k); !ok {
			n.Put(k, v, at, facts.Guessed)
		}
	}
	switch engine {
	case "sglang":
		for _, k := range []facts.Key{facts.AutoTruncate, facts.LoRA, facts.HiCache, facts.Offload, facts.RoleSwitch, facts.HeaderOverrides,
			facts.RustServer, facts.StreamingSession, facts.EncoderDisagg, facts.Checksum, facts.Metrics, facts.APIKey, facts.AdminKey} {
			put(k, "false")
		}
		put(facts.PrefixCache, "true")
		put(facts.Overlap, "true")
		put(facts.TP, "1")
		put(facts.PP, "1")
		put(facts.DP, "1")
		if role := n.Text(facts.Role); role == "prefill" || role == "decode" {
			put(facts.Allocation, "early")
			put(facts.Connector, "mooncake")
			put(facts.BootstrapPort, "8998")
			deferredDefault(n, at)
		}
	case "vllm":
		for _, k := range []facts.Key{facts.LoRA, facts.PromptEmbeds, facts.DevMode, facts.APIKey, facts.PD} {
			put(k, "false")
		}
		if n.Text(facts.PD) == "false" {
			put(facts.Role, "both")
		}
		put(facts.TP, "1")
		put(facts.PP, "1")
		put(facts.DP, "1")
		put(facts.Nodes, "1")
		if v := n.Text(facts.Version); v != "" && advisory.Compare(v, "0.9.0") >= 0 { // on by default in V1
			put(facts.PrefixCache, "true")
			put(facts.V1, "true")
		}
		if n.Text(facts.PD) == "true" && strings.Contains(n.Text(facts.Connector), "Nixl") {
			put(facts.SideChannelPort, "5600")
		}
	}
}

// deferredDefault is SGLang's: on from 0.5.21, there but off in 0.5.19, not there before.
func deferredDefault(n *facts.Node, at facts.Source) {
	v := n.Text(facts.Version)
	if _, ok := n.Get(facts.DeferredRelease); ok {
		return
	}
	switch _, ok := advisory.ParseVersion(v); {
	case ok && advisory.Compare(v, "0.5.21") >= 0, v == "" && n.MinVer != "" && advisory.Compare(n.MinVer, "0.5.21") >= 0:
		n.Put(facts.DeferredRelease, "true", at, facts.Guessed)
	case ok, v == "" && n.MaxVer != "" && advisory.Compare(n.MaxVer, "0.5.21") <= 0:
		n.Put(facts.DeferredRelease, "false", at, facts.Guessed)
	}
}

// hasArguments reports whether a whole list of arguments was seen, so that what is not in it has its default.
func hasArguments(n *facts.Node) bool {
	return n.Manifest || n.Whole
}
