#!/usr/bin/env bash
# Runs the public openai clients, unmodified, against a `sluice serve` that it starts: conformance/run.sh [go] [npm]
set -euo pipefail
cd "$(dirname "$0")"
what=${*:-go npm}
tmp=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi; rm -rf "$tmp"' EXIT
(cd .. && CGO_ENABLED=0 go build -o "$tmp/sluice" ./cmd/sluice)
export SLUICE_API_KEY=sk-conformance
printf 'tester %s\n' "$(printf %s "$SLUICE_API_KEY" | sha256sum | cut -d' ' -f1)" >"$tmp/keys"
XDG_STATE_HOME=$tmp "$tmp/sluice" serve --listen 127.0.0.1:0 --admin 127.0.0.1:0 --context 16384 --kv-memory 256MiB --api-keys "$tmp/keys" >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 300); do
  grep -q '^Try:' "$tmp/out" && break
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.1
done
export SLUICE_URL SLUICE_ADMIN
SLUICE_URL=$(sed -n 's,.*API on \(http://[^ ]*\).*,\1,p' "$tmp/out")
SLUICE_ADMIN=$(sed -n 's,.*admin on \(http://[^ ]*\).*,\1,p' "$tmp/out")
[ -n "$SLUICE_URL" ] || { cat "$tmp/out" >&2; exit 1; }
for w in $what; do
  case $w in
  go) (cd go && go test -count=1 ./...) ;;
  npm) (cd npm && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm test) ;;
  *) echo "run.sh: go or npm, not $w" >&2; exit 3 ;;
  esac
done
