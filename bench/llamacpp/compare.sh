#!/usr/bin/env bash
# Compares token ids and greedy replies with llama.cpp's, for one model file.
#
#   bench/llamacpp/compare.sh models/SmolLM2-135M-Instruct.Q4_1.gguf
#
# Needs node 20 or newer and npm. llama.cpp itself comes out of npm packages (package.json), built for linux-x64.
set -euo pipefail
model=$(realpath "${1:?usage: compare.sh MODEL.gguf}")
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
[ -d node_modules/node-llama-cpp ] || npm install --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error
mkdir -p out
cd "$here/../.."
go build -o "$here/out/ours" ./bench/llamacpp/ours
"$here/out/ours" -write-cases "$here/out/cases.json"
f32=$(mktemp -d "$here/out/f32.XXXXXX")
trap 'rm -rf "$f32"' EXIT
"$here/out/ours" -model "$model" -expand "$f32/f32.gguf"
status=0
for file in "$model" "$f32/f32.gguf"; do
  echo "== $(basename "$file")"
  (cd "$here" && node peer.mjs "$file" out/cases.json out/peer.json)
  "$here/out/ours" -model "$file" -cases "$here/out/cases.json" -peer "$here/out/peer.json" || status=1
done
exit $status
