#!/usr/bin/env bash
# Install `transformers serve`, which runs on the CPU, and a tiny model for it.   usage: install_transformers.sh DEST [VERSION]
# Python 3.11; VERSION is 5.24.0 (default).
set -euo pipefail
dest=$1 version=${2:-5.24.0} here=$(cd "$(dirname "$0")" && pwd)
python3 -m venv "$dest"
links=(); [[ -d /opt/wheels ]] && links=(--find-links /opt/wheels)
"$dest/bin/pip" install -q "${links[@]}" torch==2.13.0
"$dest/bin/pip" install -q "transformers[serving]==$version" accelerate==1.15.0 requests
"$dest/bin/python" "$here/make_text_model.py" "$dest/models/tiny-text"
echo "transformers $version is in $dest"
