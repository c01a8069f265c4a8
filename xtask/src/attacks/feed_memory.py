"""A hostile feed. usage: feed_memory.py PORT KIND
KIND `report`: bodies with 16 million empty values, 16 MiB each. KIND `state`: states of 8 KiB that unpack to 255 MiB of absent values.
It serves every connection until it is killed."""
import socket, struct, sys

port, kind = int(sys.argv[1]), sys.argv[2]


def text(value):
    return (bytes([0xA0 | len(value)]) if len(value) < 32 else b"\xd9" + bytes([len(value)])) + value.encode()


def fields(pairs):
    return bytes([0x80 | len(pairs)]) + b"".join(text(name) + value for name, value in pairs)


def frame(flags, content):
    return bytes([flags | 2]) + struct.pack(">Q", len(content)) + content


def message(kind, body):
    number = b"\x01"
    head = [("schema", text("tokengap.feed/1")), ("kind", text(kind)), ("pod", text("evil")), ("instance", text("i")), ("seq", number)]
    clocks = [("mono_ns", number), ("wall_ns", number)]
    return frame(1, b"stream") + frame(0, fields(head + clocks + [("body", body)]))


def start(image):
    version = sys.argv[3] if len(sys.argv) > 3 else "0"
    return message("start", fields([
        ("tokengap", text(version)), ("source", text("tap")), ("config", b"\x80"), ("payload", text("lengths")), ("record", b"\x00"),
        ("closing", b"\x80"), ("image", image), ("history", b"\xc0"),
    ]))


def state():
    """A zstd frame: the start of a state, then 255 MiB of `nil` in blocks of one repeated byte."""
    count, block = 255 << 20, 1 << 17
    slot = fields([("threads", b"\xdd" + struct.pack(">I", count))])
    begin = fields([("time_series", fields([("series", fields([("slots", b"\x91" + slot)]))]))])
    packed = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(begin) + count)
    packed += struct.pack("<I", len(begin) << 3)[:3] + begin
    blocks = count // block
    for n in range(blocks):
        packed += struct.pack("<I", block << 3 | 1 << 1 | (n == blocks - 1))[:3] + b"\xc0"
    return b"\xc6" + struct.pack(">I", len(packed)) + packed


greeting = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0]) + b"NULL" + bytes(48)
ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0"
if kind == "report":
    count = 16 << 20
    closing = fields([("degraded", b"\xdd" + struct.pack(">I", count) + b"\xc0" * count)])
    attack = message("about", fields([("closing", closing)]))
else:
    attack = start(state())
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", port))
server.listen(16)
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    connection.settimeout(10)
    try:
        connection.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        connection.recv(4096)
        connection.sendall(start(b"\xc0"))
        while True:
            connection.sendall(attack)
    except OSError:
        connection.close()
