#!/usr/bin/env bash
# dynamo.sh DIR: installs Dynamo beside the SGLang servers of real/install.sh.
set -euo pipefail
"$1/uv/bin/uv" pip install --quiet --python "$1/venv-0.5.23/bin/python" --target "$1/dynamo-1.6.1" --no-deps \
  ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 blake3==1.0.11 redis==8.1.0
