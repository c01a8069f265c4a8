#!/bin/bash
# A process of another user truncates its libpython while its stacks are sampled. The run goes on, its report is written, and it names the
# reason.
# usage: pyspy_trunc.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
cc -O2 -o truncate "$here/pyspy_trunc.c" 2>/dev/null || { echo 'SKIPPED: no C compiler'; exit 0; }
"$tokengap" attach --python-stacks 1 --pid 1 --headless --duration 1s 2>&1 | grep -q 'built without the cargo feature' &&
  { echo 'SKIPPED: this tokengap has no sampler of Python stacks'; exit 0; }
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
# The name of its libpython makes a process an interpreter for the sampler; its content is an executable with symbols.
libpython=$("$ATTACKS_VENV/bin/python" -c 'import sysconfig, os, sys
library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
print(library if library.endswith(".so.1.0") and os.path.exists(library) else os.path.realpath(sys.executable))')
ended=0
for try in $(seq 4); do
  rm -rf u && mkdir u
  cp "$library" u/libzmq.so.5 && cp "$libpython" u/libpython3.11.so.1.0 && chown -R 1000:1000 u
  setpriv --reuid 1000 --regid 1000 --clear-groups ./truncate "$work/u" 20 2>truncate.err &
  target=$!
  pids+=("$target")
  sleep 0.7
  timeout -k 2 30 "$tokengap" attach --pid "$target=tokenizer" --python-stacks 100 --headless --json --duration 6s >report 2>attach.err </dev/null
  status=$?
  kill -9 "$target"
  wait "$target" 2>/dev/null
  [ "$status" = 0 ] || broken "attach ended with status $status in try $try: $(tail -1 attach.err)"
  grep -q '"schema"' report || broken 'there is no report'
  if grep -q 'SIGBUS' report; then ended=$((ended + 1)); fi
  left=$(grep -lzs '^stacks$' /proc/[0-9]*/cmdline | wc -l)
  [ "$left" = 0 ] || { sleep 1; left=$(grep -lzs '^stacks$' /proc/[0-9]*/cmdline | wc -l); }
  [ "$left" = 0 ] || broken "$left processes that read stacks outlive tokengap"
done
echo "the reading process was ended by SIGBUS in $ended of 4 tries"
echo held
