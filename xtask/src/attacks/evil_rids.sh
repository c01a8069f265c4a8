#!/bin/bash
# Clients choose request ids with terminal escapes, formulas and markup. None is active in a report or an export.
# usage: evil_rids.sh TOKENGAP WORKDIR
cd "$2" || exit 1
here=$(dirname "$(readlink -f "$0")")
exec "$ATTACKS_VENV/bin/python" "$here/evil_rids.py" "$1" "$here/../../../engines/src/sglang/wire/schemas.txt"
