#!/usr/bin/env bash
# Builds the static program for TARGET, or only compiles it, and prints the origin of the standard library. zig is the C compiler and linker
# for all targets, and provides musl and libunwind; cargo-zigbuild makes Cargo use it.
# usage: build.sh zigbuild|check TARGET
#        build.sh test TARGET         the test programs that `cargo xtask kernels` runs on other machines; prints their paths
set -euo pipefail
cd "$(dirname "$0")/../../.."
. xtask/src/dist/rust.sh

# Pinned: together with the compiler and Cargo.lock, these versions make a build reproducible.
tools=(ziglang==0.17.0 cargo-zigbuild==0.24.0)
what=$1 target=$2
zig=$PWD/.tools/zig

if [ "$(cat "$zig/tokengap-tools" 2>/dev/null)" != "${tools[*]}" ]; then
  echo "installing ${tools[*]} into .tools/zig" >&2
  "${PYTHON:-python3}" -m venv --clear "$zig"
  "$zig/bin/python" -m pip install --quiet --disable-pip-version-check "${tools[@]}"
  echo "${tools[*]}" >"$zig/tokengap-tools"
fi

paths=("$PWD=/tokengap" "${CARGO_HOME:-$HOME/.cargo}=/cargo")
case $target in
  *-musl) flags=(-Ctarget-feature=+crt-static -Clink-self-contained=no) ;; # zig also provides the start files
  *) flags=(-Ctarget-cpu=generic) ;;
esac
options=(--locked --target "$target" --profile dist --package tokengap --features tokengap/full)
case $what in
  # With the features and the profile of the program, so that dependencies are not compiled again.
  test) options+=(--no-run --package confine --package probe-user --test refused --test live) ;;
  *) options+=(--quiet --bin tokengap) ;;
esac
from="rustup's standard library"
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
  from='standard library compiled from source: rustup has none for the target'
  library=$(library)
  paths+=("$library=/rust-src")
  options+=(-Z 'build-std=std,panic_unwind')
  # A stable compiler builds the standard library only with these variables.
  export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$library
fi
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
CARGO_ENCODED_RUSTFLAGS=$(remapped "${flags[@]}" -- "${paths[@]}") PATH=$zig/bin:$PATH \
  CARGO_ZIGBUILD_CACHE_DIR=$PWD/.tools/zig-cache ZIG_GLOBAL_CACHE_DIR=$PWD/.tools/zig-cache \
  cargo-zigbuild "$what" "${options[@]}"
echo "$target: $from"
