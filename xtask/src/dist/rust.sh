# Functions of scripts that build for other targets, to be called in the project's root folder.
# shellcheck shell=bash

# rustc_says KEY: a line of `rustc -vV`, such as release or host
rustc_says() {
  rustc -vV | sed -n "s/^$1: //p"
}

# remapped FLAG... -- FROM=TO...: prints the flags and --remap-path-prefix for each pair, in the format of CARGO_ENCODED_RUSTFLAGS. The
# build then does not depend on its folder.
remapped() {
  local flags=()
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  local pair
  for pair in "$@"; do
    # rustc receives paths with symbolic links resolved.
    flags+=("--remap-path-prefix=$(realpath "${pair%=*}")=${pair##*=}")
  done
  (IFS=$'\x1f' && printf %s "${flags[*]}")
}

# Source of the standard library: RUST_SRC, rustup's component, or Debian's package of the same release, unpacked into .tools without being
# installed.
library() {
  local release folder
  release=$(rustc_says release)
  local unpacked=$PWD/.tools/rust-src/usr/src/rustc-$release/library
  [ -e "$unpacked/Cargo.lock" ] || [ -e "${RUST_SRC:-}/Cargo.lock" ] ||
    [ -e "$(rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] || debian_library "$release" >&2 || true
  for folder in "${RUST_SRC:-}" "$(rustc --print sysroot)/lib/rustlib/src/rust/library" "$unpacked"; do
    if [ -e "$folder/Cargo.lock" ]; then
      echo "$folder"
      return
    fi
  done
  echo "cannot find the standard library's source for rustc $release: run \`rustup component add rust-src\`, or set RUST_SRC" >&2
  return 1
}

# debian_library RELEASE: downloads it with a separate apt state, from the configured mirror
debian_library() {
  local apt=$PWD/.tools/apt mirror version
  echo "fetching Debian's rust-src $1 into .tools"
  mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/cache/archives/partial"
  read -r mirror < <(apt-cache policy base-files | grep --only-matching '[^ ]*://[^ ]*')
  printf '%s\n' 'Types: deb' "URIs: $mirror" 'Suites: trixie-backports' 'Components: main' \
    'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >"$apt/parts/backports.sources"
  local options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  apt-get update -qq "${options[@]}"
  read -r version < <(apt-cache madison rust-src "${options[@]}" | grep --only-matching "$1+dfsg[^ ]*")
  (cd "$apt" && apt-get download -qq "rust-src=$version" "${options[@]}")
  dpkg -x "$apt"/rust-src_*.deb .tools/rust-src
  rm "$apt"/rust-src_*.deb
}
