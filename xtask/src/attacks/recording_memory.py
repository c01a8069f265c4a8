"""A hostile source. usage: recording_memory.py PORT KIND
KIND `status`: statuses of 1 MiB, each a list of half a million values. KIND `block`: blocks of 2 KiB that unpack to 64 MiB.
It serves every connection until it is killed."""
import json, socket, struct, sys, zlib

port, kind = int(sys.argv[1]), sys.argv[2]
HEADER, BLOCK, STATUS = 1, 2, 5
preamble = b"\x89TGAP\r\n\x1a" + struct.pack("<HHB3x", 2, 10, 0)


def section(kind, payload, raw, seq=0, records=0):
    fields = struct.pack("<B3xIII", kind, len(payload), raw, zlib.crc32(payload)) + struct.pack("<QQQ", 7, seq, seq)
    fields += struct.pack("<IIQQQQ", records, 0, 1, 1, 1, 1)
    return b"\xf7tgs" + struct.pack("<I", zlib.crc32(fields)) + fields + payload


def zeros(length):
    """A zstd frame of `length` zeros, in blocks of one repeated byte."""
    block = 1 << 17
    packed = struct.pack("<IBI", 0xFD2FB528, 0xA0, length)
    for n in range(length // block):
        packed += struct.pack("<I", block << 3 | 1 << 1 | (n == length // block - 1))[:3] + b"\0"
    return packed


header = json.dumps({"tokengap": "0", "source": "evil", "anchor": {"mono": 1, "wall_ns": 1}}).encode()
if kind == "status":
    status = json.dumps({"kind": "evil", "slowest": 0, "degraded": [0] * 500_000}, separators=(",", ":")).encode()
    attack = [section(STATUS, status, len(status))] * 8
else:
    raw = 64 << 20
    attack = [section(BLOCK, zeros(raw), raw, seq, 1) for seq in range(1_000)]
server = socket.create_server(("127.0.0.1", port), reuse_port=True)
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    connection.settimeout(10)
    try:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + preamble + section(HEADER, header, len(header)))
        while True:
            for part in attack:
                connection.sendall(part)
    except OSError:
        connection.close()
