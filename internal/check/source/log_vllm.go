package source

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// vllm reads a line of vLLM's start, V0 and V1. It reports whether the line said something.
func (s *logScan) vllm(st *stream, b []byte, at facts.Source) (hit bool) {
	switch {
	case bytes.Contains(b, []byte("KV cache size:")):
		if i := bytes.Index(b, []byte("KV cache size:")); i >= 0 {
			if v, ok := intAfter(b[i:], "KV cache size:"); ok {
				n := s.vllmSummary(st, b)
				n.PutRank(facts.Pool, strconv.Itoa(v), at, facts.Said, coreRank(b))
				hit = true
			}
		}
	case bytes.Contains(b, []byte(" blocks: ")):
		// "# GPU blocks: 5691, # CPU blocks: 2048"; a line with CPU blocks alone is the CPU's.
		if i := bytes.Index(b, []byte("# ")); i >= 0 {
			if v, ok := intAfter(b[i:], " blocks: "); ok {
				n := s.vllmSummary(st, b)
				if n.blocks == 0 || v < n.blocks { // a data-parallel rank each; the smallest counts
					n.blocks, n.blocksAt = v, at
				}
				hit = true
			}
		}
	case bytes.Contains(b, []byte("non-default args")), bytes.Contains(b, []byte("args: Namespace(")):
		return s.vllmArgs(st, b, at)
	case bytes.Contains(b, []byte("num_gpu_blocks_override=")) && bytes.Contains(b, []byte("Overriding num_gpu_blocks")):
		if v, ok := intValue(b, "num_gpu_blocks_override"); ok {
			s.current(st, "vllm").Put(facts.BlocksOverride, strconv.Itoa(v), at, facts.Said)
			hit = true
		}
	case bytes.Contains(b, []byte("max seq len (")):
		return s.vllmRefusal(st, b, at)
	case bytes.Contains(b, []byte("engine (v")):
		return s.vllmEngine(st, b, at)
	case bytes.Contains(b, []byte("ersion ")) && (bytes.Contains(b, []byte("vLLM API server version")) || bytes.Contains(b, []byte("█"))):
		r, _ := after(b, "ersion ")
		if v := leadingVersion(strings.TrimPrefix(string(r), "v")); v != "" {
			s.vllmOpening(st, b, at).Put(facts.Version, v, at, facts.Said)
			hit = true
		}
	case bytes.Contains(b, []byte("max_seq_len=")) && bytes.Contains(b, []byte("model='")):
		i := bytes.Index(b, []byte("model='")) // the engine's configuration on a line of its own
		n := s.current(st, "vllm")
		pairs(append([]byte("("), b[i:]...), func(k string, v []byte) {
			if k != "port" && k != "host" {
				apply(n.Node, "vllm", k, plain(v), at, facts.Args)
			}
		})
		hit = true
	case bytes.Contains(b, []byte("max model len ")):
		if v, ok := intAfter(b, "max model len "); ok && bytes.Contains(b, []byte("sing max model len")) {
			s.current(st, "vllm").Put(facts.Context, strconv.Itoa(v), at, facts.Total)
			hit = true
		}
	case bytes.Contains(b, []byte("max_model_len")) && bytes.Contains(b, []byte("reduced from ")):
		if r, ok := after(b, "reduced from "); ok {
			if v, ok := intAfter(r, " to "); ok {
				s.current(st, "vllm").Put(facts.Context, strconv.Itoa(v), at, facts.Said)
				hit = true
			}
		}
	case bytes.Contains(b, []byte("vailable KV cache memory:")):
		if g := decimalAfter(b, "vailable KV cache memory:"); g != "" {
			s.current(st, "vllm").Put(facts.AvailableKVGiB, g, at, facts.Said)
			hit = true
		}
	case bytes.Contains(b, []byte("data type to store kv cache")):
		if r, ok := after(b, "Using "); ok {
			s.current(st, "vllm").Put(facts.KVDType, token(r), at, facts.Part)
			hit = true
		}
	case bytes.Contains(b, []byte("attention block size to ")):
		if v, ok := intAfter(b, "attention block size to "); ok {
			s.current(st, "vllm").Put(facts.PageSize, strconv.Itoa(v), at, facts.Said)
			s.current(st, "vllm").Put(facts.Hybrid, "true", at, facts.Part)
			hit = true
		}
	case bytes.Contains(b, []byte("startup complete")), bytes.Contains(b, []byte("Starting vLLM server on")):
		if len(st.nodes) > 0 {
			st.nodes[len(st.nodes)-1].Starts = true
			hit = true
		}
	case bytes.Contains(b, []byte("Development endpoints are enabled")):
		s.current(st, "vllm").Put(facts.DevMode, "true", at, facts.Said)
		hit = true
	case bytes.Contains(b, []byte("/collective_rpc, Methods: ")):
		s.current(st, "vllm").Put(facts.DevMode, "true", at, facts.Said)
		hit = true
	case bytes.Contains(b, []byte("/v1/models, Methods: ")):
		s.current(st, "vllm")
		hit = true
	case bytes.Contains(b, []byte("Initializing NIXL ")), bytes.Contains(b, []byte("NIXL compatibility check passed")):
		n := s.current(st, "vllm")
		n.Put(facts.Connector, "NixlConnector", at, facts.Part)
		n.Put(facts.PD, "true", at, facts.Part)
		hit = true
	case bytes.Contains(b, []byte("vllm")):
		if v := versionAfter(string(b), "vllm"); v != "" {
			s.current(st, "vllm").Put(facts.Version, v, at, facts.Part)
			hit = true
		}
	}
	if r, ok := after(b, "aximum concurrency for "); ok {
		c, rest, okC := number(r)
		if okC {
			n := s.current(st, "vllm")
			n.Put(facts.Context, strconv.Itoa(c), at, facts.Said)
			if x, ok := after(rest, "tokens per request: "); ok {
				n.Put(facts.MaxConcurrency, decimal(x), at, facts.Said)
				n.conc, _ = strconv.ParseFloat(decimal(x), 64)
			}
			hit = true
		}
	}
	return hit
}

