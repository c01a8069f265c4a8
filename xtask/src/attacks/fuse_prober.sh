#!/bin/bash
# The file system of an engine's library does not answer the prober. After SIGTERM neither attach nor its prober, whose programs would stay
# attached, is left.
# usage: fuse_prober.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; umount -l "$work/mount" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
cc -O1 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
mkdir source mount
cp "$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)" source/libzmq.so.5
"$python" "$here/fuse_answerless.py" "$work/mount" "$work/source" "$work/control" >mounted 2>&1 &
pids+=($!)
for _ in $(seq 50); do [ -s mounted ] && break; sleep 0.1; done
grep -q '^mounted' mounted || { echo "SKIPPED: no FUSE: $(tail -1 mounted)"; exit 0; }
"$python" "$here/engine.py" 60 "$work/e.sock" >engine 2>&1 &
pids+=($!)
for _ in $(seq 100); do grep -q PIDS engine && break; sleep 0.1; done
read -r _ scheduler tokenizer < <(grep PIDS engine)
setpriv --reuid 1000 --regid 1000 --clear-groups ./fakeproc sglang::scheduler "$work/mount/libzmq.so.5" 60 >/dev/null &
fake=$!
pids+=("$fake")
sleep 1
echo ' prober --ring' >control
"$tokengap" attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --pid "$fake=tokenizer" --headless --json >out 2>err </dev/null &
attach=$!
pids+=("$attach")
sleep 5
kill -TERM "$attach"
sleep 3
left=$(ps -eo pid=,ppid=,args= | awk -v attach="$attach" '$1 == attach || / prober --ring/ && !/awk/')
[ -z "$left" ] || broken "after SIGTERM there are still: $left"
jq -e '.source.wire.observed | length == 3' out >/dev/null || broken "not attached: $(tail -n 2 err)"
echo held
