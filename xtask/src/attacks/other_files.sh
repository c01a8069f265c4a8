#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` reads files of root and of other users' processes: itself, and through the process that opens files for it.
# usage: other_files.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
echo precious >secret
chmod 600 secret
sleep 100 &
other=$!
pids+=("$other")
# An engine of a user without rights, who plants links to the file of root beside permitted ones.
engine_user=65533
folder=$work/packages
mkdir -p "$folder/evil-1.0.dist-info" "$folder/good-1.0.dist-info"
ln -s "$work/secret" "$folder/evil-1.0.dist-info/METADATA"
ln -s "$work/secret" "$folder/tokenizer.json"
echo metadata >"$folder/good-1.0.dist-info/METADATA"
start_attach
status() { awk -v name="$1:" '$1 == name {print $2}' "/proc/$attach/status"; }
for set in CapInh CapPrm CapEff CapBnd CapAmb; do
  [[ $(status $set) =~ ^0+$ ]] || broken "attach has capabilities: $set $(status $set)"
done
[ "$(status Uid)" != 0 ] || broken 'attach is root'
[ "$(awk '/^Uid:/{print $2}' "/proc/$scheduler/status")" = "$engine_user" ] || broken 'the engine has another user'
inject <<CALLS
257 0xffffffffffffff9c s:$work/secret 0 0
257 0xffffffffffffff9c s:/etc/shadow 0 0
257 0xffffffffffffff9c s:/proc/$other/mem 0 0
257 0xffffffffffffff9c s:/proc/$other/environ 0 0
257 0xffffffffffffff9c s:/proc/$other/maps 0 0
257 0xffffffffffffff9c s:/proc/$other/root/etc/passwd 0 0
257 0xffffffffffffff9c s:/proc/$scheduler/mem 0 0
257 0xffffffffffffff9c s:/proc/$scheduler/environ 0 0
257 0xffffffffffffff9c s:/proc/$scheduler/fd/0 0 0
310 $scheduler x:00000000000000000800000000000000 1 x:00000000000000000800000000000000 1 0
105 0
122 0
126 x:2605082000000000 x:000020000000200000000000c0000000c000000000000000
CALLS
[ "$(grep -cE '^\[[0-9]+\] 257 .*(EACCES|EPERM)' injected)" = 9 ] || broken 'a file of root or of another process was opened'
grep -E '^\[[0-9]+\] (310|105|126) ' injected | grep -vqE 'EPERM|ENOSYS' && broken 'a right was gained'

# Requests to the process that opens files. Each must have the expected outcome.
mappings=Mappings environment=Environment thread_file=ThreadFile library=Library metadata=MetadataFile output=Output named=Named
expect() { # OUTCOME REQUEST PID FIRST SECOND [PATH]
  local outcome
  outcome=$(python3 "$here/ask_opener.py" "$attach" "${@:2}")
  echo "request ${*:2}: $outcome"
  [ "$outcome" = "$1" ] || broken "request ${*:2}: $outcome, not $1"
}
expect opened $environment "$scheduler" 0 0
expect opened $output "$scheduler" 1 0
expect opened $metadata "$scheduler" 0 0 "$folder/good-1.0.dist-info/METADATA"
expect denied $metadata "$scheduler" 0 0 "$folder/evil-1.0.dist-info/METADATA"
expect denied $metadata "$scheduler" 0 0 "$folder/tokenizer.json"
expect denied $metadata "$scheduler" 0 0 /etc/shadow
expect denied $metadata "$scheduler" 0 0 /etc/passwd
expect denied $named "$scheduler" 0 0
range=$(awk '$6 ~ /python3[^\/]*$/ {print $1; exit}' "/proc/$scheduler/maps")
expect denied $library "$scheduler" "0x${range%-*}" "0x${range#*-}"
for operation in $mappings $environment; do
  expect 'not examined' "$operation" "$other" 0 0
done
expect 'not examined' $thread_file "$other" "$other" 1
expect 'not examined' $output "$other" 1 0
expect 'not examined' $metadata "$other" 0 0 "$folder/good-1.0.dist-info/METADATA"
opener=$(pgrep -P "$attach" -f opener)
[ "$(awk '/^Uid:/{print $2}' "/proc/$opener/status")" != "$(status Uid)" ] || broken 'the opener has the user of attach'

# Without the opener, what is observed goes on.
kill -9 "$opener"
sleep 2
kill -0 "$attach" 2>/dev/null || broken 'attach ended with the opener'
kill -INT "$attach"
wait "$attach"
grep -q 'the process that opens files for tokengap has exited' out err || broken 'the end of the opener is not reported'
grep -qE 'scheduler' out || broken 'there is no report'
echo held
