#!/usr/bin/env bash
# Runs the public openai clients, unmodified (and before plain workers those of Anthropic's API), against what it starts: conformance/run.sh [go] [npm]
# BEHIND says behind which front doors, one after the other: native (sluice serve), and the gateway before fake workers of other
# engines: sglang, vllm (NIXL), mooncake, plain (vLLM's), plain-sglang. Default: native.
set -euo pipefail
cd "$(dirname "$0")"
what=${*:-go npm}
tmp=$(mktemp -d)
pids=()
stop() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
  pids=()
}
trap 'stop; rm -rf "$tmp"' EXIT
(cd .. && CGO_ENABLED=0 go build -o "$tmp/sluice" ./cmd/sluice)
export SLUICE_API_KEY=sk-conformance SLUICE_URL SLUICE_ADMIN SLUICE_BEHIND SLUICE_LIMIT SLUICE_FITS
printf 'tester %s\n' "$(printf %s "$SLUICE_API_KEY" | sha256sum | cut -d' ' -f1)" >"$tmp/keys"

# run NAME COMMAND... starts a command and waits until its output, $tmp/NAME, has $ready in it.
run() {
  local name=$1
  shift
  : >"$tmp/$name"
  XDG_STATE_HOME=$tmp "$@" >"$tmp/$name" 2>"$tmp/$name.err" &
  pids+=($!)
  for _ in $(seq 300); do
    grep -q "$ready" "$tmp/$name" && return
    kill -0 "${pids[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  cat "$tmp/$name" "$tmp/$name.err" >&2
  exit 1
}

for SLUICE_BEHIND in ${BEHIND:-native}; do
  echo "== behind $SLUICE_BEHIND"
  SLUICE_LIMIT=16384 SLUICE_FITS=16384
  if [ "$SLUICE_BEHIND" = native ]; then
    ready='^Try:' run front "$tmp/sluice" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --context 16384 --kv-memory 256MiB --api-keys "$tmp/keys"
  else
    fakes=(--prefill 127.0.0.1:0 --decode 127.0.0.1:0 --context 16384 --prefill-pool 65536 --decode-pool 65536)
    case $SLUICE_BEHIND in
    sglang) fakes=(sglang --bootstrap 127.0.0.1:0 "${fakes[@]}") SLUICE_FITS=16377 ;;
    vllm) fakes=(vllm "${fakes[@]}") SLUICE_FITS=16383 ;;
    mooncake) fakes=(vllm --connector mooncake --bootstrap 127.0.0.1:0 "${fakes[@]}") SLUICE_FITS=16383 ;;
    plain) fakes=(vllm --plain "${fakes[@]}") ;;
    plain-sglang) fakes=(sglang --plain "${fakes[@]}") ;;
    *) echo "run.sh: BEHIND is native, sglang, vllm, mooncake, plain or plain-sglang, not $SLUICE_BEHIND" >&2; exit 3 ;;
    esac
    ready='role:' run fleet.yaml "$tmp/sluice" fake "${fakes[@]}"
    sleep 0.2
    ready='admin on' run front "$tmp/sluice" gateway --config "$tmp/fleet.yaml" --listen 127.0.0.1:0 --admin 127.0.0.1:0 --api-keys "$tmp/keys"
  fi
  SLUICE_URL=$(sed -n 's,.*API on \(http://[^ ]*\).*,\1,p' "$tmp/front")
  SLUICE_ADMIN=$(sed -n 's,.*admin on \(http://[^ ]*\).*,\1,p' "$tmp/front")
  [ -n "$SLUICE_URL" ] || { cat "$tmp/front" >&2; exit 1; }
  for _ in $(seq 100); do
    [ "$(curl -s -o "$tmp/ready" -w '%{http_code}' "$SLUICE_ADMIN/readyz")" = 200 ] && break
    sleep 0.1
  done
  for w in $what; do
    case $w in
    go) (cd go && go test -count=1 ./...) ;;
    npm) [ -e "$tmp/npm" ] || (cd npm && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
      : >"$tmp/npm"
      (cd npm && npm test) ;;
    *) echo "run.sh: go or npm, not $w" >&2; exit 3 ;;
    esac
  done
  if [ "$SLUICE_BEHIND" != native ]; then
    # Honest workers before honest clients: whatever is counted here is a false alarm, whatever the fakes object to a fault of ours.
    ! curl -s "$SLUICE_ADMIN/metrics" | grep '^sluice_incidents_total{'
    ! grep violation "$tmp/fleet.yaml.err"
  fi
  stop
done
