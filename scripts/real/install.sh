#!/usr/bin/env bash
# Install the real servers of tests/real; none needs a GPU.   usage: install.sh [vllm-0.33.0] [vllm-0.32.0] [vllm-0.22.1] [lmdeploy-0.18.0] [lmdeploy-0.6.5] [lmdeploy-0.10.0]
# [vllm-router-0.1.17] [transformers-5.24.0] [llama.cpp-0.3.36] [litellm-1.106.2] [sglang-0.5.23]
# Needs Python 3.11. Installs to $LOADCHAOS_REAL (~/.cache/loadchaos): 2 GB, 8 GB, 2 GB and 2 GB. Skips what exists.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=${LOADCHAOS_REAL:-$HOME/.cache/loadchaos}
[[ $# == 0 ]] && set -- vllm-0.32.0 lmdeploy-0.18.0
mkdir -p "$root"
for what in "$@"; do
  if [[ -d $root/$what ]]; then echo "$what is already in $root"; continue; fi
  case $what in
    litellm-*) python3.11 -m venv "$root/$what" && "$root/$what/bin/pip" install -q "litellm[proxy]==${what#litellm-}" ;;
    vllm-router-*) python3.11 -m venv "$root/$what" && "$root/$what/bin/pip" install -q "vllm-router==${what#vllm-router-}" ;;
    vllm-*) "$here/install_vllm.sh" "${what#vllm-}" "$root/$what" ;;
    sglang-*) "$here/install_sglang.sh" "$root/$what" "${what#sglang-}" ;;
    lmdeploy-*) "$here/install_lmdeploy.sh" "$root/$what" "${what#lmdeploy-}" ;;
    transformers-*) "$here/install_transformers.sh" "$root/$what" "${what#transformers-}" ;;
    llama.cpp-*) "$here/install_llama_cpp.sh" "$root/$what" "${what#llama.cpp-}" ;;
    *) echo "install.sh: unknown server $what" >&2; exit 2 ;;
  esac
done
python=$(ls -d "$root"/vllm-[0-9]*/bin/python 2>/dev/null | tail -1 || true)
if [[ -n $python && ! -d $root/models ]]; then "$python" "$here/make_vllm_models.py" "$root/models"; fi
if [[ -n $python && ! -d $root/models/tiny-whisper ]]; then "$python" "$here/make_whisper_model.py" "$root/models"; fi
if [[ -n $python && ! -d $root/models/tiny-qwen3-embed-random ]]; then "$python" "$here/make_random_models.py"; fi
