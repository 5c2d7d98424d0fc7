package fit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// GiB is 2^30 bytes; the engines' logs call it GB.
const GiB = 1 << 30

// Input is what a derivation starts from.
type Input struct {
	Node      capacity.Facts // pool and context may be 0
	Shape     *Shape         // nil: not given
	Want      int            // the context that shall fit; 0: the node's own
	TP        int
	Fraction  float64 // of memory, as set; 0: not known
	TotalGiB  float64 // free on the device before weights
	AfterGiB  float64 // free after weights
	PoolGiB   float64 // of the pool
	AfterPool float64 // free right after the pool
	FreeGiB   float64 // free when the engine was up
	Available float64 // vLLM: for KV
}

// FromNode takes the figures out of a node's facts.
func FromNode(n *facts.Node, want int) Input {
	f := func(k facts.Key) float64 {
		v, err := strconv.ParseFloat(n.Text(k), 64)
		if err != nil {
			return 0 // not known
		}
		return v
	}
	in := Input{Node: n.Capacity(0), Want: want, TP: max(n.Int(facts.TP), 1), Fraction: f(facts.MemFraction), TotalGiB: f(facts.TotalGB),
		AfterGiB: f(facts.AfterWeightsGB), PoolGiB: f(facts.KVGB), AfterPool: f(facts.AfterPoolGB), FreeGiB: f(facts.FreeGB), Available: f(facts.AvailableKVGiB)}
	if w := f(facts.WeightsGB); in.TotalGiB == 0 && in.AfterGiB > 0 && w > 0 {
		in.TotalGiB = in.AfterGiB + w
	}
	return in
}

// elemBytes is the size of one number of a KV type.
func elemBytes(dtype string) int {
	switch d := facts.CanonicalDType(dtype); {
	case strings.HasPrefix(d, "fp8"), strings.HasPrefix(d, "int8"), strings.HasPrefix(d, "uint8"):
		return 1
	case d == "float32":
		return 4
	}
	return 2
}

// Option is one change that makes the wanted context fit, or does not.
type Option struct {
	Flag string
	Fits bool
	How  string
}

// Plan is a derivation.
type Plan struct {
	Safe     int // the largest safe context; 0 when the pool is not known
	Lines    []string
	PerToken float64 // bytes a token on a rank; 0 when it cannot be derived
	Options  []Option
}

// Derive makes the plan.
func Derive(in Input) (p Plan) {
	f := in.Node
	page := max(f.PageSize, 1)
	say := func(format string, a ...any) { p.Lines = append(p.Lines, fmt.Sprintf(format, a...)) }
	want := in.Want
	if want == 0 {
		want = f.Context
	}
	flag := map[bool]string{true: "--max-model-len", false: "--context-length"}[strings.HasPrefix(f.Engine, "vllm")]
	if f.PoolTokens > 0 {
		p.Safe = f.Usable()
		if in.Shape != nil && in.Shape.Positions > 0 && p.Safe > in.Shape.Positions {
			say("the model was made for %d positions, fewer than the pool holds", in.Shape.Positions)
			p.Safe = in.Shape.Positions
		}
		say("largest safe context = (pool %d - reserve %d) / page %d x page %d = %d: %s %d", f.PoolTokens, f.Reserved, page, page, f.Usable(), flag, p.Safe)
	}
	elem := elemBytes(f.DType)
	if in.Shape != nil {
		n, how := in.Shape.PerToken(elem, in.TP)
		p.PerToken = float64(n)
		say("KV of one token (%s) = %s", nameOr(f.DType, "16-bit"), how)
		if in.Shape.Sliding+in.Shape.Linear > 0 {
			say("%d layers with a window and %d with a recurrent state keep no KV of every token and are not counted", in.Shape.Sliding, in.Shape.Linear)
		}
	}
	if in.PoolGiB > 0 && f.PoolTokens > 0 {
		measured := in.PoolGiB * GiB / float64(f.PoolTokens)
		say("measured: %.2f GiB / %d tokens = %.0f bytes a token on a rank", in.PoolGiB, f.PoolTokens, measured)
		if p.PerToken > 0 && math.Abs(measured-p.PerToken) > 0.1*p.PerToken {
			say("the two differ by %.0f %%: the log's figure is used (padding, an index or another model shape)", 100*math.Abs(measured-p.PerToken)/p.PerToken)
		}
		p.PerToken = measured
	} else if in.Available > 0 && f.PoolTokens > 0 {
		p.PerToken = in.Available * GiB / float64(f.PoolTokens)
		say("measured: %.2f GiB / %d tokens = %.0f bytes a token on a rank", in.Available, f.PoolTokens, p.PerToken)
	}
	if want == 0 {
		return p
	}
	need := (want + f.Reserved + page - 1) / page * page
	say("wanted context %d needs %d slots (%d + reserve %d, whole pages)", want, need, want, f.Reserved)
	if f.PoolTokens >= need {
		say("the pool of %d holds it", f.PoolTokens)
		return p
	}
	if p.PerToken == 0 {
		say("how much memory that is cannot be said without --model, or a log with the pool's size in GB")
		return p
	}
	needGiB := float64(need) * p.PerToken / GiB
	say("%d slots x %.0f bytes = %.2f GiB a rank", need, p.PerToken, needGiB)
	if f.PoolTokens == 0 {
		return p
	}
	have := float64(f.PoolTokens) * p.PerToken / GiB
	short := needGiB - have
	say("the pool has %d x %.0f bytes = %.2f GiB: %.2f GiB short", f.PoolTokens, p.PerToken, have, short)
	p.options(in, need, have, short)
	return p
}

