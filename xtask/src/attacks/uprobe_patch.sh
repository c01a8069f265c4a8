#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` places a uprobe inside an instruction of another process, which overwrites a byte of its code.
# usage: uprobe_patch.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
cat >victim.c <<'C'
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int allowed(void){ int r; __asm__ volatile("movl $0x00002200,%0":"=a"(r)); return r & 0x8000; }  /* always 0 */
int main(){ for(int i=0;i<600;i++){ usleep(100000); if(allowed()){ puts("allowed() returned true"); fflush(stdout); return 0; } } return 1; }
C
cc -O2 -no-pie -o victim victim.c || skip 'no C compiler'
offset=$(python3 -c "print(open('victim','rb').read().index(bytes.fromhex('b800220000'))+2)")
./victim >victim.out &
victim=$!
pids+=("$victim")
start_attach
programs=$(grep -l 'prog_type:.*2$' /proc/"$attach"/fdinfo/* 2>/dev/null | sed 's:.*/::' | tr '\n' ' ')
echo "program descriptors of attach: ${programs:-none}"
scratch=$(echo '9 0 4096 3 0x22 0xffffffffffffffff' | inject | sed 's/.*-> //')
[[ $scratch =~ ^[0-9]+$ ]] || broken 'no memory could be mapped in attach, so nothing was tested'
# Without a program descriptor, any number shows whether the call is refused before the kernel looks at it.
for program in ${programs:-0 1 2}; do
  python3 - "$scratch" "$program" "$offset" "$work/victim" <<'PYTHON' | inject
import struct, sys
memory, program, offset, path = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
data, offsets, cookies, at = path.encode() + b"\0", memory + 512, memory + 520, memory + 1024
# Of every process that maps the file.
attribute = struct.pack("<IIIIQQQQIIII", program, 0, 48, 0, memory, offsets, 0, cookies, 1, 0, 0, 0)
print(f"poke {memory} {data.hex()}")
print(f"poke {offsets} {struct.pack('<QQ', offset, 0).hex()}")
print(f"poke {at} {attribute.hex()}")
print(f"321 28 {at} {len(attribute)}")
print(f"321 5 {at} {len(attribute)}")
print(f"321 1 {at} {len(attribute)}")
print(f"321 15 {at} {len(attribute)}")
PYTHON
done
# The same as requests to the prober, through each socket of attach. A request has no offset: the prober has the library analysed. One of a
# form that could have an offset must be refused, and so must one for a process without libzmq.
libzmq=$(awk '$2 ~ /x/ && $6 ~ /libzmq/ {print $1, $3, $6; exit}' "/proc/$scheduler/maps")
read -r range begins file <<<"$libzmq"
[ -n "$file" ] || broken 'the engine has no libzmq'
code() { # Bytes of the engine's code, some instructions long.
  python3 - "$scheduler" "0x${range%-*}" <<'PYTHON'
import sys
with open(f"/proc/{sys.argv[1]}/mem", "rb") as memory:
    memory.seek(int(sys.argv[2], 16) + 4096)
    print(memory.read(64).hex())
PYTHON
}
before=$(code)
sockets=$(for open_file in "/proc/$attach/fd"/*; do [[ $(readlink "$open_file") = socket:* ]] && echo "${open_file##*/}"; done)
request() { # SOCKET FILE REQUEST
  PYTHONPATH=$here python3 - "$scratch" "$@" <<'PYTHON' | DUMP=1 inject
import json, struct, sys
from messages import encode
memory, socket, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
file = 400
request = encode(json.loads(sys.argv[4]))
data, vector, control, header = memory + 1024, memory + 1400, memory + 1432, memory + 1472
print(f"257 0xffffffffffffff9c s:{path} 0 0")
print(f"33 @0 {file}")
print(f"poke {data} {request.hex()}")
print(f"poke {vector} {struct.pack('<QQ', data, len(request)).hex()}")
print(f"poke {control} {struct.pack('<QiiiI', 20, 1, 1, file, 0).hex()}")
print(f"poke {header} {struct.pack('<QIIQQQQII', 0, 0, 0, vector, 1, control, 24, 0, 0).hex()}")
print(f"46 {socket} {header} 0x4040")
print(f"35 x:{struct.pack('<QQ', 0, 300_000_000).hex()} 0")
print(f"45 {socket} x:{'00' * 520} 520 0x40 0 0")
PYTHON
}
offset_in_code=$((16#$begins + 4096 + 1))
for socket in $sockets; do
  request "$socket" "$file" "{\"AttachUprobes\": [0, $scheduler, {\"Messages\": [false, false]}, $offset_in_code]}"
  request "$socket" "$work/victim" "{\"AttachUprobes\": [0, $victim, {\"Polls\": [false]}]}"
  request "$socket" "$work/victim" "{\"AttachUprobes\": [0, $scheduler, {\"Messages\": [true, false]}]}"
done
sleep 1
grep -q true victim.out && broken 'the code of another process was changed by a uprobe'
grep -E '^\[[0-9]+\] 321 ' injected | grep -qvE 'EPERM|ENOSYS' && broken 'bpf is not refused'
grep -q '321 28' injected || broken 'no call was injected'
[ "$(code)" = "$before" ] || broken 'the code of the engine was changed by a uprobe at an offset that attach chose'
[ -n "$(pgrep -P "$attach" -f prober)" ] || broken 'the prober has ended'
answered() { tr -d '\n' <injected | grep -q "$1" || broken "the prober did not answer: $1"; }
answered 'not a request'
answered "process $victim has neither"
answered "process $scheduler executes no code of this file"
echo held
