#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` enters a namespace, or gets a capability back.
# usage: setns.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
start_attach
awk '/^Cap(Prm|Eff|Bnd)/' "/proc/$attach/status"
effective=$((16#$(awk '/^CapEff/{print $2}' "/proc/$attach/status")))
for bit in 21 38 39; do # SYS_ADMIN, PERFMON, BPF
  [ $((effective >> bit & 1)) = 0 ] || broken "attach has capability $bit"
done
inject <<CALLS
257 0xffffffffffffff9c s:/proc/$scheduler/ns/net 0 0
308 @0 0x40000000
308 @0 0
272 0x40000000
105 0
126 x:2605082000000000 x:000020000000200000000000c0000000c000000000000000
317 1 0 x:0000000000000000
CALLS
grep -E '^\[[1-6]\]' injected | grep -vqE 'EPERM|ENOSYS|EINVAL' && broken 'a call was permitted'
grep -q '308' injected || broken 'no call was injected'
echo held