func nameOr(s, other string) string {
	if s == "" || s == "auto" {
		return other
	}
	return s
}

// headroom is the memory that an engine needs beside weights, pool and graphs, a guess that is shown as one.
const headroom = 2.0

func (p *Plan) options(in Input, need int, have, short float64) {
	f := in.Node
	vllm := strings.HasPrefix(f.Engine, "vllm")
	frac := "--mem-fraction-static"
	if vllm {
		frac = "--gpu-memory-utilization"
	}
	add := func(fits bool, flag, format string, a ...any) {
		p.Options = append(p.Options, Option{flag, fits, fmt.Sprintf(format, a...)})
	}
	// Memory fraction: each GiB more of pool is one GiB less of free memory.
	switch {
	case in.FreeGiB > 0 && in.TotalGiB > 0:
		left := in.FreeGiB - short
		if in.Fraction > 0 {
			to := math.Ceil((in.Fraction+short/in.TotalGiB)*1000) / 1000
			add(left >= headroom && to < 1, fmt.Sprintf("%s %.3f", frac, to), "%.3f + %.2f / %.2f GiB = %.3f; leaves %.2f - %.2f = %.2f GiB free (%.0f are wanted)",
				in.Fraction, short, in.TotalGiB, in.Fraction+short/in.TotalGiB, in.FreeGiB, short, left, headroom)
		} else {
			add(left >= headroom, frac, "raise it by %.2f / %.2f GiB = %.3f; leaves %.2f - %.2f = %.2f GiB free (%.0f are wanted)", short, in.TotalGiB, short/in.TotalGiB, in.FreeGiB, short, left, headroom)
		}
	case in.Fraction > 0 && in.Available > 0 && in.TotalGiB > 0:
		to := in.Fraction + short/in.TotalGiB
		add(to < 0.98, fmt.Sprintf("%s %.3f", frac, to), "%.3f + %.2f / %.2f GiB", in.Fraction, short, in.TotalGiB)
	}
	// CUDA graphs: what they took can go to the pool.
	if in.AfterPool > in.FreeGiB && in.FreeGiB > 0 && in.FreeGiB-headroom < short {
		graphs := in.AfterPool - in.FreeGiB
		add(graphs+in.FreeGiB-headroom >= short, "--cuda-graph-max-bs (lower)", "graphs and buffers took %.2f - %.2f = %.2f GiB after the pool; with none of them and a higher fraction %.2f GiB could go to the pool, %.2f are short",
			in.AfterPool, in.FreeGiB, graphs, math.Max(graphs+in.FreeGiB-headroom, 0), short)
	}
	// Quantization of the cache.
	if e := elemBytes(f.DType); e > 1 {
		slots := int(float64(f.PoolTokens) * float64(e))
		typ := "fp8_e4m3"
		if vllm {
			typ = "fp8"
		}
		add(slots >= need, "--kv-cache-dtype "+typ, "%d x %d / 1 byte = %d slots, %d are needed; it changes replies: evaluate first", f.PoolTokens, e, slots, need)
	} else {
		add(false, "--kv-cache-dtype", "the cache has one byte a number already")
	}
	// Parallelism: the cache and the weights are split further.
	tp := in.TP * 2
	flag := "--tp-size"
	if vllm {
		flag = "--tensor-parallel-size"
	}
	switch {
	case in.Shape != nil && in.Shape.Latent > 0, in.Shape != nil && in.Shape.KVHeads/in.TP < 2:
		if in.AfterGiB > 0 && in.TotalGiB > 0 {
			weights := in.TotalGiB - in.AfterGiB
			more := have + weights/2
			slots := int(more * GiB / p.PerToken)
			add(slots >= need, fmt.Sprintf("%s %d", flag, tp), "the cache is not split further (each rank keeps a whole head or latent), but half of the weights leaves: (%.2f + %.2f / 2) GiB / %.0f bytes = %d slots, %d are needed", have, weights, p.PerToken, slots, need)
		}
	case in.AfterGiB > 0 && in.TotalGiB > 0:
		weights := in.TotalGiB - in.AfterGiB
		slots := int((have + weights/2) * GiB / (p.PerToken / 2))
		add(slots >= need, fmt.Sprintf("%s %d", flag, tp), "half of the KV heads and of the weights a rank: (%.2f + %.2f / 2) GiB / %.0f bytes = %d slots, %d are needed", have, weights, p.PerToken/2, slots, need)
	default:
		slots := f.PoolTokens * 2
		add(slots >= need, fmt.Sprintf("%s %d", flag, tp), "half of the KV heads a rank: at least %d x 2 = %d slots, %d are needed", f.PoolTokens, slots, need)
	}
	ctx := map[bool]string{true: "--max-model-len", false: "--context-length"}[vllm]
	add(true, fmt.Sprintf("%s %d", ctx, p.Safe), "what the pool holds today")
}
