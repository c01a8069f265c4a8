#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` freezes or shuts down a file system, here a scratch one.
# usage: freeze.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
dd if=/dev/zero of=image bs=1M count=16 status=none
mkfs.ext4 -q image 2>/dev/null || skip 'no mkfs.ext4'
mkdir mounted
mount -o loop image mounted 2>/dev/null || skip 'no loop device'
cleanup() { fsfreeze -u mounted 2>/dev/null; umount mounted; }
chmod 755 mounted
echo ok >mounted/file
start_attach
inject <<CALLS
257 0xffffffffffffff9c s:$work/mounted 0 0
16 @0 0xC0045877 0
CALLS
timeout 5 sh -c 'echo more >mounted/file2' &
writer=$!
sleep 2
state=$(awk '/^State/{print $2}' "/proc/$(pgrep -P "$writer" | head -1)/status" 2>/dev/null)
fsfreeze -u mounted 2>/dev/null && broken "the file system was frozen; root's write hung in state ${state:-?}"
wait "$writer" || broken "root's write failed"
inject <<CALLS
257 0xffffffffffffff9c s:$work/mounted 0 0
16 @0 0x8004587d x:02000000
CALLS
sleep 0.3
echo x >mounted/file3 || broken 'the file system was shut down'
grep -q "16 @0" injected || broken "no call was injected"
echo held
