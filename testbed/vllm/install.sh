#!/usr/bin/env bash
# install.sh DIR RELEASE: installs the packages of a real vLLM server without a GPU, and a model without weights. Takes 6 GB and 2 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../real/install.sh" "$1" "$2" vllm "$here/overrides.txt"
