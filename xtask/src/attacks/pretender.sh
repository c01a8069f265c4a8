#!/bin/bash
# A process of another user has the title of a scheduler and no connection. It does not keep attach, attach --follow or doctor from the real
# engine, and is listed.
# usage: pretender.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
cc -O1 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
cp "$library" libzmq.so.5 && chmod 644 libzmq.so.5
for title in sglang::scheduler sglang::detokenizer; do
  setpriv --reuid 1000 --regid 1000 --clear-groups ./fakeproc "$title" "$work/libzmq.so.5" 120 >/dev/null &
  pids+=($!)
done
pretender=${pids[0]}
sleep 1
# Before the engine starts, --follow waits, and doctor reports no engine.
timeout -k 2 90 "$tokengap" -v attach --follow --headless --json --duration 40s >follow 2>follow.err </dev/null &
follow=$!
pids+=("$follow")
timeout -k 2 60 "$tokengap" doctor --json >alone 2>alone.err </dev/null
[ $? -le 1 ] || broken "doctor among candidates only: $(tail -1 alone.err)"
grep -q 'without a connection' alone || broken 'doctor does not list the candidates'
sleep 3
"$python" "$here/engine.py" 100 "$work/e.sock" >engine 2>&1 &
pids+=($!)
sleep 2
read -r _ scheduler tokenizer < <(grep PIDS engine)
timeout -k 2 60 "$tokengap" attach --headless --json --duration 3s >attach 2>attach.err </dev/null ||
  broken "attach: $(tail -1 attach.err)"
grep -q "frames of scheduler $scheduler" attach.err || broken 'attach does not watch the real engine'
grep -q "frames of scheduler $pretender" attach.err && broken 'attach watches the pretender'
grep -q 'candidates without a connection' attach.err || broken 'attach does not mention the candidates'
timeout -k 2 60 "$tokengap" doctor --json >doctor 2>doctor.err </dev/null
[ $? -le 1 ] || broken "doctor: $(tail -1 doctor.err)"
"$python" -c 'import json,sys; d=json.load(open("doctor")); sys.exit(d["pids"] is None or int(sys.argv[1]) not in d["pids"] or int(sys.argv[2]) in d["pids"])' "$scheduler" "$pretender" ||
  broken 'doctor did not test the real engine'
wait "$follow"
status=$?
[ "$status" = 0 ] || broken "attach --follow ended with status $status: $(tail -1 follow.err)"
grep -q "\"pid\":$scheduler" follow || broken 'attach --follow did not watch the real engine'
echo held
