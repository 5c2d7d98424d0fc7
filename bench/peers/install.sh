#!/usr/bin/env bash
# Installs the gateways that sluice is compared with, pinned, each in an environment of its own under the folder given.
set -euo pipefail
env=${1:?usage: install.sh FOLDER}
command -v python3 >/dev/null || { echo "install.sh: python3 (3.10 to 3.12) with venv is needed" >&2; exit 3; }
for want in smg==1.13.0 sglang-router==0.3.2 vllm-router==0.1.17; do
  name=${want%%==*}
  [ -e "$env/$name/$want" ] && continue
  rm -rf "${env:?}/$name"
  python3 -m venv "$env/$name"
  "$env/$name/bin/pip" install --quiet --disable-pip-version-check "$want"
  touch "$env/$name/$want"
done
