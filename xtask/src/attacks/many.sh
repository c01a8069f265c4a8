#!/bin/bash
# 1,500 idle processes of another user map a file called libzmq.so.5. attach --pid of the real engine works, a running attach finds a new
# worker, and both report the processes that were left out.
# usage: many.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
cc -O2 -static -o many "$here/many.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
cp "$library" libzmq.so.5 && chmod 644 libzmq.so.5
setpriv --reuid 1000 --regid 1000 --clear-groups ./many x "$work/libzmq.so.5" 1500 120 none . >many.out 2>&1 &
pids+=($!)
for _ in $(seq 100); do
  [ "$(ls -d /proc/[0-9]* | wc -l)" -gt 1490 ] && break
  sleep 0.2
done
"$python" "$here/engine.py" 110 "$work/e.sock" >engine 2>&1 &
pids+=($!)
sleep 2
read -r _ scheduler tokenizer < <(grep PIDS engine)
ulimit -Sn 1024
timeout -k 2 60 "$tokengap" attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --headless --json --duration 4s >named 2>named.err </dev/null ||
  broken "attach --pid: exit status $?, $(tail -1 named.err)"
grep -q 'left out of the search' named || broken 'the report of attach --pid does not mention the processes that were left out'
# A run that began without them finds a worker that starts after them.
kill -9 "${pids[0]}"
sleep 1
timeout -k 2 100 "$tokengap" attach --headless --json --duration 45s >running 2>running.err </dev/null &
attach=$!
pids+=("$attach")
for _ in $(seq 100); do grep -q 'attached to' running.err && break; sleep 0.2; done
setpriv --reuid 1000 --regid 1000 --clear-groups ./many x "$work/libzmq.so.5" 1500 90 none . >many.out 2>&1 &
pids+=($!)
sleep 8
cat >worker.py <<'PYTHON'
import sys, time, zmq, setproctitle
setproctitle.setproctitle("sglang::scheduler_TP1")
socket = zmq.Context().socket(zmq.PUSH)
socket.connect("ipc://" + sys.argv[1])
end = time.time() + 60
while time.time() < end:
    socket.send(b"\x80\x04N.")
    time.sleep(0.05)
PYTHON
"$python" worker.py "$work/e.sock" &
pids+=($!)
wait "$attach"
status=$?
[ "$status" = 0 ] || broken "the running attach ended with status $status: $(tail -1 running.err)"
grep -q 'processes started while attached' running || broken 'the running attach did not find the new worker'
grep -q 'left out of the search' running || broken 'the report of the running attach does not mention the processes that were left out'
echo held
