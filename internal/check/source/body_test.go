package source

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
)

func TestMetricsGivePoolContextAndCounters(t *testing.T) {
	n := &facts.Node{}
	lines, err := readMetrics(n, strings.NewReader(`# HELP sglang:max_total_num_tokens x
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{engine_type="prefill",model_name="m",dp_rank="0"} 1024.0
sglang:max_total_num_tokens{engine_type="prefill",model_name="m",dp_rank="1"} 512.0
sglang:context_len{engine_type="prefill",model_name="m"} 8192.0
sglang:page_size{engine_type="prefill",model_name="m"} 16.0
sglang:decode_deferred_kv_release_total{outcome="timeout",model_name="m"} 2.0
sglang:decode_deferred_kv_release_total{outcome="drained",model_name="m"} 9.0
sglang:num_transfer_failed_reqs_total{model_name="m"} 0.0
sglang:prompt_tokens_total{is_streaming="false"} 5.0
sglang:prompt_tokens_total{is_streaming="true"} 7.0
process_start_time_seconds 1.79604e+09
`), "m.txt")
	if err != nil || lines == 0 {
		t.Fatal(lines, err)
	}
	if brief(n) != " sglang prefill pool 512 context 8192 page 16" || n.Text(facts.PromptTokens) != "12" || n.Events[EventLateRelease].Count != 2 || n.Events[EventTransfer] != nil {
		t.Errorf("%s %s %+v", brief(n), n.Text(facts.PromptTokens), n.Events)
	}
	if len(n.RankValues(facts.Pool)) != 2 {
		t.Error("the ranks' pools are not told apart")
	}
}

func TestVLLMCacheGauge(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"size and concurrency": {`vllm:cache_config_info{block_size="128",kv_cache_max_concurrency="85.328125",kv_cache_size_tokens="699008",num_gpu_blocks="5461",enable_prefix_caching="True"} 1.0`, " vllm  pool 699008 context 8192 page 128"},
		"blocks only":          {`vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="None"} 1.0`, " vllm  pool 16000 context 0 page 16"},
		"contradicted log":     {`vllm:cache_config_info{kv_cache_max_concurrency="0.47086269282041515",kv_cache_size_tokens="123433"} 1.0`, " vllm  pool 123433 context 262144 page 0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &facts.Node{}
			if _, err := readMetrics(n, strings.NewReader(c.line+"\n"), "m"); err != nil {
				t.Fatal(err)
			}
			if brief(n) != c.want {
				t.Errorf("%q, want %q", brief(n), c.want)
			}
		})
	}
}

func TestAnswersOfEngines(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"server_info": {`{"model_path":"m","context_length":null,"page_size":64,"disaggregation_mode":"prefill","max_total_num_tokens":681280,"max_req_input_len":681274,"version":"0.5.19",
			"internal_states":[{"memory_usage":{"token_capacity":681280}},{"memory_usage":{"token_capacity":600000}}]}`, " sglang prefill pool 600000 context 0 page 64"},
		"server_info, context from the limit": {`{"disaggregation_mode":"null","max_total_num_tokens":681280,"max_req_input_len":8186}`, " sglang both pool 681280 context 8192 page 0"},
		"gRPC":                                {`{"model_path":"m","is_generation":true,"max_context_length":414382,"max_req_input_len":131066}`, " sglang  pool 414382 context 131072 page 0"},
		"models":                              {`{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":8192},{"id":"a","parent":"m","owned_by":"vllm"}]}`, " vllm  pool 0 context 8192 page 0"},
		"route":                               {`{"attn_tp_size":1,"page_size":16,"kv_cache_dtype":"auto"}`, " sglang prefill pool 0 context 0 page 16"},
		"vLLM text":                           {`{"vllm_config":"model='m', max_seq_len=8192, kv_transfer_config=KVTransferConfig(kv_connector='NixlConnector', kv_role='kv_consumer')"}`, " vllm decode pool 0 context 8192 page 0"},
		"captured":                            {"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"version\":\"0.32.0\"}", " vllm  pool 0 context 0 page 0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &facts.Node{}
			if err := readBody(n, []byte(c.body), facts.Source{Name: "f"}); err != nil {
				t.Fatal(err)
			}
			if brief(n) != c.want {
				t.Errorf("%q, want %q", brief(n), c.want)
			}
		})
	}
}

func TestKeysInAnswersAreNotKept(t *testing.T) {
	n := &facts.Node{}
	if err := readBody(n, []byte(`{"max_total_num_tokens":1,"api_key":"sk-one","admin_api_key":"sk-two","launch_command":"--api-key sk-one","internal_states":[{"api_key":"sk-one"}]}`), facts.Source{Name: "f"}); err != nil {
		t.Fatal(err)
	}
	for _, f := range n.Facts {
		if strings.Contains(f.Value, "sk-") {
			t.Errorf("%s keeps a key", f.Key)
		}
	}
	if yes, _ := n.Bool(facts.APIKey); !yes {
		t.Error("that a key is set is not known")
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"max_total_num_tokens":1,"internal_states":[{"memory_usage":{"token_capacity":2}}],"api_key":null}`))
	f.Add([]byte(`{"vllm_config":{"cache_config":{"block_size":16,"num_gpu_blocks":10},"model_config":{"served_model_name":["a"]}}}`))
	f.Add([]byte(`{"object":"list","data":[{"id":"m","max_model_len":1e99}]}`))
	f.Add([]byte("HTTP/1.1 200 OK\n\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := &facts.Node{}
		if readBody(n, b, facts.Source{Name: "f"}) == nil {
			complete(n)
		}
	})
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte("sglang:max_total_num_tokens{a=\"b\\\"\"} 1e3\nvllm:cache_config_info{block_size=\"16\"} 1\n"))
	f.Add([]byte("vllm:cache_config_info{kv_cache_size_tokens=\"9\",kv_cache_max_concurrency=\"1e-300\"} 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := &facts.Node{}
		if _, err := readMetrics(n, bytes.NewReader(b), "f"); err != nil {
			t.Fatal(err)
		}
	})
}
