#!/bin/bash
# An engine turns the folder of its socket into a link once `tokengap splice` has read the socket's type: splice must not take over the socket
# of this name in that other folder. Tried from a container, where the link leads to the host's files, and without a container.
# usage: splice_escape.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
chmod 755 "$work"
cp "$here/root_service.py" "$here/splice_escape_engine.py" .
as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all)
for place in container host; do
  mkdir "$place" "$place/run" "$place/engine"
  chown 1000:1000 "$place/engine"
  "$python" root_service.py "$work/$place/run/docker.sock" 60 660 >"$place/service" & pids+=($!)
  sleep 0.5
  before=$(stat -c '%n %i' "$place"/run/*)
  engine=("${as_user[@]}" "$python" splice_escape_engine.py "$work/$place/engine" "$work/$place/run")
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
  timeout 60 "$tokengap" splice --pid "$scheduler" --yes --duration 6s --headless >"$place/report" 2>"$place/errors" </dev/null & splice=$!
  during=$before
  while kill -0 $splice 2>/dev/null; do
    now=$(stat -c '%n %i' "$place"/run/*)
    [ "$now" = "$before" ] || during=$now
    sleep 0.1
  done
  wait $splice
  echo "$place: splice ended with $?"
  cat "$place/output"
  tail -5 "$place/errors"
  [ "$during" = "$before" ] || { echo "$during"; echo "BROKEN: a socket of the host was moved from the $place"; exit 1; }
  kill -9 "$scheduler" "$tokenizer" 2>/dev/null
done
grep -q 'another container' container/errors || { echo 'BROKEN: the container was not refused by name'; exit 1; }
grep -q swapped host/output || { echo 'BROKEN: the folder on the host was not replaced, so nothing was tested'; exit 1; }
echo held
