#!/usr/bin/env bash
# Builds the kernel side of the probe into the folder OUT, an object for each architecture, since register names in `pt_regs` differ.
# The build is reproducible byte for byte: the same compiler, lock file and linker give the same objects in any folder.
# usage: build.sh OUT
#        build.sh --check KEPT     lints, builds elsewhere, and fails if the result differs from the objects in KEPT
set -euo pipefail
cd "$(dirname "$0")/../../.."
. xtask/src/dist/rust.sh

# Versions from 0.11 on need an installed LLVM; this one loads the compiler's.
bpf_linker=0.10.4
# Compiler whose LLVM generated the objects in the repository.
rustc=1.95.0
machines=(x86_64 aarch64)
objects=("${machines[@]/#/tokengap-}")
objects=("${objects[@]/%/.bpf.o}")

release=$(rustc_says release)
if [ "$release" != "$rustc" ]; then
  echo "rustc is $release, but the objects need $rustc, whose LLVM the linker uses: run \`cargo +$rustc xtask ebpf\`" >&2
  exit 1
fi
sysroot=$(rustc --print sysroot)
objcopy=$sysroot/lib/rustlib/$(rustc_says host)/bin/rust-objcopy
if [ ! -e "$objcopy" ]; then
  echo "cannot find $objcopy: use a rustup toolchain, which includes it (GNU objcopy cannot write BPF)" >&2
  exit 1
fi
library=$(library)
if [ ! -e .tools/bin/bpf-linker ]; then
  echo "installing bpf-linker $bpf_linker into .tools (about a minute, once)" >&2
  cargo install --quiet --locked bpf-linker --version "$bpf_linker" --root .tools
fi
found=$(.tools/bin/bpf-linker --version)
if [[ $found != *"$bpf_linker"* ]]; then
  echo ".tools/bin/bpf-linker is $found, expected $bpf_linker: remove it and run this command again" >&2
  exit 1
fi
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER

# cargo_bpf COMMAND MACHINE FLAG...
cargo_bpf() {
  local what=$1 machine=$2
  shift 2
  # A stable compiler needs the first two variables to build `core`. Cargo uses relative paths for files below this folder.
  RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$library PATH=$PWD/.tools/bin:$PATH \
    CARGO_ENCODED_RUSTFLAGS=$(remapped "--cfg=bpf_target_arch=\"$machine\"" -Cdebuginfo=2 -Clink-arg=--btf \
      "--remap-path-prefix=${library#"$PWD/"}=/rust-src" -- \
      "$PWD=/src" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$library=/rust-src") \
    "${CARGO:-cargo}" "$what" --quiet --locked --package probe-ebpf --features kernel --bin tokengap-bpf --profile bpf \
    -Z build-std=core --target bpfel-unknown-none --target-dir "target/bpf/$machine" "$@"
}

objcopy() { LD_LIBRARY_PATH=$sysroot/lib "$objcopy" "$@"; }

# build OUT
build() {
  local machine object name
  mkdir -p "$1"
  for machine in "${machines[@]}"; do
    cargo_bpf build "$machine"
    object=$1/tokengap-$machine.bpf.o
    # Strip DWARF, whose hashes differ between builds; keep the BTF that the kernel reads.
    objcopy --strip-debug "target/bpf/$machine/bpfel-unknown-none/bpf/tokengap-bpf" "$object"
    # The mangled names of callbacks contain a hash that depends on the folder.
    { grep -aoE '_RNv[[:alnum:]_]+' "$object" || true; } | sort -u | while IFS= read -r name; do
      objcopy "--redefine-sym=$name=${name##*[0-9]}" "$object"
    done
  done
  (cd "$1" && sha256sum "${objects[@]}" | tee SHA256SUMS)
}

if [ "$1" != --check ]; then
  build "$1"
  exit
fi
kept=$2
# Clippy for the host does not check the kernel side.
cargo_bpf clippy "${machines[0]}" -- --deny warnings
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
build "$fresh"
for name in "${objects[@]}" SHA256SUMS; do
  if ! cmp "$fresh/$name" "$kept/$name"; then
    echo "$name in $kept does not match the source in probe-ebpf: run \`cargo xtask ebpf\` and commit the result" >&2
    exit 1
  fi
done
echo "the objects in $kept match the source in probe-ebpf"
