#!/usr/bin/env bash
# Boots a kernel of a Debian package in QEMU and runs a command inside it as root. Nothing is installed.
#
# usage: boot.sh [-a amd64|arm64] [-s SUITE] [-t SECONDS] [-o FOLDER] PACKAGE COMMAND
#        boot.sh [-a amd64|arm64] -s SUITE -l        lists the suite's kernels
#
# amd64 runs over this machine's file system (9p, read only). arm64 runs over a small root with Python, which this script makes, and which has
# this project at its path here. Both have FOLDER, writable, at /run/out, a tmpfs at /tmp, and no network but the loopback. The exit status and the
# output are the command's.
#
# Needs root, qemu-system-x86 or qemu-system-arm, busybox-static, cpio, kmod, xz-utils, and for arm64 pip. KERNELS_CACHE keeps the kernels;
# KERNELS_KVM=1 uses KVM, which nested machines often offer and cannot run.
set -euo pipefail
arch=amd64 suite='' limit=600 out='' list=''
while getopts a:s:t:o:l option; do
  case $option in
    a) arch=$OPTARG ;; s) suite=$OPTARG ;; t) limit=$OPTARG ;; o) out=$OPTARG ;; l) list=1 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
project=$(cd "$(dirname "$0")/../../.." && pwd)
cache=${KERNELS_CACHE:-$project/target/kernels}
# shellcheck disable=SC1091
. /etc/os-release
suite=${suite:-$VERSION_CODENAME}

# Another suite of the archive that this machine uses, in lists of its own.
archive() {
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" 'Origin: Debian' | head -n 1
}
lists=$cache/apt/$suite-$arch
apt=(-q -o "Dir::State::Lists=$lists/lists" -o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::Cache=$lists/cache" -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o APT::Sandbox::User=root)
update() {
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
  [ ! -s "$lists/sources.list" ] || return 0
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $suite main" >"$lists/sources.list"
  if ! apt-get "${apt[@]}" update >"$lists/log" 2>&1; then
    rm "$lists/sources.list"
    tail -n 2 "$lists/log" >&2
    exit 1
  fi
}
if [ -n "$list" ]; then
  update
  apt-cache "${apt[@]}" search '^linux-image-[0-9]' | grep -vE -- '-(unsigned|dbg|rt|cloud)-' | cut -d' ' -f1 | sort -V
  exit
fi

# A metapackage names the image. From 7.0 on, its files are in linux-binary-* and linux-modules-*.
kernel=$cache/kernel/$suite-$arch/$1
shift
fetch_kernel() {
  local wanted=${kernel##*/} depends
  update
  rm -rf "$kernel"
  mkdir -p "$kernel/deb"
  for _ in 1 2; do
    # shellcheck disable=SC2086 # several packages
    depends=$(apt-cache "${apt[@]}" show $wanted | sed -n 's/^Depends: //p' |
      grep -oE 'linux-(image|binary|modules)-[0-9][^ ,(]*' | sort -u || true)
    [ -z "$depends" ] || wanted=$depends
  done
  # shellcheck disable=SC2086 # several packages
  (cd "$kernel/deb" && apt-get "${apt[@]}" download $wanted >../log 2>&1) || { tail -n 3 "$kernel/log" >&2; exit 1; }
  for deb in "$kernel"/deb/*.deb; do dpkg -x "$deb" "$kernel"; done
  rm -r "$kernel/deb"
  touch "$kernel/done"
}
[ -e "$kernel/done" ] || fetch_kernel
modules=$kernel/lib/modules
[ -d "$modules" ] || modules=$kernel/usr/lib/modules
base=${modules%/lib/modules}
version=$(find "$modules" -mindepth 1 -maxdepth 1 -printf '%f\n' | head -n 1)
image=$kernel/boot/vmlinuz-$version
[ -e "$image" ] || image=$modules/$version/vmlinuz
[ -e "$modules/$version/modules.dep" ] || depmod -b "$base" "$version" 2>/dev/null

# A root for ARM64: Debian's packages and the wheels of the engine harness.
root=/ busybox=$(command -v busybox || true)
make_root() {
  local arm=$cache/arm64
  rm -rf "$arm"
  mkdir -p "$arm"/{lists/partial,cache/archives/partial,root,wheels}
  : >"$arm/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $VERSION_CODENAME main" >"$arm/sources.list"
  local get=(apt-get -q -o "Dir::State::Lists=$arm/lists" -o "Dir::Etc::SourceList=$arm/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::Cache=$arm/cache" -o "Dir::State::Status=$arm/status" -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o APT::Sandbox::User=root -o Debug::NoLocking=1)
  "${get[@]}" update >"$arm/log"
  "${get[@]}" -y --no-install-recommends --download-only install bash dash coreutils util-linux mount busybox-static kmod libc-bin grep sed diffutils \
    dpkg gzip tar libstdc++6 python3 python3-minimal libpython3.11-stdlib >>"$arm/log"
  local deb wheel
  for deb in "$arm"/cache/archives/*.deb; do dpkg -x "$deb" "$arm/root"; done
  rm -r "$arm/cache"
  mkdir -p "$arm"/root/{proc,sys,dev,run,tmp,mnt,var/tmp,root,usr/local/lib/python3.11/dist-packages,lib/modules,project}
  ln -sf dash "$arm/root/bin/sh"
  python3 -m pip download --quiet --only-binary=:all: --python-version 3.11 --implementation cp --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform any --requirement "$project/testbed/requirements.txt" \
    pip --dest "$arm/wheels"
  for wheel in "$arm"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$arm/root/usr/local/lib/python3.11/dist-packages"; done
  # Releases that the probe's tests run.
  local release
  for release in 25.1.2 27.1.0 27.3.0; do
    python3 -m pip install --quiet --root-user-action=ignore --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
      --platform manylinux_2_28_aarch64 --platform manylinux_2_26_aarch64 --platform manylinux_2_17_aarch64 \
      --platform manylinux2014_aarch64 "pyzmq==$release" \
      --target "$arm/root/opt/pyzmq-$release"
  done
  touch "$arm/done"
}
if [ "$arch" = arm64 ]; then
  [ -e "$cache/arm64/done" ] || make_root
  root=$cache/arm64/root busybox=$cache/arm64/root/bin/busybox
  mkdir -p "$root$project"
fi

# The initramfs has busybox and the modules that mount the root or answer tokengap's queries.
initrd=$kernel/initrd.gz
make_initrd() {
  local work number=100 module file
  work=$(mktemp -d)
  mkdir -p "$work"/{bin,proc,sys,dev,new,mod}
  cp "$busybox" "$work/bin/busybox"
  for module in virtio_pci 9pnet_virtio 9p virtio_rng unix_diag inet_diag tcp_diag; do
    modprobe -d "$base" -S "$version" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }' || true
  done | awk '!seen[$0]++' | while read -r file; do
    number=$((number + 1))
    module=$work/mod/$number-$(basename "$file" | sed 's/\.ko.*//').ko
    case $file in *.xz) xz -dc "$file" >"$module" ;; *.zst) zstd -qdc "$file" >"$module" ;; *) cp "$file" "$module" ;; esac
  done
  cat >"$work/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for m in /mod/*.ko; do $b insmod $m; done
