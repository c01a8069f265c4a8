#!/bin/bash
# The owner of the folder with root's results renames it while `attach` runs, and puts a link to a folder of root in its place. No file is
# created or replaced there, also with --force and from a working folder above both.
# usage: results_folder.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
python=$ATTACKS_VENV/bin/python
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null' EXIT
broken() { echo "BROKEN: $1"; exit 1; }
cd "$work" || exit 1
"$python" "$here/engine.py" 60 "$work/e.sock" >engine 2>&1 &
pids+=($!)
for _ in $(seq 100); do grep -q PIDS engine && break; sleep 0.1; done
read -r _ scheduler tokenizer < <(grep PIDS engine)
mkdir results root
chown 1000:1000 results
echo victim >root/ring.tgap
"$tokengap" attach --pid "$scheduler=scheduler" --pid "$tokenizer=tokenizer" --headless --hindsight 4MiB \
  --hindsight-file "$work/results/ring.tgap" --force --duration 7s >out 2>err </dev/null &
attach=$!
pids+=("$attach")
for _ in $(seq 100); do grep -q 'attached to 2' err && break; sleep 0.1; done
grep -q 'attached to 2' err || { cat err >&2; echo 'SKIPPED: attach does not work here'; exit 0; }
sleep 1
mv results moved
ln -s "$work/root" results
kill -USR1 "$attach"
wait "$attach"
tail -5 err
ls -l root moved
[ "$(ls root)" = ring.tgap ] || broken 'files were created in the folder of root'
[ "$(cat root/ring.tgap)" = victim ] || broken 'a file of root was replaced'
compgen -G 'moved/tokengap-hindsight-*' >/dev/null || broken 'nothing was saved in the folder, wherever its name leads'
echo held
