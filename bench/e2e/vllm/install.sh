#!/bin/bash
# install.sh DIR: a CPU environment of vLLM 0.32.0 with NIXL in DIR/venv, once. 1 GB to fetch, 3 GB of disk; Python 3.11, cc and nm.
# install.sh DIR CLIENTS: also the load clients guidellm and aiperf in CLIENTS. 0.4 GB to fetch, 1.3 GB of disk.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
check=$here/../../check
env=${1:?the folder of the environment} clients=${2:-}
python=${PYTHON:-python3.11}
unset PYTHONDONTWRITEBYTECODE # pip compiles what it installs; without that each start of an engine takes minutes
if [ ! -e "$env/ready" ]; then
  mkdir -p "$env"
  "$python" -m venv "$env/venv"
  "$env/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$check/vllm_requirements.txt"
  "$env/venv/bin/python" "$check/vllm_env.py"
  touch "$env/ready"
fi
if [ -n "$clients" ]; then
  mkdir -p "$clients"
  for c in aiperf guidellm; do
    [ -e "$clients/$c.ready" ] && continue
    "$python" -m venv --clear "$clients/$c"
    "$clients/$c/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/${c}_requirements.txt"
    if [ "$c" = guidellm ]; then
      site=$("$clients/$c/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
      # Behind its own packages, the engines': torch is among them.
      "$env/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/engines.pth"
    fi
    touch "$clients/$c.ready"
  done
fi
