package capacity

import "testing"

func TestMarginsOfEachEngine(t *testing.T) {
	for _, c := range []struct {
		engine  string
		page    int
		reserve int
	}{
		{"sglang", 64, 128}, {"sglang", 1, 7}, {"sglang", 16, 32}, {"sglang", 0, 256},
		{"vllm", 32, 32}, {"vllm-nixl", 128, 128}, {"vllm-mooncake", 0, 16},
		{"native", 64, 0}, {"", 64, 0},
	} {
		if got := Reserve(c.engine, c.page); got != c.reserve {
			t.Errorf("Reserve(%q, %d) = %d, want %d", c.engine, c.page, got, c.reserve)
		}
	}
	// The boundary seen on the running releases: pool and context 8192 refuse 8186 and accept 8185.
	if got := LongestPrompt("sglang", 8192, 8192); got != 8185 {
		t.Errorf("longest SGLang prompt = %d, want 8185", got)
	}
	if got := LongestPrompt("sglang", 1024, 8192); got != 1017 {
		t.Errorf("longest SGLang prompt over a small pool = %d, want 1017", got)
	}
	if got := LongestPrompt("vllm", 32768, 8192); got != 8191 {
		t.Errorf("longest vLLM prompt = %d, want 8191", got)
	}
	if got := LongestPrompt("sglang", 3, 8); got != 0 {
		t.Errorf("longest prompt of a tiny pool = %d, want 0", got)
	}
}

// The edge that no engine warns about: a pool of exactly the context holds no full-length request with its output.
func TestReserveTurnsAnEqualPoolIntoTheSmallerLimit(t *testing.T) {
	f := Facts{Name: "p0", Role: Prefill, Engine: "sglang", PoolTokens: 1048576, Context: 1048576, PageSize: 64}
	f.Reserved = Reserve(f.Engine, f.PageSize)
	l := Node(f)
	if !l.Pool || l.Tokens != 1048448 {
		t.Errorf("limit = %+v, want the pool's 1048448", l)
	}
}
