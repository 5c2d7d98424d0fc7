#!/bin/bash
# log.sh [BYTES]: makes a busy log of that size (default 1 GB) around one start-up and reads it once: bytes a second and
# the most memory. The log is deleted afterwards.
set -eu
cd "$(dirname "$0")/../.."
size=${1:-1000000000}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/sluice" ./cmd/sluice
cat internal/check/testdata/incident/prefill.log >"$dir/prefill.log"
# One day's lines, over and over.
for i in $(seq 1000); do
  echo "[2026-09-02 11:00:0$((i % 10)) TP0] Prefill batch, #new-seq: 1, #new-token: $i, #cached-token: 0, token usage: 0.02, #running-req: 0, #queue-req: 0, #pending-token: 0"
  echo "[2026-09-02 11:00:0$((i % 10))] INFO:     10.0.0.$((i % 250)):$((30000 + i)) - \"POST /generate HTTP/1.1\" 200 OK"
  echo "[2026-09-02 11:00:0$((i % 10)) TP0] Decode batch, #running-req: $((i % 64)), #token: $i, token usage: 0.12, cuda graph: True, gen throughput (token/s): 812.1, #queue-req: 0"
  echo "[2026-09-02 11:00:0$((i % 10)) TP0] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds, request $i"
done >"$dir/day"
{ while cat "$dir/day"; do :; done 2>/dev/null || true; } | head -c "$size" >>"$dir/prefill.log"
cat "$dir/prefill.log" >/dev/null # from the page cache, so that the disk is not what is measured
start=$(date +%s.%N)
set +e
"$dir/sluice" check "$dir/prefill.log" --format json >"$dir/out.json" &
pid=$!
peak=0
while kill -0 $pid 2>/dev/null; do
  kb=$(awk '/VmHWM/{print $2}' /proc/$pid/status 2>/dev/null)
  [ "${kb:-0}" -gt "$peak" ] && peak=$kb
  sleep 0.02
done
wait $pid
code=$?
set -e
end=$(date +%s.%N)
grep -q '"id": "pool-below-context"' "$dir/out.json"
awk -v b="$(stat -c %s "$dir/prefill.log")" -v s="$start" -v e="$end" -v p="$peak" -v c=$code \
  'BEGIN { printf "%d MB in %.2f s: %.0f MB/s, peak memory %.0f MB, exit %d\n", b/1e6, e-s, b/1e6/(e-s), p/1024, c }'
