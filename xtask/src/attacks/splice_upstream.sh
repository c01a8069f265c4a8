#!/bin/bash
# The user of an engine replaces the moved socket, which is a file of that user, by a link to a root-only socket of the host, and connects to
# the engine's path: the relay of root's `tokengap splice` must not connect it to that service. Tried in a container that does not contain
# the service's socket, and without a container.
# usage: splice_upstream.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
chmod 755 "$work"
cp "$here/root_service.py" "$here/splice_upstream_engine.py" .
as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all)
for place in container host; do
  mkdir "$place" "$place/run" "$place/engine"
  chown 1000:1000 "$place/engine"
  "$python" root_service.py "$work/$place/run/docker.sock" 60 >"$place/service" & pids+=($!)
  sleep 0.5
  engine=("${as_user[@]}" "$python" splice_upstream_engine.py "$work/$place/engine" "$work/$place/run/docker.sock")
  if [ $place = container ]; then
    # shellcheck disable=SC2016 # expanded by the inner shell
    unshare -m sh -c 'mount -t tmpfs x "$0" && shift && exec "$@"' "$work/$place/run" - "${engine[@]}" >"$place/output" 2>&1 & pids+=($!)
  else
    "${engine[@]}" >"$place/output" 2>&1 & pids+=($!)
  fi
  for _ in $(seq 100); do grep -q PIDS "$place/output" && break; sleep 0.1; done
  read -r _ scheduler tokenizer < <(grep PIDS "$place/output")
  [ -n "${tokenizer:-}" ] || { cat "$place/output"; echo 'BROKEN: the engine did not start, so nothing was tested'; exit 1; }
  pids+=("$scheduler" "$tokenizer")
  sleep 1
  timeout 60 "$tokengap" splice --pid "$scheduler" --yes --duration 9s --headless >"$place/report" 2>"$place/errors" </dev/null
  status=$?
  echo "$place: splice ended with $status"
  cat "$place/output" "$place/service"
  tail -5 "$place/errors"
  [ ! -s "$place/service" ] || { echo "BROKEN: the root-only service was reached from the $place"; exit 1; }
  kill -9 "$scheduler" "$tokenizer" 2>/dev/null
done
grep -q 'another container' container/errors || { echo 'BROKEN: the container was not refused by name'; exit 1; }
grep -q 'replaced the moved socket' host/output || { echo 'BROKEN: nothing was moved on the host, so nothing was tested'; exit 1; }
echo held
