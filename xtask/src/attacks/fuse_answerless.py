"""Mounts a FUSE file system at MOUNT with the files of the folder SOURCE. Once the file CONTROL exists, requests of processes whose command
line contains its text are read and never answered, as by a server that hangs.

usage: fuse_answerless.py MOUNT SOURCE CONTROL
"""

import ctypes
import os
import struct
import sys
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR = 1, 2, 3, 14, 15, 17, 18, 25, 26, 27
NOT_FOUND, NOT_SUPPORTED = 2, 38
ROOT = 1


def attributes(node, content):
    size = len(content.get(node, b""))
    mode = 0o40755 if node == ROOT else 0o100755
    return struct.pack("<6Q10I", node, size, (size + 511) // 512, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def answer(operation, node, body, numbers, content):
    """Content and error number of the answer; no content for a request without an answer."""
    if operation == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, *[0] * 8), 0
    if operation == LOOKUP:
        found = numbers.get(body.split(b"\0")[0].decode())
        if found is None:
            return b"", NOT_FOUND
        return struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + attributes(found, content), 0
    if operation == GETATTR:
        return struct.pack("<Q2I", 0, 0, 0) + attributes(node, content), 0
    if operation in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 0, 0, 0), 0
    if operation == READ:
        _, offset, size = struct.unpack_from("<2QI", body)
        return content[node][offset : offset + size], 0
    if operation == STATFS:
        return struct.pack("<5Q3I", 0, 0, 0, 0, 0, 4096, 255, 4096).ljust(80, b"\0"), 0
    return b"", 0 if operation in (RELEASE, FLUSH) else NOT_SUPPORTED


def main():
    mount, source, control = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"answerless", mount.encode(), b"fuse", 0, options.encode()):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    files = sorted(Path(source).iterdir())
    numbers = {file.name: number for number, file in enumerate(files, ROOT + 1)}
    content = {numbers[file.name]: file.read_bytes() for file in files}
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, node, _, _, pid, _ = struct.unpack_from("<2I2Q4I", request)
        if os.path.exists(control) and Path(control).read_text().strip() in command_line(pid):
            continue
        if operation != FORGET:
            out, error = answer(operation, node, request[40:], numbers, content)
            os.write(device, struct.pack("<IiQ", 16 + len(out), -error, unique) + out)


main()
