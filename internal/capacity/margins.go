package capacity

// Engines whose margins are known. A fleet's engine names (vllm-nixl, vllm-mooncake) begin with these.
const (
	Native = "native"
	SGLang = "sglang"
	VLLM   = "vllm"
)

// widestPage stands in for a page size that could not be had: the largest that the engines choose by themselves.
const widestPage = 128

// Reserve is how many slots of a pool an engine never gives to one sequence, in tokens. Fill Facts.Reserved with it.
//
//   - SGLang admits a request only if its pages, its output and one page more fit below the pool, and refuses a prompt at
//     min(context, pool)-6 already: two pages cover both (sgl-project/sglang#39271, managers/tp_worker.py).
//   - vLLM counts block 0, the null block, among its blocks but never hands it out: one block.
//   - The native engine's pool is what it says it is.
//
// A page size of 0 (unknown) reads as the widest an engine chooses by itself for SGLang, and as vLLM's default of 16.
func Reserve(engine string, pageSize int) int {
	switch {
	case has(engine, SGLang):
		if pageSize <= 0 {
			pageSize = widestPage
		}
		// A page of one token still costs the seven slots of the prompt check.
		return max(2*pageSize, 7)
	case has(engine, VLLM):
		if pageSize <= 0 {
			pageSize = 16
		}
		return pageSize
	}
	return 0
}

// LongestPrompt is the longest prompt an engine accepts by its own check, in tokens, given its whole pool and its
// context. SGLang refuses at min(context, pool)-6 and tests with >=, so the longest accepted is one less (the same in
// 0.5.4 to 0.5.23). vLLM needs room for one token of output. Never negative.
func LongestPrompt(engine string, pool, context int) int {
	n := min(pool, context)
	switch {
	case has(engine, SGLang):
		n -= 7
	case has(engine, VLLM):
		n--
	}
	return max(n, 0)
}

func has(engine, name string) bool {
	return len(engine) >= len(name) && engine[:len(name)] == name
}
