package source

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// sglang reads a line of SGLang's start. It reports whether the line said something.
func (s *logScan) sglang(st *stream, b []byte, at facts.Source) bool {
	switch {
	case bytes.Contains(b, []byte("max_total_num_token")):
		return s.sglangSummary(st, b, at)
	case bytes.Contains(b, []byte("server_args")):
		return s.sglangArgs(st, b, at)
	case bytes.Contains(b, []byte("#tokens:")):
		return s.sglangCache(st, b, at)
	case bytes.Contains(b, []byte("_layer_tokens=")):
		n := s.current(st, "sglang")
		_, rank := engineTime(b)
		if v, ok := intValue(b, "full_layer_tokens"); ok {
			n.PutRank(facts.Pool, strconv.Itoa(v), at, facts.Total, rank)
		}
		if v, ok := intValue(b, "swa_layer_tokens"); ok {
			n.PutRank(facts.SWAPool, strconv.Itoa(v), at, facts.Total, rank)
		}
		n.Put(facts.Hybrid, "true", at, facts.Said)
		return true
	case bytes.Contains(b, []byte("memory calculation")):
		if v, ok := intValue(b, "full_token"); ok {
			n := s.current(st, "sglang")
			_, rank := engineTime(b)
			n.PutRank(facts.Pool, strconv.Itoa(v), at, facts.Total, rank)
			return true
		}
	case bytes.Contains(b, []byte("KV pool holds ")):
		pool, ok := intAfter(b, "KV pool holds ")
		c, okC := intAfter(b, "--context-length ")
		if ok && okC {
			n := s.current(st, "sglang")
			n.Put(facts.Pool, strconv.Itoa(pool), at, facts.Total)
			n.Put(facts.Context, strconv.Itoa(c), at, facts.Total)
			n.MinVer = later(n.MinVer, "0.5.23")
			return true
		}
	case bytes.Contains(b, []byte("chunk cache for decode server")):
		n := s.current(st, "sglang")
		n.Put(facts.Role, "decode", at, facts.Part)
		n.Put(facts.PD, "true", at, facts.Part)
		return true
	case bytes.Contains(b, []byte("Load weight")):
		return s.sglangWeights(st, b, at)
	case bytes.Contains(b, []byte("Using KV cache dtype: ")):
		r, _ := after(b, "Using KV cache dtype: ")
		s.current(st, "sglang").Put(facts.KVDType, token(r), at, facts.Part)
		return true
	case bytes.Contains(b, []byte("hybrid_swa=True")), bytes.Contains(b, []byte("hybrid_ssm=True")):
		s.current(st, "sglang").Put(facts.Hybrid, "true", at, facts.Said)
		return true
	case bytes.Contains(b, []byte("Memory pool end")):
		if g := decimalAfter(b, "avail mem="); g != "" {
			s.current(st, "sglang").Put(facts.AfterPoolGB, g, at, facts.Part)
			return true
		}
	case bytes.Contains(b, []byte("fired up and ready")):
		s.current(st, "sglang").Starts = true
		return true
	case bytes.Contains(b, []byte("glang")):
		if v := versionAfter(string(b), "sglang"); v != "" && !bytes.Contains(b, []byte("router")) {
			s.current(st, "sglang").Put(facts.Version, v, at, facts.Part)
			return true
		}
	}
	return false
}

// sglangSummary reads the line that each data-parallel rank prints once: pool and context side by side.
func (s *logScan) sglangSummary(st *stream, b []byte, at facts.Source) bool {
	pool, ok := intValue(b, "max_total_num_tokens")
	if !ok {
		if pool, ok = intValue(b, "max_total_num_token"); !ok {
			return false
		}
	}
	t, rank := engineTime(b)
	s.firstMachine(st, b, rank)
	n := s.summary(st, "sglang", rank, pool, t, at)
	n.pools[rank]++
	n.said[rank] = pool
	n.poolAt = t
	n.PutRank(facts.Pool, strconv.Itoa(pool), at, facts.Said, rank)
	for _, key := range []string{"context_len", "context_length"} {
		if c, ok := intValue(b, key); ok && c > 0 {
			n.PutRank(facts.Context, strconv.Itoa(c), at, facts.Said, rank)
			break
		}
	}
	if m, ok := intValue(b, "max_req_input_len"); ok && m > 0 {
		n.Put(facts.MaxPrompt, strconv.Itoa(m), at, facts.Said)
		if n.Text(facts.Context) == "" && m+6 < pool {
			n.Put(facts.Context, strconv.Itoa(m+6), at, facts.Total)
		}
	}
	if c, ok := intValue(b, "chunked_prefill_size"); ok {
		n.Put(facts.ChunkedPrefill, strconv.Itoa(c), at, facts.Said)
	}
	for _, k := range []string{"available_gpu_mem", "available_cpu_mem"} {
		if r, ok := value(b, k); ok {
			n.Put(facts.FreeGB, decimal(r), at, facts.Said)
		}
	}
	return true
}

