#!/usr/bin/env python3
"""Sends a request to the opener of a live `attach` from inside it, and prints the status of the reply.

usage: ask_opener.py ATTACH REQUEST PID FIRST SECOND [PATH], in the folder with `inj`. REQUEST is the name of a request in
`probe-user/src/opener_client/request.rs`. Prints `none` if no socket of `attach` answers.
"""

import os
import struct
import subprocess
import sys

from messages import encode

# Begins of replies: a message of four fields, the first of which is the result.
OUTCOMES = {
    b"\x94\x81\xa2Ok": "opened",
    b"\x94\x81\xa3Err\xa6Denied": "denied",
    b"\x94\x81\xa3Err\xa4Gone": "gone",
    b"\x94\x81\xa3Err\xaaNotRegular": "not regular",
    b"\x94\x81\xa3Err\xabNotExamined": "not examined",
}


def request_of(name, pid, first, second, path):
    if name == "Named":
        return encode({"Named": first})
    fields = {"ThreadFile": [first, "SystemCall"], "Library": [first, second], "Output": [first], "MetadataFile": path.encode()}
    request = {name: fields[name]} if name in fields else name
    return encode({"Process": [[pid, os.stat(f"/proc/{pid}").st_ino], request]})


def sockets(pid):
    folder = f"/proc/{pid}/fd"
    for number in sorted(os.listdir(folder), key=int):
        try:
            if os.readlink(f"{folder}/{number}").startswith("socket:"):
                yield int(number)
        except FileNotFoundError:
            pass


def inject(pid, calls):
    lines = subprocess.run(["./inj", str(pid)], input="\n".join(calls) + "\n", capture_output=True, text=True).stdout
    results = [line.rsplit("-> ", 1)[1].split(" ")[0] for line in lines.splitlines() if "-> " in line]
    return [int(result) for result in results]


def connect(attach, socket):
    """Sends one end of a new pair of sockets through `socket`. Returns the other end, and the address of 64 KiB of memory."""
    memory = inject(attach, ["9 0 65536 3 0x22 0xffffffffffffffff"])[0]
    inject(attach, [f"53 1 5 0 {memory}"])
    with open(f"/proc/{attach}/mem", "rb") as content:
        content.seek(memory)
        ours, theirs = struct.unpack("<ii", content.read(8))
    data, vector, control, header = memory + 64, memory + 128, memory + 192, memory + 256
    inject(
        attach,
        [
            f"poke {data} {b'connect'.hex()}",
            f"poke {vector} {struct.pack('<QQ', data, 7).hex()}",
            f"poke {control} {struct.pack('<QiiiI', 20, 1, 1, theirs, 0).hex()}",
            f"poke {header} {struct.pack('<QIIQQQQII', 0, 0, 0, vector, 1, control, 24, 0, 0).hex()}",
            f"46 {socket} {header} 0x4040",
            # Another process than the opener replies at once. `attach` would take that for the reply to its next request.
            f"35 x:{struct.pack('<QQ', 0, 10_000_000).hex()} 0",
            f"45 {socket} {memory + 512} 1024 0x40 0 0",
            f"3 {theirs}",
        ],
    )
    return ours, memory


def ask(attach, request):
    for socket in list(sockets(attach)):
        ours, memory = connect(attach, socket)
        results = inject(
            attach,
            [
                f"44 {ours} x:{request.hex()} {len(request)} 0x4040 0 0",
                f"35 x:{struct.pack('<QQ', 0, 500_000_000).hex()} 0",
                f"45 {ours} {memory} 65536 0x40 0 0",
                f"3 {ours}",
                # The reply of another process than the opener.
                f"45 {socket} {memory + 4096} 4096 0x40 0 0",
            ],
        )
        if len(results) > 2 and results[2] > 0:
            with open(f"/proc/{attach}/mem", "rb") as content:
                content.seek(memory)
                reply = content.read(results[2])
            return next((outcome for begin, outcome in OUTCOMES.items() if reply.startswith(begin)), f"reply {reply!r}")
    return "none"


if __name__ == "__main__":
    attach, pid, first, second = (int(word, 0) for word in [sys.argv[1], *sys.argv[3:6]])
    print(ask(attach, request_of(sys.argv[2], pid, first, second, sys.argv[6] if len(sys.argv) > 6 else "")))
