#!/bin/bash
# Without the feed's key, one address opens connections as fast as it can. A watcher with the key, at another address 50 ms away, is
# served nevertheless.
# usage: feed_flood.sh TOKENGAP WORKDIR
[ -n "${APART:-}" ] || APART=1 exec unshare --net bash "$0" "$@"
tokengap=$1 here=$(dirname "$(readlink -f "$0")")
cd "$2" || exit 1
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
ip link set lo up 2>/dev/null || { echo 'SKIPPED: no ip (iproute2)'; exit 0; }
cc -O2 -o flood "$here/feed_flood.c" 2>/dev/null || { echo 'SKIPPED: no C compiler'; exit 0; }
(umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >key)
"$tokengap" demo --headless --duration 90s --publish tcp://127.0.0.1:15600 --feed-key key >demo.out 2>demo.err &
demo=$!
pids+=("$demo")
python3 "$here/delay_proxy.py" 15601 15600 0.025 127.0.0.2 &
pids+=($!)
sleep 3
if ! kill -0 "$demo" 2>/dev/null && grep -q 'cargo feature' demo.err; then
  echo 'SKIPPED: this tokengap was built without the feature encryption'
  exit 0
fi
# watch WHAT: whether a watcher gets the run within 8 s.
watch() {
  timeout 30 "$tokengap" watch tcp://127.0.0.1:15601 --feed-key key --headless --json --duration 8s >watch.out 2>watch.err
  local status=$? sent
  sent=$(python3 -c 'import json; print(json.load(open("watch.out"))["tokens"]["sent"])' 2>/dev/null || echo 0)
  echo "$1: watch ended with $status, $sent tokens; $(tail -c 200 watch.err | tr '\n' ' ')"
  [ "$status" -le 1 ] && [ "$sent" -gt 0 ]
}
watch 'without a flood' || { echo 'BROKEN: the watcher sees nothing even without a flood'; exit 1; }
for pause_us in 5000 1000 200; do
  ./flood 15600 12 40 "$pause_us" &
  pids+=($!)
  sleep 1
  watch "a connection every $pause_us us" || { echo "BROKEN: a connection every $pause_us us keeps the watcher out"; exit 1; }
  wait "${pids[-1]}"
done
echo held
