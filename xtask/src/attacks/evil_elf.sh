#!/bin/bash
# The libzmq of an unprivileged process has 1.3 million symbols whose names never end. attach and doctor refuse it at once.
# usage: evil_elf.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
limit_s=15
fake=
trap 'kill -9 $fake 2>/dev/null' EXIT
cd "$work" || exit 1
cc -O2 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
"$ATTACKS_VENV/bin/python" "$here/evil_elf.py" libzmq.so.5 1300000 32
chmod 644 libzmq.so.5
setpriv --reuid 1000 --regid 1000 --clear-groups ./fakeproc sglang::scheduler "$work/libzmq.so.5" 100 >/dev/null &
fake=$!
sleep 0.5
for command in doctor "attach --pid $fake=scheduler --headless --duration 1s"; do
  started=$(date +%s%N)
  # shellcheck disable=SC2086 # several words
  timeout -k 2 $limit_s "$tokengap" $command >out 2>err </dev/null
  status=$?
  echo "$command: $((($(date +%s%N) - started) / 1000000)) ms, status $status; $(tail -1 err | cut -c1-200)"
  [ $status -lt 124 ] || { echo "BROKEN: tokengap $command does not end within $limit_s s"; exit 1; }
  grep -q 'exported symbols' out err || { echo "BROKEN: tokengap $command does not say why the library is not analysed"; exit 1; }
done
echo held
