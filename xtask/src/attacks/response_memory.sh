#!/bin/bash
# A server that answers through `tap` leaves hundreds of responses unfinished. What tap keeps of them is bounded.
# usage: response_memory.sh TOKENGAP WORKDIR
cd "$2" || exit 1
here=$(dirname "$(readlink -f "$0")")
exec "$ATTACKS_VENV/bin/python" "$here/response_memory.py" "$1"
