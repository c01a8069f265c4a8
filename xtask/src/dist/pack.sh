#!/usr/bin/env bash
# Packs the built program of each TARGET into the folder OUT: archive, wheel, Debian package, bill of materials, SHA256SUMS, and
# beside the archive for x86-64 the kubectl plugin's manifest for krew. The files do not depend on the machine or the time of packing, only
# on SOURCE_DATE_EPOCH. WRITER, the host's program, generates the documentation.
# usage: pack.sh VERSION OUT WRITER TARGET...
set -euo pipefail
cd "$(dirname "$0")/../../.."
version=$1 out=$2 writer=$3
shift 3

# The largest wheel that is published, in bytes.
limit=$((12 << 20))
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8
umask 022
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT

# stage DIR TARGET: the release folder
stage() {
  local dir=$1 program=target/$2/dist/tokengap shell
  rm -rf "$dir"
  mkdir -p "$dir"
  cp "$program" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$dir"
  cp -r deploy "$dir"
  "$writer" generate man --output "$dir/man"
  for shell in bash zsh fish; do "$writer" generate "$shell" --output "$dir/completions"; done
  .tools/zig/bin/python xtask/src/dist/notices.py "$2" "$version" "$dir"
  # Do not depend on the umask.
  chmod -R u=rwX,go=rX "$dir"
}

# package DIR TARGET: the Debian package of a release folder; `deb` is its name
package() {
  local dir=$1 root=$staged/$2 machine
  case $2 in
    x86_64-*) machine=amd64 ;;
    aarch64-*) machine=arm64 ;;
    *) echo "no Debian architecture is known for $2" >&2 && return 1 ;;
  esac
  local share=$root/usr/share
  install -D "$dir/tokengap" "$root/usr/bin/tokengap"
  install -D "$dir/deploy/kubectl-tokengap" "$root/usr/bin/kubectl-tokengap"
  install -D -m 644 -t "$share/man/man1" "$dir"/man/*.1
  install -D -m 644 -t "$root/usr/lib/systemd/system" "$dir"/deploy/systemd/*
  install -D -m 644 "$dir/completions/tokengap.bash" "$share/bash-completion/completions/tokengap"
  install -D -m 644 -t "$share/zsh/vendor-completions" "$dir/completions/_tokengap"
  install -D -m 644 -t "$share/fish/vendor_completions.d" "$dir/completions/tokengap.fish"
  install -D -m 644 -t "$share/doc/tokengap" "$dir/CHANGELOG.md"
  gzip -9n "$share"/man/man1/* "$share/doc/tokengap/CHANGELOG.md"
  # One file with all licences, as Debian expects.
  cat "$dir"/LICENSE-{MIT,APACHE} "$dir/THIRD-PARTY-LICENSES.txt" >"$share/doc/tokengap/copyright"
  mkdir "$root/DEBIAN"
  cat >"$root/DEBIAN/control" <<CONTROL
Package: tokengap
Version: $version
Architecture: $machine
Section: utils
Priority: optional
Installed-Size: $(du --summarize --apparent-size --block-size=1K "$root/usr" | cut -f 1)
Maintainer: the tokengap authors <tokengap@localhost>
Description: where an LLM server's tokens wait, and which never arrive
 Attaches to a running SGLang engine, or relays its traffic, and follows every
 request's tokens from the scheduler to the client. One static program.
CONTROL
  chmod -R u=rwX,go=rX "$root"
  deb=tokengap_${version}_$machine.deb
  # dpkg-deb clamps every timestamp to SOURCE_DATE_EPOCH.
  dpkg-deb --root-owner-group -Zxz --build "$root" "$out/$deb" >"$staged/log"
}

mkdir -p "$out"
files=()
for target in "$@"; do
  name=tokengap-$version-$target
  echo "$target: $(stat --format=%s "target/$target/dist/tokengap") bytes"
  stage "$out/$name" "$target"
  tar --create --directory "$out" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    "$name" | gzip -9n >"$out/$name.tar.gz"
  .tools/zig/bin/python xtask/src/dist/binstall.py "$version" "$target" "$out"
  cp "$out/$name/tokengap.cdx.json" "$out/$name.cdx.json"
  wheel=$(.tools/zig/bin/python xtask/src/dist/wheel.py "$version" "$target" "$out/$name" "$out")
  size=$(stat --format=%s "$out/$wheel")
  if [ "$size" -gt "$limit" ]; then
    echo "$wheel: $size bytes, more than the limit of $limit" >&2
    exit 1
  fi
  files+=("$name.tar.gz" "$name.cdx.json" "$wheel")
  if command -v dpkg-deb >"$staged/log"; then
    package "$out/$name" "$target"
    files+=("$deb")
  else
    echo 'SKIPPED: the Debian package: dpkg-deb is not installed'
  fi
done
(cd "$out" && sha256sum "${files[@]}" | tee SHA256SUMS)
archive=tokengap-$version-x86_64-unknown-linux-musl.tar.gz
if sum=$(grep -F "  $archive" "$out/SHA256SUMS"); then
  sed --expression "s|SHA256|${sum%% *}|; s|VERSION|$version|g" \
    --expression "s|REPOSITORY|${GITHUB_REPOSITORY:+github.com/}${GITHUB_REPOSITORY:-REPOSITORY}|" deploy/krew.yaml >"$out/tokengap.yaml"
fi
