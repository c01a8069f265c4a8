#!/bin/bash
# The standard output of a worker, a log that attach follows, becomes a FIFO or a terminal. attach opens neither.
# usage: worker_stdout.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $*"; exit 1; }
cd "$work" || exit 1
cc -O2 -o worker "$here/worker_stdout.c" -lutil 2>/dev/null || { echo 'SKIPPED: no C compiler'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
for mode in fifo pty; do
  mkdir -p "$mode/dynamo"
  cp "$library" "$mode/libzmq.so.5"
  cp "$library" "$mode/dynamo/_core.abi3.so"
  chown -R 1000:1000 "$mode"
  setpriv --reuid 1000 --regid 1000 --clear-groups ./worker "$work/$mode" $mode 30 2>worker.err &
  worker=$!
  pids+=("$worker")
  sleep 1
  # A session of its own, as a service has: a terminal that it opens becomes the controlling one.
  setsid "$tokengap" attach --pid "$worker=tokenizer" --headless --duration 60s >out 2>err </dev/null &
  watched=$!
  pids+=("$watched")
  # The output is exchanged after 10 s.
  for _ in $(seq 140); do
    kill -0 "$watched" 2>/dev/null || break
    ! cat "/proc/$watched"/task/*/wchan 2>/dev/null | grep -q wait_for_partner || broken "attach waits in the open of the worker's FIFO"
    [ "$(awk '{print $7}' "/proc/$watched/stat")" = 0 ] || broken "the worker's terminal controls attach"
    sleep 0.1
  done
  cat err
  kill -0 "$watched" 2>/dev/null || broken "attach ended early ($mode)"
  kill -TERM "$watched"
  for _ in $(seq 80); do kill -0 "$watched" 2>/dev/null || break; sleep 0.1; done
  ! kill -0 "$watched" 2>/dev/null || broken "attach ignores SIGTERM ($mode)"
  kill -9 "$worker"
  wait "$worker" "$watched" 2>/dev/null
  echo "$mode: not opened"
done
echo held
