"""Service on a socket that only root may use. Prints each client. root_service.py SOCKET SECONDS [MODE]"""
import os
import socket
import struct
import sys
import time

path, seconds = sys.argv[1], float(sys.argv[2])
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, int(sys.argv[3], 8) if len(sys.argv) > 3 else 0o600)
listener.listen(9)
end = time.monotonic() + seconds
while time.monotonic() < end:
    listener.settimeout(max(0.1, end - time.monotonic()))
    try:
        client, _ = listener.accept()
        pid, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        print(f"root-only service: client {pid} is user {user}", flush=True)
        client.settimeout(2)
        client.recv(100)
        client.sendall(b"HTTP/1.1 201 Created (as root of the host)\r\n\r\n")
    except OSError:
        pass
