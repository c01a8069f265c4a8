#!/bin/bash
# A token or configuration file is a FIFO or belongs to another user: every command ends with an error, and a reload keeps the run.
# usage: secret_files.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
mkfifo -m 600 fifo
(umask 077; printf '%064d' 7 >other)
chown 1000:1000 other
for file in fifo other; do
  for flags in 'demo --headless --duration 1s --metrics 0 --token-file' 'watch 127.0.0.1:1 --headless --duration 1s --token-file'; do
    # shellcheck disable=SC2086 # several words
    timeout -k 1 10 "$tokengap" $flags "$work/$file" >out 2>err </dev/null
    status=$?
    echo "$flags $file: status $status, $(tail -n 1 err)"
    [ "$status" = 2 ] || broken "$flags: status $status with $file"
  done
done
timeout -k 1 10 "$tokengap" demo --headless --duration 1s --config "$work/fifo" >out 2>err </dev/null
status=$?
[ "$status" = 2 ] || broken "--config: status $status with a FIFO"
printf '[demo]\nslowest = 3\n' >config.toml
"$tokengap" demo --headless --json --duration 60s --config config.toml >out 2>err </dev/null &
demo=$!
pids+=("$demo")
sleep 3
rm config.toml
mkfifo config.toml
kill -HUP "$demo"
sleep 1
kill -TERM "$demo"
for _ in $(seq 30); do kill -0 "$demo" 2>/dev/null || break; sleep 0.1; done
kill -0 "$demo" 2>/dev/null && broken 'a run that was told to reload a FIFO has not ended 3 s after SIGTERM'
tail -n 3 err
grep -q '"schema"' out || broken 'the run that was told to reload a FIFO gave no report'
echo held