o=trans=virtio,version=9p2000.L,msize=512000
i=0; until $b mount -t 9p -o $o,cache=loose,ro root /new; do i=$((i+1)); [ $i = 20 ] && $b poweroff -f; $b sleep 0.2; done
for t in /tmp /run /var/tmp; do $b mount -t tmpfs tmp /new$t; $b chmod 1777 /new$t; done
$b mkdir -p /new/run/out; $b mount -t 9p -o $o,cache=none out /new/run/out
$b mount -t 9p -o $o,cache=loose,ro project /new/project 2>/dev/null
$b mount --move /proc /new/proc; $b mount --move /sys /new/sys; $b mount --move /dev /new/dev
exec $b switch_root /new /bin/sh /run/out/.start
INIT
  chmod +x "$work/init"
  (cd "$work" && find . | cpio -o -H newc --quiet | gzip -1) >"$initrd.new"
  mv "$initrd.new" "$initrd"
  rm -r "$work"
}
[ -e "$initrd" ] || make_initrd

out=${out:-$(mktemp -d)}
mkdir -p "$out"
rm -f "$out/.status"
printf '%s\n' "$*" >"$out/.command"
if [ "$root" = / ]; then path=$PATH; else path=/usr/sbin:/usr/bin:/sbin:/bin; fi
cat >"$out/.start" <<START
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm; chmod 1777 /dev/shm
ln -sf /proc/self/fd /dev/fd; ln -sf /proc/self/fd/0 /dev/stdin; ln -sf /proc/self/fd/1 /dev/stdout; ln -sf /proc/self/fd/2 /dev/stderr
mount -t cgroup2 cgroup /sys/fs/cgroup; mount -t tracefs tracefs /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf
if [ "$root" = / ]; then mount --bind '$modules' /lib/modules; else mount --bind /project '$project'; fi
$([ "$root" = / ] && echo "$busybox" || echo /bin/busybox) ifconfig lo 127.0.0.1 up
export PATH='$path' HOME=/root LANG=C.UTF-8
cd /tmp
bash /run/out/.command >/run/out/.stdout 2>/run/out/.stderr </dev/null
echo \$? >/run/out/.status
sync; echo o >/proc/sysrq-trigger; sleep 10
START
# shellcheck disable=SC2054 # options with commas
case $arch in
  amd64)
    qemu=(qemu-system-x86_64 -machine q35,accel=tcg -cpu max) console=ttyS0
    [ -z "${KERNELS_KVM:-}" ] || qemu=(qemu-system-x86_64 -machine q35,accel=kvm -cpu host)
    ;;
  arm64) qemu=(qemu-system-aarch64 -machine virt,accel=tcg -cpu max,pauth-impdef=on) console=ttyAMA0 ;;
  *) echo "boot.sh: no machine for $arch: amd64 and arm64 are known" >&2; exit 2 ;;
esac
share() { printf -- '-fsdev local,id=%s,path=%s,security_model=none%s -device virtio-9p-pci,fsdev=%s,mount_tag=%s' "$1" "$2" "$3" "$1" "$1"; }
# shellcheck disable=SC2046 # options
timeout "$limit" "${qemu[@]}" -smp 2 -m "${KERNELS_MEMORY:-4G}" -nodefaults -no-user-config -display none -no-reboot \
  -serial "file:$out/.console" -kernel "$image" -initrd "$initrd" -append "console=$console panic=-1 quiet loglevel=4 rdinit=/init" \
  -device virtio-rng-pci $(share root "$root" ,readonly=on,multidevs=remap) $(share out "$out" '') \
  $(share project "$project" ,readonly=on,multidevs=remap) </dev/null || true
cat "$out/.stdout" 2>/dev/null || true
cat "$out/.stderr" >&2 2>/dev/null || true
[ -s "$out/.status" ] || { echo 'boot.sh: the command did not end in time; end of the console:' >&2; tail -n 30 "$out/.console" >&2; exit 124; }
exit "$(cat "$out/.status")"
