#!/bin/bash
# An unprivileged process chooses names with terminal escapes: the path of its libzmq, a socket, a package, a splice's note. None reaches
# the terminal raw.
# usage: doctor_esc.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
escapes=$'\e]0;owned\a\e[31m\xc2\x9b\xe2\x80\xae'
pids=()
raw=
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
cd "$work" || exit 1
cc -O1 -static -o fakeproc "$here/fakeproc.c" 2>/dev/null || { echo 'SKIPPED: no static C library'; exit 0; }
# search WHAT COMMAND...: runs tokengap and collects outputs with raw control or direction characters.
search() {
  local what=$1 stream found
  shift
  timeout 30 "$tokengap" "$@" >stdout 2>stderr </dev/null
  for stream in stdout stderr; do
    found=$("$python" - "$stream" <<'PYTHON'
import sys
text = open(sys.argv[1], "rb").read().decode("utf-8", "replace")
print(sum(c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") for c in text))
PYTHON
)
    echo "$what, $stream: $found raw characters"
    [ "$found" = 0 ] || raw="$raw $what ($stream)"
  done
}
library=$(echo "$ATTACKS_VENV"/lib/python3*/site-packages/pyzmq.libs/libzmq-*.so*)
chosen="$work/a${escapes}b"
mkdir "$chosen"
cp "$library" "$chosen/libzmq.so.5"
chmod -R a+rX "$work"
setpriv --reuid 1000 --regid 1000 --clear-groups ./fakeproc sglang::scheduler "$chosen/libzmq.so.5" 100 >/dev/null &
pids+=($!)
sleep 0.5
search 'doctor' doctor
grep -q 'libzmq' stdout || { echo 'BROKEN: doctor does not list the process, so nothing was tested'; exit 1; }
search 'doctor --json' doctor --json
# Errors name the library, now unreadable.
printf junk >junk && mv junk "$chosen/libzmq.so.5"
search 'attach -vv' -vv attach --headless --duration 1s
mkdir sockets
"$python" "$here/engine.py" 80 "sockets/q${escapes}" >engine 2>&1 &
pids+=($!)
sleep 2
read -r _ scheduler tokenizer < <(grep PIDS engine)
search 'attach, several engines' attach --headless --duration 1s
search 'doctor, several engines' doctor
search 'attach' attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --headless --duration 2s
search 'splice' splice --pid "$scheduler" --headless
# A note of root, whose name repeats that of an engine's socket, in a /tmp that is private to this script. Those of other users are only
# counted.
mount -t tmpfs -o mode=1777 tmpfs /tmp
flock "/tmp/note${escapes}.tokengap" sleep 60 &
pids+=($!)
sleep 0.5
search 'splice --restore' splice --restore
grep -q 'in use' stdout || { echo 'BROKEN: splice --restore does not list the note, so nothing was tested'; exit 1; }
search 'mistake on the command line' splice --restore "/tmp/note${escapes}.tokengap"
search 'report of a missing file' report "missing${escapes}"
[ -z "$raw" ] || { echo "BROKEN: raw escapes in$raw"; exit 1; }
echo held
