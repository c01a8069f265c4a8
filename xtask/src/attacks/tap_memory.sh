#!/bin/bash
# Memory of `tap` under many connections whose receivers do not read: it stays below --max-buffered, and another client is still served.
# usage: tap_memory.sh TOKENGAP WORKDIR [CONNECTIONS]
set -u
tokengap=$1 work=$2 here=$(dirname "$(readlink -f "$0")")
cd "$work" || exit 1
exec "$ATTACKS_VENV/bin/python" "$here/tap_memory.py" "$tokengap" "${3:-2000}"
