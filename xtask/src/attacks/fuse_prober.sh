#!/bin/bash
# The file system of an engine's library does not answer the prober, or the process that analyses the library for it. After SIGTERM
# neither attach nor one of its processes is left, of which the prober would leave its programs attached. Only a process that analyses the
# library is left, since the kernel does not end it, until the server of the file system ends.
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
server=$!
pids+=("$server")
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
attach_and_end() { # TEXT IN THE COMMAND LINE OF THE PROCESS WITHOUT ANSWERS, SECONDS AFTER WHICH IT IS ENDED AT THE LATEST
  echo "$1" >control
  "$tokengap" attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --pid "$fake=tokenizer" --headless --json >out 2>err </dev/null &
  attach=$!
  pids+=("$attach")
  for _ in $(seq "$(($2 * 10))"); do grep -q 'attached to' err && break; sleep 0.1; done
  sleep 1
  kill -TERM "$attach"
  sleep 3
  left=$(ps -eo pid=,ppid=,args= | awk -v attach="$attach" '$1 == attach || / (prober --ring|locator)/ && !/awk|locator --sought/')
  [ -z "$left" ] || broken "without answers to '$1': after SIGTERM there are still: $left"
  jq -e .source out >/dev/null || broken "no report: $(tail -n 2 err)"
}
check_attached() {
  # The roles say that the process without answers is one of this engine.
  jq -e '.source.wire.observed | length == 3' out >/dev/null || broken "not attached: $(jq -c .source.degraded out) $(tail -n 2 err)"
}
attach_and_end ' prober --ring' 40
check_attached
attach_and_end ' locator --sought' 2
attach_and_end ' locator --sought' 40
check_attached
grep -q 'the analysis of its code' out err || broken 'it is not reported that the library could not be analysed'
kill -9 "$server"
sleep 1
left=$(pgrep -f 'locator --sought')
[ -z "$left" ] || broken "without the file system there are still analyses of its library: $left"
echo held
