"""An engine whose scheduler continues requests after their clients left, as in sgl-project/sglang#36333: a scheduler that sends the messages of
SGLang 0.5.23 (msgpack, --skip-tokenizer-init), a tokenizer that serves them over HTTP and drops the outputs of requests whose client left, and
the clients.

Binds the tokenizer's socket and an HTTP port, and prints READY port. After "go PORT", the port of the relay in front of the HTTP port, it sends
and requests through the relays, and prints DONE {rid: {sent, delivered, discarded}} in tokens.
"""

import argparse
import asyncio
import hashlib
import json
import struct
import sys
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

LEAVERS = 3
OTHERS = 4
# Tokens that a client receives before it leaves, and tokens of the other requests.
TOKENS_BEFORE_LEAVING = 5
OTHER_TOKENS = 60
STEP_SECONDS = 0.05
# Time for the last frame to cross the relay.
SETTLED_SECONDS = 1
PROMPT_TOKENS = 7
# Fields of a BatchTokenIDOutput of 0.5.23 that hold something, by index behind the class name.
FIELDS = 53
EMPTY_LISTS = range(44, 50)


@dataclass
class Request:
    rid: str
    leaves: bool
    sent: int = 0
    delivered: int = 0
    discarded: int = 0
    has_client: bool = True
    outputs: asyncio.Queue = field(default_factory=asyncio.Queue)

    @property
    def finish(self):
        is_last = not self.leaves and self.sent == OTHER_TOKENS
        return {"type": "length", "length": OTHER_TOKENS} if is_last else None

    @property
    def truth(self) -> dict:
        return {"sent": self.sent, "delivered": self.delivered, "discarded": self.discarded}


def token_ids(token: int) -> msgspec.msgpack.Ext:
    """An array of 64-bit integers with one element, as the release encodes it."""
    return msgspec.msgpack.Ext(1, b"\x00\x00\x00\x02\xa1q" + struct.pack("<q", token))


def frame(batch: list[Request]) -> bytes:
    """A message with the latest token of each request."""
    size, fields = len(batch), [None] * FIELDS
    ids = [token_ids(100 + request.sent) for request in batch]
    fields[0] = [request.rid for request in batch]
    fields[1] = [None] * size
    fields[2] = [request.finish for request in batch]
    fields[3] = [""] * size
    fields[4] = fields[6] = ids
    fields[5] = [TOKENS_BEFORE_LEAVING] * size
    fields[7] = fields[8] = [True] * size
    fields[9] = [False] * size
    fields[10] = [PROMPT_TOKENS] * size
    fields[12] = [request.sent for request in batch]
    fields[38] = [None] * size
    for index in (11, 13, 33, 39, 41, 42, 43):
        fields[index] = [0] * size
    for index in EMPTY_LISTS:
        fields[index] = []
    return msgspec.msgpack.encode(["BatchTokenIDOutput", *fields])


async def schedule(requests: list[Request], url: str, steps: int) -> None:
    socket = zmq.asyncio.Context.instance().socket(zmq.PUSH)
    socket.connect(url)
    for _ in range(steps):
        batch = [request for request in requests if request.leaves or request.sent < OTHER_TOKENS]
        for request in batch:
            request.sent += 1
        await socket.send(frame(batch))
        await asyncio.sleep(STEP_SECONDS)
    await asyncio.sleep(SETTLED_SECONDS)
    socket.close()


async def tokenize(requests: dict[str, Request], socket) -> None:
    while True:
        _, *fields = msgspec.msgpack.decode(await socket.recv())
        for rid, finish, ids, tokens in zip(fields[0], fields[2], fields[6], fields[12]):
            request = requests[rid]
            if request.has_client:
                request.outputs.put_nowait((struct.unpack("<q", ids.data[-8:])[0], tokens, finish))
            else:
                request.discarded += 1


async def serve(requests: dict[str, Request], reader, writer) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    request = requests[head.split(b" ")[1].decode().partition("rid=")[2]]
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    left = asyncio.ensure_future(reader.read(1))
    finish = None
    while not finish:
        output = asyncio.ensure_future(request.outputs.get())
        done, _ = await asyncio.wait([output, left], return_when=asyncio.FIRST_COMPLETED)
        if left in done:
            output.cancel()
            request.has_client = False
            return writer.close()
        token, tokens, finish = output.result()
        meta = {"id": request.rid, "finish_reason": finish, "prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
        event = json.dumps({"text": "", "output_ids": [token], "meta_info": meta}).encode()
        write_chunk(writer, b"data: %s\n\n" % event)
        request.delivered = tokens
    write_chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    left.cancel()
    writer.close()


def write_chunk(writer, body: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(body), body))


async def read_response(request: Request, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST /generate?rid={request.rid} HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n".encode())
    events = 0
    while line := await reader.readline():
        events += line.startswith(b"data: {")
        if request.leaves and events == TOKENS_BEFORE_LEAVING:
            return writer.transport.abort()
    writer.close()


async def main(options) -> None:
    names = [(f"leaver{n}", True) for n in range(LEAVERS)] + [(f"other{n}", False) for n in range(OTHERS)]
    requests = {rid: Request(rid, leaves) for name, leaves in names for rid in [hashlib.md5(name.encode()).hexdigest()]}
    socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
    socket.bind(options.bind)
    server = await asyncio.start_server(lambda *streams: serve(requests, *streams), "127.0.0.1", 0)
    tokenizer = asyncio.ensure_future(tokenize(requests, socket))
    print("READY", server.sockets[0].getsockname()[1], flush=True)
    relayed_port = int((await asyncio.to_thread(sys.stdin.readline)).split()[1])
    clients = [asyncio.ensure_future(read_response(request, relayed_port)) for request in requests.values()]
    await asyncio.sleep(STEP_SECONDS)
    await schedule(list(requests.values()), options.connect, options.steps)
    await asyncio.gather(*clients)
    tokenizer.cancel()
    server.close()
    print("DONE", json.dumps({rid: request.truth for rid, request in requests.items()}), flush=True)


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--bind", required=True, help="the tokenizer's socket")
options.add_argument("--connect", required=True, help="the relay in front of it")
options.add_argument("--steps", type=int, default=160)
asyncio.run(main(options.parse_args()))
