#!/usr/bin/env bash
# Installs the real servers that tests/real runs against; none needs a GPU.   usage: install.sh [vllm-0.32.0] [vllm-0.22.1] [lmdeploy-0.18.0]
# Python 3.11. They go to $LOADCHAOS_REAL (~/.cache/loadchaos): 2 GB, 8 GB and 2 GB. What is there already is left as it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=${LOADCHAOS_REAL:-$HOME/.cache/loadchaos}
[[ $# == 0 ]] && set -- vllm-0.32.0 lmdeploy-0.18.0
mkdir -p "$root"
for what in "$@"; do
  if [[ -d $root/$what ]]; then echo "$what is in $root already"; continue; fi
  case $what in
    vllm-*) "$here/install_vllm.sh" "${what#vllm-}" "$root/$what" ;;
    lmdeploy-0.18.0) "$here/install_lmdeploy.sh" "$root/$what" ;;
    *) echo "install.sh: unknown server $what" >&2; exit 2 ;;
  esac
done
if [[ ! -d $root/models ]]; then
  python=$(ls -d "$root"/vllm-*/bin/python | head -1)
  "$python" "$here/make_vllm_models.py" "$root/models"
fi
