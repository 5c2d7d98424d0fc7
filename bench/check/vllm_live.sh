#!/bin/bash
# vllm_live.sh: starts a real vLLM worker on this machine's CPU and checks it live, by its saved answers and by its log.
# Needs Python 3.11, cc and nm; 1 GB to fetch once, 3 GB of disk, 4 GB of memory. The environment stays in .cache/check-vllm.
set -euo pipefail
cd "$(dirname "$0")/../.."
env=${SLUICE_VLLM:-.cache/check-vllm}
port=${PORT:-18111}
bench/e2e/vllm/install.sh "$env"
go build -o "$env/sluice" ./cmd/sluice
# A model is a shape here: the weights are made up by the engine, and no tokenizer is needed.
mkdir -p "$env/model"
cat >"$env/model/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 8192, "torch_dtype": "float32",
 "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2}
JSON
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
log=$env/worker.log
setsid nice "$env/venv/bin/vllm" serve "$env/model" --served-model-name m --load-format dummy --skip-tokenizer-init --dtype float32 --enforce-eager \
  --host 127.0.0.1 --port "$port" --max-model-len 8192 --block-size 32 --num-gpu-blocks-override 1024 >"$log" 2>&1 &
worker=$!
stop() { kill -- -"$worker" 2>/dev/null || true; wait "$worker" 2>/dev/null || true; }
trap stop EXIT
for i in $(seq 900); do
  curl -sf -o /dev/null "http://127.0.0.1:$port/health" && break
  kill -0 "$worker" || { tail -30 "$log"; exit 1; }
  [ "$i" = 900 ] && { tail -30 "$log"; echo "not up after 900 s"; exit 1; }
  sleep 1
done
echo "worker up after $SECONDS s"

want() { # exit code, text, arguments of check
  local code=$1 text=$2 got=0
  shift 2
  "$env/sluice" check "$@" >"$env/out" 2>"$env/err" || got=$?
  if [ "$got" != "$code" ] || ! grep -q -- "$text" "$env/out"; then
    cat "$env/out" "$env/err"
    echo "FAILED: sluice check $*: exit $got, want $code and $text"
    exit 1
  fi
  echo "ok: sluice check $* -> exit $code, $text"
}
url=http://127.0.0.1:$port
want 0 '"engine": "vllm"' "$url" --format json
for fact in '"version": "0.32.0"' '"pool_tokens": 32768' '"context": 8192' '"page_size": 32'; do
  want 0 "$fact" "$url" --format json
done
want 1 context-not-served "$url" --context 1000000
want 0 probe-safe "$url" --probe-live --all
for a in metrics version v1/models; do curl -sf "$url/$a" >"$env/w_$(basename "$a").$([ "$a" = metrics ] && echo txt || echo json)"; done
want 0 '"pool_tokens": 32768' "$env/w_metrics.txt" "$env/w_version.json" "$env/w_models.json" --format json
want 0 '"context": 8192' "$log" --format json
"$env/sluice" check "$url" | tee "$env/report.txt"
