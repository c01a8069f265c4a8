#!/bin/bash
# The owner of a tap's upstream turns it into a link to a root-only socket: root's tap must not connect its clients to that service.
# usage: tap_upstream.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
chmod 755 "$work"
mkdir run engine
chmod 700 run
chown 1000 engine
as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups)
"$python" "$here/root_service.py" "$work/run/docker.sock" 60 >service & pids+=($!)
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
for listen in "tcp://127.0.0.1:$port" "ipc://@tap-upstream-$$"; do
  "${as_user[@]}" "$python" -c "import socket; socket.socket(socket.AF_UNIX).bind('$work/engine/tok.sock')"
  timeout 30 "$tokengap" tap --listen "$listen" --upstream "ipc://$work/engine/tok.sock" --headless --duration 6s >report 2>errors & tap=$!
  for _ in $(seq 100); do grep -q 'listening on' errors && break; sleep 0.1; done
  grep -q 'listening on' errors || { cat errors; echo 'BROKEN: the tap did not start, so nothing was tested'; exit 1; }
  "${as_user[@]}" "$python" - "$work" "$listen" <<'PYTHON'
import os
import socket
import sys

work, listen = sys.argv[1:]
os.rename(f"{work}/engine/tok.sock", f"{work}/engine/old")
os.symlink(f"{work}/run/docker.sock", f"{work}/engine/tok.sock")
if listen.startswith("tcp"):
    client = socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2])))
else:
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0" + listen.removeprefix("ipc://@"))
client.settimeout(3)
try:
    client.sendall(b"GET /containers")
    print(listen, "user 1000 received:", client.recv(100))
except OSError as error:
    print(listen, "no answer:", error)
os.unlink(f"{work}/engine/tok.sock")
PYTHON
  wait $tap
  cat service
  grep -h 'relay:' errors report | head -3
  [ ! -s service ] || { echo 'BROKEN: the root-only service was reached through the tap'; exit 1; }
done
echo held