// firstMachine makes the first machine of a node the one that writes: of the machines of one node whose argument lists
// came together, it alone has tensor rank 0.
func (s *logScan) firstMachine(st *stream, b []byte, dp string) {
	if len(st.nodes) < 2 || dp != "" || tensorRank(b) != "TP0" {
		return
	}
	last := st.nodes[len(st.nodes)-1]
	i := strings.LastIndexByte(last.place, ':')
	if i < 0 || last.place[i:] == ":0" || last.place[i:] == ":" {
		return
	}
	for j, n := range st.nodes[:len(st.nodes)-1] {
		if n.engine == "sglang" && n.role == last.role && n.place == last.place[:i]+":0" && len(n.pools) == 0 {
			st.nodes = append(append(st.nodes[:j], st.nodes[j+1:]...), n)
			return
		}
	}
}

// sglangArgs reads the argument list, in the two forms that it has had, with which a start begins.
func (s *logScan) sglangArgs(st *stream, b []byte, at facts.Source) bool {
	r, ok := after(b, "server_args")
	if !ok || len(r) < 2 || r[0] != '=' && r[0] != ':' {
		return false
	}
	r = bytes.TrimLeft(r[1:], " ")
	dict := len(r) > 0 && r[0] == '{'
	if !dict && !bytes.HasPrefix(r, []byte("ServerArgs(")) {
		return false
	}
	type arg struct{ key, val string }
	var args []arg
	seen := map[string]string{}
	pairs(r, func(k string, v []byte) {
		args = append(args, arg{k, plain(v)})
		seen[k] = plain(v)
	})
	if len(args) == 0 {
		return false
	}
	role := seen["disaggregation_mode"]
	t, _ := engineTime(b)
	n := s.opening(st, "sglang", role, seen["host"]+":"+seen["port"]+":"+seen["node_rank"], t, at)
	for _, a := range args {
		apply(n.Node, "sglang", a.key, a.val, at, facts.Args)
	}
	end := bytes.TrimRight(r, " ")
	n.Whole = end[len(end)-1] == ')' || end[len(end)-1] == '}'
	// The form of the list tells releases apart: a dictionary of resolved values from 0.5.19 on.
	if dict {
		n.MinVer = later(n.MinVer, "0.5.19")
	} else {
		n.MaxVer = earlier(n.MaxVer, "0.5.19")
	}
	// Arguments that appeared with a release; only a list that has them at all says something.
	for _, f := range []struct{ key, since string }{
		{"disaggregation_enable_kv_checksum", "0.5.21"}, {"disaggregation_decode_allocation_policy", "0.5.22"},
		{"admin_api_key", "0.5.8"}, {"kv_canary", "0.5.13"},
	} {
		if _, ok := seen[f.key]; ok {
			n.MinVer = later(n.MinVer, f.since)
		} else if len(args) > 200 { // the whole list
			n.MaxVer = earlier(n.MaxVer, f.since)
		}
	}
	return true
}

// sglangCache reads a rank's line about one of its caches. The first of a rank is the target model's; a second one is a
// draft model's and is not added.
func (s *logScan) sglangCache(st *stream, b []byte, at facts.Source) bool {
	tokens, ok := intAfter(b, "#tokens:")
	if !ok {
		return false
	}
	if !bytes.Contains(b, []byte("llocated")) { // "VA upper bound" names reserved addresses, not the pool
		return false
	}
	n := s.current(st, "sglang")
	_, dp := engineTime(b)
	full := fullRank(b)
	n.caches[full]++
	w := facts.Part
	if bytes.Contains(b, []byte("Post-capture")) {
		w = facts.Total
	}
	if n.caches[full] == 1 || w == facts.Total {
		n.PutRank(facts.Pool, strconv.Itoa(tokens), at, w, dp)
		if g := decimalAfter(b, "KV size: "); g != "" {
			n.Put(facts.KVGB, g, at, w)
		} else if k, v := decimalAfter(b, "K size: "), decimalAfter(b, "V size: "); k != "" && v != "" {
			kf, _ := strconv.ParseFloat(k, 64)
			vf, _ := strconv.ParseFloat(v, 64)
			n.Put(facts.KVGB, strconv.FormatFloat(kf+vf, 'f', 2, 64), at, w)
		}
	}
	if r, ok := after(b, "dtype: "); ok {
		n.Put(facts.KVDType, token(r), at, facts.Part)
		n.MinVer = later(n.MinVer, "0.5.13")
	}
	return true
}

// sglangWeights reads the memory figures around the loading of weights, per rank.
func (s *logScan) sglangWeights(st *stream, b []byte, at facts.Source) bool {
	n := s.current(st, "sglang")
	g := decimalAfter(b, "avail mem=")
	if g == "" {
		return false
	}
	if bytes.Contains(b, []byte("Load weight begin")) {
		n.Put(facts.TotalGB, g, at, facts.Part)
		return true
	}
	if !bytes.Contains(b, []byte("Load weight end")) {
		return false
	}
	n.Put(facts.AfterWeightsGB, g, at, facts.Part)
	if r, ok := value(b, "type"); ok {
		if t := token(r); t != "" {
			n.Put(facts.Architecture, t, at, facts.Part)
		}
	}
	n.Put(facts.WeightsGB, decimalAfter(b, "mem usage="), at, facts.Part)
	switch {
	case bytes.Contains(b, []byte("quant=")):
		n.MinVer = later(n.MinVer, "0.5.10")
	case bytes.Contains(b, []byte(", dtype=")) && strings.Contains(string(b), "elapsed="):
		n.MaxVer = earlier(n.MaxVer, "0.5.10")
	}
	return true
}
