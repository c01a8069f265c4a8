#!/bin/bash
# shellcheck disable=SC2034,SC2154,SC1091 # variables of hijacked.bash
# A hijacked `attach` writes the memory of another process that has the same user id, such as one of a container that uses it too.
# usage: uid65533.sh TOKENGAP WORKDIR
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
. "$here/hijacked.bash"
cat >victim.c <<'C'
#include <stdio.h>
#include <unistd.h>
volatile char secret[16]="untouched"; int main(){ printf("%p\n",(void*)secret); fflush(stdout); for(int i=0;i<600;i++){ usleep(100000); if(secret[0]!='u'){ printf("changed: %s\n",(char*)secret); return 0; } } return 1; }
C
cc -no-pie -o victim victim.c || skip 'no C compiler'
setpriv --reuid 65533 --regid 65533 --clear-groups ./victim >victim.out &
victim=$!
pids+=("$victim")
start_attach
address=$(head -1 victim.out)
user=$(awk '/^Uid:/{print $2}' "/proc/$attach/status")
[ "$user" != 0 ] || broken 'attach is root'
for process in /proc/[0-9]*; do
  [ "${process#/proc/}" = "$attach" ] || [ "$(awk '/^Uid:/{print $2}' "$process/status" 2>/dev/null)" != "$user" ] ||
    broken "another process has the user id of attach ($user): ${process#/proc/}"
done
for process in "$scheduler" "$victim"; do
  inject <<CALLS
257 0xffffffffffffff9c s:/proc/$process/mem 2 0
18 @0 s:CHANGED 8 $address
CALLS
done
sleep 1
grep -q changed victim.out && broken 'the memory of another process was changed'
[ "$(grep -c 'mem 2 0 -> -' injected)" = 2 ] || broken 'the memory of another process could be opened for writing'
echo held