// vllmSummary finds the node of a pool line. vLLM prints it once a start (once a data-parallel rank: the smallest counts).
func (s *logScan) vllmSummary(st *stream, b []byte) *scanNode {
	n := s.current(st, "vllm")
	n.pools[""]++
	if t := vllmTime(b); !t.IsZero() {
		n.poolAt = t
	}
	return n
}

// vllmOpening finds the node that a line of a new start is about.
func (s *logScan) vllmOpening(st *stream, b []byte, at facts.Source) *scanNode {
	n := s.current(st, "vllm")
	if n.engine == "vllm" && (len(n.pools) > 0 || n.Text(facts.Refused) != "") {
		if n.before(vllmTime(b)) {
			n = s.begin(st, "vllm")
		} else {
			s.newBoot(n, at)
		}
		n.args, n.argsAt = at, vllmTime(b)
	} else if n.argsAt.IsZero() {
		n.argsAt = vllmTime(b)
	}
	return n
}

// vllmTime is the time of vLLM's prefix, "INFO 09-02 10:00:01 [core.py:77]", which names no year.
func vllmTime(b []byte) time.Time {
	b = b[:min(len(b), 160)]
	for _, level := range []string{"INFO ", "WARNING ", "ERROR ", "DEBUG "} {
		if r, ok := after(b, level); ok && len(r) >= 14 {
			if t, err := time.Parse("01-02 15:04:05", string(r[:14])); err == nil {
				return t
			}
		}
	}
	return time.Time{}
}

func (s *logScan) vllmArgs(st *stream, b []byte, at facts.Source) bool {
	r, ok := after(b, "args: ")
	if !ok {
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
	place := seen["host"] + ":" + seen["port"]
	cur := s.current(st, "vllm")
	started := len(cur.pools) > 0 || cur.Text(facts.Refused) != ""
	if started && (cur.place != "" && cur.place != place || cur.before(vllmTime(b))) { // another server in the same stream
		cur = s.begin(st, "vllm")
	} else if started {
		s.newBoot(cur, at)
	}
	cur.args, cur.place = at, place
	if started || cur.argsAt.IsZero() {
		cur.argsAt = vllmTime(b)
	}
	end := bytes.TrimRight(r, " ")
	cur.Whole = end[len(end)-1] == ')' || end[len(end)-1] == '}'
	for _, a := range args {
		apply(cur.Node, "vllm", a.key, a.val, at, facts.Args)
	}
	return true
}

func (s *logScan) vllmEngine(st *stream, b []byte, at facts.Source) bool {
	r, _ := after(b, "engine (v")
	v := leadingVersion(string(r))
	if v == "" {
		return false
	}
	n := s.vllmOpening(st, b, at)
	n.Put(facts.Version, v, at, facts.Said)
	if bytes.Contains(b, []byte("V1 LLM engine")) {
		n.Put(facts.V1, "true", at, facts.Said)
	} else if bytes.Contains(b, []byte("V0 LLM engine")) || bytes.Contains(b, []byte("an LLM engine")) {
		n.Put(facts.V1, "false", at, facts.Said)
	}
	if r, ok := after(b, "with config: "); ok {
		pairs(r, func(k string, v []byte) {
			switch k {
			case "port", "host": // not of the server
			default:
				apply(n.Node, "vllm", k, plain(v), at, facts.Args)
			}
		})
	}
	return true
}

// vllmRefusal reads the error of an engine that would not start: one sequence of the context does not fit.
func (s *logScan) vllmRefusal(st *stream, b []byte, at facts.Source) bool {
	c, ok := intAfter(b, "max seq len (")
	if !ok {
		return false
	}
	n := s.current(st, "vllm")
	n.Put(facts.Context, strconv.Itoa(c), at, facts.Said)
	n.Put(facts.Refused, "true", at, facts.Said)
	for _, p := range []string{"estimated maximum model length is ", "stored in KV cache (", "stored in the KV cache ("} {
		if v, ok := intAfter(b, p); ok {
			n.Put(facts.Pool, strconv.Itoa(v), at, facts.Total)
			break
		}
	}
	if i := bytes.Index(b, []byte(" GiB KV cache is needed")); i > 0 {
		j := i
		for j > 0 && (digit(b[j-1]) || b[j-1] == '.') {
			j--
		}
		n.Put(facts.NeededKVGiB, string(b[j:i]), at, facts.Said)
	}
	if g := decimalAfter(b, "available KV cache memory ("); g != "" {
		n.Put(facts.AvailableKVGiB, g, at, facts.Said)
	}
	return true
}

// settleBlocks turns a number of blocks into tokens. Older versions print no block size; the line with the maximum
// concurrency has it in it: concurrency x context = blocks x size.
func (s *logScan) settleBlocks(n *scanNode) {
	size := n.Int(facts.PageSize)
	if size == 0 && n.conc > 0 {
		if c := n.Int(facts.Context); c > 0 {
			x := n.conc * float64(c) / float64(n.blocks)
			if r := math.Round(x); r >= 1 && math.Abs(x-r) < 0.02*r {
				size = int(r)
				n.Put(facts.PageSize, strconv.Itoa(size), n.blocksAt, facts.Part)
			}
		}
	}
	if size > 0 {
		n.Put(facts.Pool, strconv.Itoa(n.blocks*size), n.blocksAt, facts.Said)
	}
}
