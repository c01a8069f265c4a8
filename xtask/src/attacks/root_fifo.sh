#!/bin/bash
# An unprivileged process in a container replaces its libzmq, after it was verified, by a FIFO or by a link to one of the host. tokengap
# opens neither. The FIFO stands for a device of the host, such as /dev/watchdog.
# usage: root_fifo.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
cc -O2 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
mkfifo hostdevice
folder=
for _ in $(seq 20); do folder=$folder$(printf '/a%.0s' $(seq 40)); done
inner=$folder/libzmq.so.5

# waits_for_fifo PID: whether one of its threads waits in the open of a FIFO.
waits_for_fifo() { cat "/proc/$1"/task/*/wchan 2>/dev/null | grep -q wait_for_partner; }

# attack KIND WHEN COMMAND...: fails if the command opens what replaced the library, or does not end.
attack() {
  local kind=$1 when=$2 root=$work/container watched outcome=ended
  shift 2
  rm -rf "$root" && mkdir -p "$root$folder"
  cp "$library" "$root$inner"
  cp fakeproc "$root/"
  if [ "$kind" = fifo ]; then mkfifo "$root$inner.evil"; else ln -s "$work/hostdevice" "$root$inner.evil"; fi
  chown -hR 1000:1000 "$root"
  (cd "$root" && ROOT=$root exec "$work/fakeproc" sglang::scheduler "$inner" 60 "$when") >fakeproc.log 2>&1 &
  local fake=$!
  pids+=("$fake")
  sleep 0.4
  "$tokengap" "$@" >out 2>err </dev/null &
  watched=$!
  pids+=("$watched")
  for _ in $(seq 250); do
    kill -0 "$watched" 2>/dev/null || break
    if waits_for_fifo "$watched"; then outcome="waits in the open of a FIFO as uid $(awk '/^Uid/{print $2}' "/proc/$watched/status")"; break; fi
    sleep 0.1
  done
  [ "$outcome" != ended ] || ! kill -0 "$watched" 2>/dev/null || outcome='does not end'
  kill -9 "$watched" "$fake" 2>/dev/null
  wait "$watched" "$fake" 2>/dev/null
  echo "$1, $kind, $when: $outcome; exchanged $(grep -c swapped fakeproc.log) times; $(tail -1 err | cut -c1-120)"
  [ "$outcome" = ended ] || { echo "BROKEN: $1 $outcome ($kind, $when)"; exit 1; }
}

for kind in link fifo; do
  for when in open1 open2 swap; do
    attack $kind $when doctor
    attack $kind $when attach --headless --duration 200ms
  done
done
echo held
