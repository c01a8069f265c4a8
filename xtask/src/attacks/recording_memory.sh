#!/bin/bash
# A source of `watch` sends sections that take much more memory than their size once they are decoded. The memory of `watch` stays bounded, and
# it still shows its other source and ends at once.
# usage: recording_memory.sh TOKENGAP WORKDIR
set -u
[ -n "${APART:-}" ] || APART=1 exec unshare --net bash "$0" "$@"
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
limit_kib=$((512 << 10))
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
ip link set lo up 2>/dev/null || { echo 'SKIPPED: no ip (iproute2)'; exit 0; }
"$tokengap" demo --headless --duration 100s --metrics 15600 >demo.out 2>demo.err &
pids+=($!)
port=15700
for kind in status block; do
  port=$((port + 1))
  python3 "$here/recording_memory.py" $port $kind >$kind.source 2>&1 &
  pids+=($!)
  for _ in $(seq 50); do grep -q listening $kind.source && break; sleep 0.1; done
  "$tokengap" watch 127.0.0.1:$port 127.0.0.1:15600 --headless --json >$kind.report 2>$kind.err </dev/null &
  watch=$!
  pids+=("$watch")
  peak=0
  for _ in $(seq 60); do
    rss=$(awk '/^VmRSS/{print $2}' "/proc/$watch/status" 2>/dev/null)
    [ -n "$rss" ] || { tail -c 300 $kind.err; broken "$kind: watch has ended"; }
    [ "$rss" -gt "$peak" ] && peak=$rss
    [ "$peak" -le $limit_kib ] || broken "$kind: watch takes $((peak >> 10)) MiB"
    sleep 0.15
  done
  echo "$kind: watch took $((peak >> 10)) MiB at most"
  kill -TERM "$watch"
  for _ in $(seq 60); do kill -0 "$watch" 2>/dev/null || break; sleep 0.1; done
  kill -0 "$watch" 2>/dev/null && broken "$kind: watch has not ended 6 s after SIGTERM"
  sent=$(python3 -c 'import json, sys; print(max(run["report"]["tokens"]["sent"] for run in json.load(open(sys.argv[1]))["runs"]))' $kind.report)
  [ "${sent:-0}" -gt 0 ] || broken "$kind: the other source was not shown"
  kill -9 "${pids[-2]}"
done
echo held
