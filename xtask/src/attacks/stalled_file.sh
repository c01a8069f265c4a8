#!/bin/bash
# A process names a folder on a file system that never answers as a part of its import path. SIGTERM and --duration end every kind of attach
# with a report, and a running attach goes on observing.
# usage: stalled_file.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; umount -l "$work/stalled" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
cc -O1 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
cp "$library" libzmq.so.5 && chmod 644 libzmq.so.5
mkdir stalled
"$python" "$here/stalled_file.py" "$work/stalled" >mount 2>&1 &
pids+=($!)
for _ in $(seq 50); do [ -s mount ] && break; sleep 0.1; done
grep -q '^mounted' mount || { echo "SKIPPED: no FUSE: $(tail -1 mount)"; exit 0; }
stall() {
  PYTHONPATH="$work/stalled" setpriv --reuid 1000 --regid 1000 --clear-groups ./fakeproc sglang::scheduler "$work/libzmq.so.5" 140 >/dev/null &
  stalled=$!
  pids+=("$stalled")
}
# expect_end NAME PID: the process ends within a second (and half a second for this slow machine's sake) of SIGTERM, with a report.
expect_end() {
  local began ended
  began=$(date +%s%N)
  kill -TERM "$2"
  for _ in $(seq 60); do kill -0 "$2" 2>/dev/null || break; sleep 0.05; done
  ended=$(date +%s%N)
  kill -0 "$2" 2>/dev/null && broken "$1: still there $(((ended - began) / 1000000)) ms after SIGTERM"
  wait "$2"
  echo "$1: ended $(((ended - began) / 1000000)) ms after SIGTERM with status $?"
  [ $(((ended - began) / 1000000)) -le 1500 ] || broken "$1: took $(((ended - began) / 1000000)) ms to end"
  grep -q '"schema"' "$1" || broken "$1: no report"
}
stall
sleep 0.7
for arguments in '' --follow; do
  name=start-up$arguments
  # shellcheck disable=SC2086 # No argument, if empty.
  "$tokengap" attach $arguments --headless --json >"$name" 2>"$name.err" </dev/null &
  pids+=($!)
  sleep 4
  kill -0 "${pids[-1]}" 2>/dev/null || broken "$name ended by itself: $(tail -1 "$name.err")"
  expect_end "$name" "${pids[-1]}"
done
began=$(date +%s)
timeout -k 2 30 "$tokengap" attach --follow --headless --json --duration 2s >duration 2>duration.err </dev/null || broken "duration: $(tail -1 duration.err)"
[ $(($(date +%s) - began)) -le 5 ] || broken "--duration 2s took $(($(date +%s) - began)) s"
# A run that is already attached loses only the search for new workers, and says so.
kill -9 "$stalled"
"$python" "$here/engine.py" 110 "$work/e.sock" >engine 2>&1 &
pids+=($!)
sleep 2
"$tokengap" attach --headless --json >running 2>running.err </dev/null &
attach=$!
pids+=("$attach")
for _ in $(seq 100); do grep -q 'attached to' running.err && break; sleep 0.2; done
stall
sleep 15
expect_end running "$attach"
grep -q 'search for new workers has not finished' running || broken 'the report does not mention that the search stalled'
"$python" -c '
import json, sys
report = json.load(open("running"))
sys.exit(report["self"]["events"] < 500 or report["window_ns"][1] - report["window_ns"][0] < 14e9)' || broken 'the running attach stopped observing'
echo held
