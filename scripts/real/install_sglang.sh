#!/usr/bin/env bash
# Install a real SGLang that runs on the CPU, and a tiny model for it.   usage: install_sglang.sh DEST [VERSION]
# Python 3.11; VERSION is 0.5.23 (default). SGLang requires a GPU build of torch and kernels compiled for a GPU: they are left
# out, and with SGLANG_USE_CPU_ENGINE=1 and --attention-backend torch_native the engine computes with torch.
set -euo pipefail
dest=$1 version=${2:-0.5.23} here=$(cd "$(dirname "$0")" && pwd)
python3 -m venv "$dest"
"$dest/bin/pip" install -q uv
install() { "$dest/bin/uv" pip install -q --python "$dest/bin/python" "$@"; }
links=(); [[ -d /opt/wheels ]] && links=(--find-links /opt/wheels)
install --no-deps "sglang==$version"
kernels=$("$dest/bin/python" -c "import importlib.metadata as m; print(next(r for r in m.requires('sglang') if r.startswith('sglang-kernel==')))")
install "${links[@]}" torch==2.13.0 transformers==5.19.0 triton apache-tvm-ffi==0.1.11 xgrammar==0.2.7 openai==2.8.0 openai-harmony==0.0.4 \
  compressed-tensors==0.18.0 outlines==0.1.11 tokenizers sentencepiece tiktoken aiohttp dill einops fastapi gguf interegular IPython jsonschema llguidance \
  mistral_common msgspec numpy nvidia-ml-py orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pydantic python-multipart \
  pyzmq regex requests scipy setproctitle soundfile uvicorn uvloop watchfiles xxhash zstandard
install --no-deps "$kernels" torchvision==0.28.0
site=$("$dest/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
find "$site/sgl_kernel" -name '*.so' -delete   # 1.2 GB that only a GPU runs
cp "$here/sgl_kernel_cpu.py" "$site/common_ops.py"
"$dest/bin/python" "$here/patch_torchvision.py"
"$dest/bin/python" "$here/make_text_model.py" "$dest/models/tiny-text"
echo "SGLang $version is in $dest"
