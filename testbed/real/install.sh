#!/usr/bin/env bash
# install.sh DIR RELEASE [PACKAGE OVERRIDES]: installs the packages of a real SGLang server for the CPU, or of another PACKAGE, and a model.
# Takes minutes and 7.5 GB; a second release takes 1.7 GB more. With SGLang, what a prefill/decode pair needs is installed, too (0.2 GB).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 release=$2 package=${3:-sglang}
overrides=${4:-$here/overrides-$release.txt}
[ -e "$overrides" ] || overrides=$here/overrides-0.5.9.txt
python=$dir/venv-$release/bin/python
mkdir -p "$dir"
if [ ! -x "$dir/uv/bin/uv" ]; then
  python3.11 -m venv "$dir/uv"
  "$dir/uv/bin/pip" install --quiet uv
fi
[ -x "$python" ] || "$dir/uv/bin/uv" venv --quiet --python 3.11 "$dir/venv-$release"
# A copy of the overrides marks a complete installation.
if ! cmp --quiet "$overrides" "$dir/venv-$release/installed"; then
  "$dir/uv/bin/uv" pip install --quiet --python "$python" --override "$overrides" "$package==$release" aiohttp "setuptools<81"
  cp "$overrides" "$dir/venv-$release/installed"
fi
[ -e "$dir/model/config.json" ] || "$python" "$here/model.py" "$dir/model"
# Router and transfer engine of a prefill/decode pair. A folder of their own leaves the server's packages as they are.
if [ "$package" = sglang ] && [ ! -e "$dir/pair/installed" ]; then
  "$dir/uv/bin/uv" pip install --quiet --no-deps --target "$dir/pair" --python "$python" \
    mooncake-transfer-engine-non-cuda==0.3.13.post1 sglang-router==0.3.2
  touch "$dir/pair/installed"
fi
