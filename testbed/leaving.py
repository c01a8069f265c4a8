"""Clients that leave before their response ends. They use HTTP over a plain socket to control how the connection closes."""

import asyncio
import socket
import struct
from urllib.parse import urlsplit

import orjson

from .consumer import Received

# Options of `client`, with their help.
KINDS = {
    "closing": "shut down their write side and read the remaining data",
    "resetting": "reset their connection",
    "stuck": "stop reading, and exit when all others have ended",
}
# Number of outputs after which they leave.
PATIENCE = 20
# A client that stops reading requests long events and has a small receive buffer, to fill the kernel's buffers soon.
SMALL, LONG = 4096, 90_000


async def one(clients, kind: str, request, accepted: asyncio.Future) -> None:
    """Runs one request of a client of this kind."""
    url = urlsplit(clients.url)
    connection = socket.socket()
    connection.setblocking(False)
    if kind == "stuck":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    received = Received(request.rid)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (url.hostname, url.port))
        # An event may be longer than the default read limit.
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
        body = orjson.dumps({"rid": request.rid, "stream": True, "pad": LONG if kind == "stuck" else 0})
        head = f"POST /generate HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while line := await reader.readline():
            if not accepted.done():
                accepted.set_result(None)
            if line.startswith(b"data: {"):
                received.add(orjson.loads(line[6:]))
            if received.outputs == PATIENCE:
                break
        await leave(clients, kind, connection, reader, writer)
    finally:
        clients.ended(received, left=kind)


async def leave(clients, kind, connection, reader, writer) -> None:
    """Leaves as its kind requires."""
    if kind == "closing":
        writer.write_eof()
        while await reader.read(1 << 20):
            pass
        writer.close()
        return
    if kind == "stuck":
        writer.transport.pause_reading()
        await clients.others_ended()
    # Linger 0 discards unsent and unread data, and resets the connection.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
