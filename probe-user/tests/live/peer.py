"""A process that sends or receives messages over ZMQ and records them. It does not interact with the probe.

Each line on stdin is a command; each line on stdout is JSON. First {"pid"}, then one object per command:
  send COUNT SIZE PACE_US FIRST   -> {"sent": N, "refused": N, "at": [monotonic ns before each call]}
  receive COUNT                    -> {"seen": [[head, length, monotonic ns after the call], ...]}
  quit
"""

import argparse
import asyncio
import ctypes
import glob
import json
import os
import sys
import time

options = argparse.ArgumentParser()
options.add_argument("role", choices=["send", "receive"])
options.add_argument("url")
options.add_argument("--name", default="a")
options.add_argument("--loop", default="sync", choices=["sync", "asyncio", "uvloop"])
options.add_argument("--zero-copy", action="store_true")
options.add_argument("--bind", action="store_true")
options.add_argument("--hwm", type=int, default=0, help="send without blocking, with this high-water mark")
options.add_argument("--library", help="call this libzmq through its C API")
options.add_argument("--buffers", action="store_true", help="with --library: call zmq_send and zmq_recv")
options = options.parse_args()

PUSH, PULL, DONTWAIT, SNDHWM, RCVHWM, LINGER = 8, 7, 1, 23, 24, 17


class Native:
    """A socket of a libzmq release that no pyzmq wheel for this Python contains."""

    def __init__(self, path, kind, url, bind):
        for library in glob.glob(os.path.join(os.path.dirname(path), "libsodium-*")):
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        zmq = self.zmq = ctypes.CDLL(path)
        for name in ["zmq_ctx_new", "zmq_socket", "zmq_msg_data"]:
            getattr(zmq, name).restype = ctypes.c_void_p
        zmq.zmq_msg_size.restype = ctypes.c_size_t
        self.socket = ctypes.c_void_p(zmq.zmq_socket(ctypes.c_void_p(zmq.zmq_ctx_new()), kind))
        for option in [SNDHWM, RCVHWM, LINGER]:
            zmq.zmq_setsockopt(self.socket, option, ctypes.byref(ctypes.c_int(0)), ctypes.c_size_t(4))
        if (zmq.zmq_bind if bind else zmq.zmq_connect)(self.socket, url.encode()) != 0:
            # Else the peer would wait for ever, and the test for it.
            sys.exit(f"{url}: cannot {'bind' if bind else 'connect'}, libzmq's error {zmq.zmq_errno()}")
        self.buffer = ctypes.create_string_buffer(1 << 21)

    def send(self, body):
        if options.buffers:
            return self.zmq.zmq_send(self.socket, body, ctypes.c_size_t(len(body)), 0)
        message = ctypes.create_string_buffer(64)
        self.zmq.zmq_msg_init_size(message, ctypes.c_size_t(len(body)))
        ctypes.memmove(self.zmq.zmq_msg_data(message), body, len(body))
        return self.zmq.zmq_msg_send(message, self.socket, 0)

    def recv(self):
        if options.buffers:
            length = self.zmq.zmq_recv(self.socket, self.buffer, ctypes.c_size_t(len(self.buffer)), 0)
            return self.buffer.raw[:length]
        message = ctypes.create_string_buffer(64)
        self.zmq.zmq_msg_init(message)
        self.zmq.zmq_msg_recv(message, self.socket, 0)
        body = ctypes.string_at(self.zmq.zmq_msg_data(message), self.zmq.zmq_msg_size(message))
        self.zmq.zmq_msg_close(message)
        return body


def opened():
    sends = options.role == "send"
    if options.library:
        return Native(options.library, PUSH if sends else PULL, options.url, options.bind)
    import zmq
    import zmq.asyncio

    context = zmq.Context() if options.loop == "sync" else zmq.asyncio.Context()
    socket = context.socket(zmq.PUSH if sends else zmq.PULL)
    socket.set_hwm(options.hwm)
    socket.linger = 0
    (socket.bind if options.bind else socket.connect)(options.url)
    return socket


def reply(**what):
    print(json.dumps(what), flush=True)


def send(socket, count, size, pace_us, first):
    refused, at = 0, []
    due = time.monotonic_ns()
    for i in range(first, first + count):
        body = f"{options.name}:{i}:".encode().ljust(size, b".")
        at.append(time.monotonic_ns())
        try:
            if options.library:
                socket.send(body)
            elif options.hwm:
                socket.send(body, DONTWAIT)
            else:
                socket.send(body, copy=not options.zero_copy)
        except Exception as error:
            if type(error).__name__ != "Again":
                raise
            refused += 1
        due += pace_us * 1000
        while pace_us and time.monotonic_ns() < due:
            time.sleep(0.00005)
    reply(sent=count - refused, refused=refused, at=at)


def head(body):
    return bytes(memoryview(body)[:40]).rstrip(b".").decode()


def commands():
    for line in sys.stdin:
        name, *numbers = line.split()
        if name == "quit":
            return
        yield [int(n) for n in numbers]


def synchronous():
    socket = opened()
    reply(pid=os.getpid())
    for numbers in commands():
        if options.role == "send":
            send(socket, *numbers)
            continue
        seen = []
        for _ in range(numbers[0]):
            if options.library:
                body = socket.recv()
            else:
                body = socket.recv(copy=not options.zero_copy)
            seen.append([head(body), len(body), time.monotonic_ns()])
        reply(seen=seen)


async def asynchronous():
    socket = opened()
    reply(pid=os.getpid())
    for numbers in commands():
        seen = []
        for _ in range(numbers[0]):
            body = await socket.recv(copy=not options.zero_copy)
            seen.append([head(body), len(body), time.monotonic_ns()])
        reply(seen=seen)


if options.loop == "sync":
    synchronous()
elif options.loop == "uvloop":
    import uvloop

    uvloop.install()
    asyncio.run(asynchronous())
else:
    asyncio.run(asynchronous())
