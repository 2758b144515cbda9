#!/usr/bin/env bash
# Build llama.cpp's own server, llama-server, and make a tiny random model for it.   usage: install_llama_cpp.sh DEST [VERSION]
# VERSION is that of llama-cpp-python, whose source archive holds llama.cpp: 0.3.36 (default).
# Needs cmake and a C++ compiler; six minutes of one core build it. JOBS=2 uses two.
set -euo pipefail
dest=$1 version=${2:-0.3.36} here=$(cd "$(dirname "$0")" && pwd)
python3 -m venv "$dest"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"$dest/bin/pip" download -q --no-deps --no-binary :all: -d "$work" "llama-cpp-python==$version"
tar xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
source=$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)
cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_C_FLAGS_RELEASE=-O1 \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_CPU_REPACK=OFF \
  -DGGML_LLAMAFILE=OFF -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON >"$work/cmake.log"
cmake --build "$work/build" --target llama-server -j "${JOBS:-1}" >"$work/build.log"
mkdir -p "$dest/llama.cpp"
cp -a "$work"/build/bin/. "$dest/llama.cpp/"
"$dest/bin/pip" install -q gguf==0.19.0 tokenizers
"$dest/bin/python" "$here/make_text_model.py" "$dest/models/tiny-text.gguf"
echo "llama.cpp of llama-cpp-python $version is in $dest"
