#!/bin/bash
# The owner of the folder of root's tap replaces the tap's new socket by a link, between its creation and the change of its mode: no file of
# root may get another mode.
# usage: tap_chmod.sh TOKENGAP WORKDIR [TRIES]
set -u
tokengap=$1 work=$2 tries=${3:-15} here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
chmod 755 "$work"
cc -O2 -o tap_chmod "$here/tap_chmod.c" || { echo 'SKIPPED: no C compiler'; exit 0; }
as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups)
secret=$work/secret
echo 'root:*:hash' >"$secret"
chmod 600 "$secret"
started=0
for try in $(seq "$tries"); do
  rm -rf engine
  mkdir engine
  chown 1000:1000 engine
  # The upstream: on odd tries a socket of mode 0777, on even ones a link to it that takes long to follow. All belong to the engine's user.
  "${as_user[@]}" "$python" - "$work/engine" "$((try % 2))" <<'PYTHON'
import os
import socket
import sys

os.chdir(sys.argv[1])
plain = sys.argv[2] == "1"
listener = socket.socket(socket.AF_UNIX)
listener.bind("up.sock" if plain else "real.sock")
os.chmod("up.sock" if plain else "real.sock", 0o777)
if not plain:
    os.makedirs("a/a")
    deep = "a/../" * 700
    os.symlink("real.sock", "l0")
    for i in range(1, 38):
        os.symlink(deep + f"l{i - 1}", f"l{i}")
    os.symlink(deep + "l37", "up.sock")
PYTHON
  "${as_user[@]}" ./tap_chmod "$work/engine" tap.sock "$secret" >/dev/null & attacker=$!
  pids+=("$attacker")
  sleep 0.1
  timeout 10 "$tokengap" tap --listen "ipc://$work/engine/tap.sock" --upstream "ipc://$work/engine/up.sock" --headless --duration 500ms >report 2>errors
  grep -q 'listening on\|replaced the socket' errors && started=$((started + 1))
  kill -9 $attacker 2>/dev/null
  wait $attacker 2>/dev/null
  mode=$(stat -c %a "$secret")
  [ "$mode" = 600 ] || { echo "BROKEN: root's file has mode $mode after $try tries"; exit 1; }
done
tail -2 errors
[ $started -gt 0 ] || { echo 'BROKEN: the tap never started, so nothing was tested'; exit 1; }
echo held
