#!/usr/bin/env bash
# install.sh DIR RELEASE: the packages of a real vLLM server without a GPU, and a model without weights. 6 GB, 2 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../real/install.sh" "$1" "$2" vllm "$here/overrides.txt"
