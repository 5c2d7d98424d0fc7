package source

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// busyLog is a start and then what an engine writes all day: batches, accesses, statistics, a stack trace now and then.
func busyLog(engine string, size int) []byte {
	var b bytes.Buffer
	if engine == "sglang" {
		fmt.Fprintln(&b, argsP)
		fmt.Fprintln(&b, poolP)
	} else {
		fmt.Fprintln(&b, "INFO 02-19 23:56:55 [kv_cache_utils.py:524] GPU KV cache size: 2,042,016 tokens")
		fmt.Fprintln(&b, "INFO 02-19 23:56:55 [kv_cache_utils.py:527] Maximum concurrency for 2,048 tokens per request: 997.08x")
	}
	for i := 0; b.Len() < size; i++ {
		switch {
		case engine == "noise": // nothing that is known, and nothing that can be told at a glance
			fmt.Fprintf(&b, "%08d the scheduler of memory KV blocks says version %d failed to exceed max args: value=%d, other text follows here and there\n", i, i%7, i)
		case engine == "vllm" && i%3 == 0:
			fmt.Fprintf(&b, "INFO 02-19 23:57:%02d [loggers.py:127] Engine 000: Avg prompt throughput: %d.5 tokens/s, Avg generation throughput: 98.2 tokens/s, Running: 12 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.%d%%, Prefix cache hit rate: 31.4%%\n", i%60, i%1000, i%10)
		case engine == "vllm":
			fmt.Fprintf(&b, "INFO:     10.0.0.%d:%d - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n", i%250, 30000+i%30000)
		case i%50 == 49:
			fmt.Fprintf(&b, "[2026-09-02 11:%02d:%02d TP0] Traceback (most recent call last): File \"scheduler.py\", line %d, in event_loop_overlap\n", i/60%60, i%60, i)
		case i%3 == 0:
			fmt.Fprintf(&b, "[2026-09-02 11:%02d:%02d TP0] Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: 0, token usage: 0.02, #running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1\n", i/60%60, i%60, i)
		case i%3 == 1:
			fmt.Fprintf(&b, "[2026-09-02 11:%02d:%02d] INFO:     10.0.0.%d:%d - \"POST /generate HTTP/1.1\" 200 OK\n", i/60%60, i%60, i%250, 30000+i%30000)
		default:
			fmt.Fprintf(&b, "[2026-09-02 11:%02d:%02d TP0] Decode batch, #running-req: %d, #token: %d, token usage: 0.12, cuda graph: True, gen throughput (token/s): 812.1, #queue-req: 0\n", i/60%60, i%60, i%64, i)
		}
	}
	return b.Bytes()
}

// BenchmarkLog is bytes of a busy log read a second, in one pass.
func BenchmarkLog(b *testing.B) {
	for _, engine := range []string{"sglang", "vllm", "noise"} {
		for _, wrap := range []string{"plain", "cri"} {
			b.Run(engine+"/"+wrap, func(b *testing.B) {
				log := busyLog(engine, 16<<20)
				if wrap == "cri" {
					var w bytes.Buffer
					for l := range bytes.Lines(log) {
						w.WriteString("2026-09-02T10:00:01.123456789Z stdout F ")
						w.Write(l)
					}
					log = w.Bytes()
				}
				b.SetBytes(int64(len(log)))
				b.ReportAllocs()
				for b.Loop() {
					s := newLogScan("f", "f", "f")
					if err := s.scan(bytes.NewReader(log)); err != nil {
						b.Fatal(err)
					}
					if ns := s.finish(); len(ns) != 1 || ns[0].Int(facts.Pool) == 0 {
						b.Fatal(ns)
					}
				}
			})
		}
	}
}
