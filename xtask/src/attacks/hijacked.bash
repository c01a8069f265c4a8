# Sourced by the scripts that run system calls inside a live `attach`, as code that has taken it over would. Needs $tokengap, $work and
# $here. Ends the script with SKIPPED where the machine lacks something.
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; cleanup' EXIT
cleanup() { :; }
skip() { echo "SKIPPED: $1"; exit 0; }
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
[ "$(uname -m)" = x86_64 ] || skip 'the injected system calls are of x86-64'
cc -O1 -o inj "$here/inj.c" 2>/dev/null || skip 'no C compiler'
# Starts an engine, as user $engine_user, and an attach to it. Sets $attach to the process that reads the engine's messages.
engine_user=0
start_attach() {
  mkdir -p sockets
  chown "$engine_user" sockets
  setpriv --reuid "$engine_user" --regid "$engine_user" --clear-groups \
    "$python" "$here/engine.py" 170 "$work/sockets/e.sock" >engine 2>&1 &
  pids+=($!)
  for _ in $(seq 100); do grep -q PIDS engine && break; sleep 0.1; done
  read -r _ scheduler tokenizer < <(grep PIDS engine)
  [ -n "$tokenizer" ] || broken 'the engine did not start'
  "$tokengap" attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --headless --duration 160s >out 2>err &
  attach=$!
  pids+=("$attach")
  for _ in $(seq 200); do grep -q 'attached to 2' err && break; sleep 0.1; done
  grep -q 'attached to 2' err || { cat err >&2; skip 'attach does not work here'; }
  sleep 1
}
# Runs system calls, one a line, inside attach. Prints their results.
inject() { ./inj "$attach" | tee -a injected; }
