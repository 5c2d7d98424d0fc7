#!/bin/bash
# install.sh DIR: puts the engines of make e2e-sglang into DIR: an environment with SGLang 0.5.19, and 0.5.20 beside it.
# Needs Python 3.11 (PYTHON names it), x86-64 with glibc 2.34 or newer, cc, nm and readelf; 4 GB of disk, about 1.5 GB to fetch, six minutes.
set -euo pipefail
dir=${1:?usage: install.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
unset PYTHONDONTWRITEBYTECODE # 20,000 files would be compiled again by each of six processes
mkdir -p "$dir"
pip() { nice "$dir/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check --no-deps; }
if [ ! -e "$dir/ready" ]; then
  [ -x "$dir/venv/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$dir/venv"
  # Without dependencies: sglang asks for packages that only a GPU needs, and torch for gigabytes of them.
  pip install -r "$here/requirements.txt"
  pip install sglang==0.5.19
  "$dir/venv/bin/python" "$here/standins.py"
  "$dir/venv/bin/python" -c 'import torch, sglang; print("torch", torch.__version__, "sglang", sglang.__version__)'
  touch "$dir/ready"
fi
# The transfer links a library of the system, libibverbs, which a machine without RDMA may lack. It is not called over TCP.
if ! LD_LIBRARY_PATH=$dir/lib "$dir/venv/bin/python" -c 'import mooncake.engine' 2>/dev/null; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  (cd "$tmp" && chmod 755 . && apt-get download libibverbs1 libnl-3-200 libnl-route-3-200 >/dev/null 2>&1) || { echo "the library libibverbs.so.1 is missing: install libibverbs1 (Debian, Ubuntu) or rdma-core" >&2; exit 1; }
  mkdir -p "$dir/lib"
  for deb in "$tmp"/*.deb; do
    dpkg -x "$deb" "$tmp/out"
  done
  find "$tmp/out" -name '*.so.*' -exec cp -P {} "$dir/lib/" \;
  LD_LIBRARY_PATH=$dir/lib "$dir/venv/bin/python" -c 'import mooncake.engine'
fi
# The later release runs in the same environment: its package comes before the other's on the path.
if [ ! -e "$dir/0.5.20/ready" ]; then
  rm -rf "$dir/0.5.20"
  pip install --target "$dir/0.5.20" sglang==0.5.20
  nice "$dir/venv/bin/python" -m compileall -q "$dir/0.5.20" >/dev/null 2>&1 || true
  touch "$dir/0.5.20/ready"
fi
