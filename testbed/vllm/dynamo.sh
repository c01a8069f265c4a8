#!/usr/bin/env bash
# dynamo.sh DIR: installs Dynamo beside the vLLM servers of install.sh, with the release of vLLM that it needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/install.sh" "$1" 0.31.0
"$1/uv/bin/uv" pip install --quiet --python "$1/venv-0.31.0/bin/python" --target "$1/dynamo-1.6.1" --no-deps \
  ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 blake3==1.0.11 msgspec==0.22.0 redis==8.1.0 torchvision==0.29.2
