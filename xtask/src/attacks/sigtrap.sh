#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` ends a process of root with a perf event that raises SIGTRAP.
# usage: sigtrap.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
start_attach
timeout 60 sh -c 'while :; do read -t 0.01 _ </dev/zero || :; done' &
pids+=($!)
sh -c 'while :; do :; done' &
victim=$!
pids+=("$victim")
sleep 0.3
attribute=$(python3 - <<'PYTHON'
import struct
flags = (1 << 5) | (1 << 6) | (1 << 36) | (1 << 37)  # exclude_kernel, exclude_hv, remove_on_exec, sigtrap
attribute = struct.pack("<IIQQQQQ", 1, 128, 1, 1000000, 0, 0, flags)  # software, task-clock, period 1 ms
print((attribute + b"\0" * (128 - len(attribute))).hex())
PYTHON
)
inject <<CALLS
62 $victim 9
62 $victim 0
298 x:$attribute $victim 0xffffffffffffffff 0xffffffffffffffff 8
CALLS
sleep 1
kill -0 "$victim" 2>/dev/null || broken "a process of root was ended"
grep -qE '298 .*(EPERM|ENOSYS)' injected || broken 'perf_event_open is not refused'
echo held
