"""The process measured with and without an observer. Usage: peer.py pair SIZE | hop SIZE LOOP BATCH | tokenizer RELEASE STREAMS | write SIZE |
tls SIZE | call.

`pair` sends a message to itself over inproc with pyzmq and receives it. `hop` sends messages over ipc to a child, which receives them in a
LOOP: `blocking` or `asyncio`. It waits for the child after each BATCH messages. `tokenizer` sends frames of a token for each stream with the
output code of an SGLang RELEASE; the child is that release's TokenizerManager, with a client for each stream. `write` writes to a TCP client
that reads everything, and `tls` encrypts with OpenSSL what it writes, as event loops do. `call` makes a no-op system call. Prints its pid
and its child's. Each line on stdin is a number of operations; each reply is the CPU nanoseconds per operation of its thread, and for `hop`
and `tokenizer` (whose operations are tokens) of four: the sender and its I/O threads, the receiver and its I/O threads. Pauses after every
burst of operations so that the observer's reader keeps up: a missed observation would cost less than a recorded one.
"""

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BURST = 50
# Frames queued for a TokenizerManager at once, so that it receives at full speed.
FRAMES = 500
PARENT_DEATH_SIGNAL = 1


def own_thread():
    return [time.thread_time_ns()]


def pair(size):
    import zmq

    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.bind("inproc://pair")
    receiver.connect("inproc://pair")
    body = os.urandom(int(size))
    send, recv = sender.send, receiver.recv

    def burst():
        for _ in range(BURST):
            send(body)
            recv()

    return burst, own_thread, []


def threads(pid):
    """CPU time of a process's main thread and of its libzmq I/O threads."""
    spent = {"main": 0, "I/O": 0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        is_io = (task / "comm").read_text().startswith("ZMQbg/IO")
        if is_io or task.name == str(pid):
            spent["I/O" if is_io else "main"] += int((task / "schedstat").read_text().split()[0])
    return list(spent.values())


def end_with_parent():
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def hop(size, loop, batch):
    folder = tempfile.TemporaryDirectory()
    endpoint = f"ipc://{folder.name}/hop"
    done, tell = os.pipe()
    child = os.fork()
    if child == 0:
        receive(endpoint, loop, int(batch), tell)
    import zmq

    sender = zmq.Context().socket(zmq.PUSH)
    sender.connect(endpoint)
    body, send = os.urandom(int(size)), sender.send
    os.read(done, 1)

    def burst():
        for _ in range(BURST // int(batch)):
            for _ in range(int(batch)):
                send(body)
            os.read(done, 1)

    # The I/O threads have their names from here on.
    burst()
    burst.folder = folder
    return burst, lambda: threads(os.getpid()) + threads(child), [child]


def receive(endpoint, loop, batch, tell):
    """Receives until the parent exits. Reports its start and the end of each batch."""
    import asyncio

    import zmq
    import zmq.asyncio

    end_with_parent()

    def bound(context):
        receiver = context.socket(zmq.PULL)
        receiver.bind(endpoint)
        os.write(tell, b".")
        return receiver

    async def consume():
        receiver = bound(zmq.asyncio.Context())
        while True:
            for _ in range(batch):
                await receiver.recv()
            os.write(tell, b".")

    if loop == "asyncio":
        asyncio.run(consume())
    recv = bound(zmq.Context()).recv
    while True:
        for _ in range(batch):
            recv()
        os.write(tell, b".")


def tokenizer(version, streams):
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from types import SimpleNamespace

    from testbed.plan import Request
    from testbed.release import Release
    from testbed.scheduler import Scheduler

    import zmq

    release = Release(version)
    requests = [Request(f"{n:032x}", n, 0, 0, True, None, "length") for n in range(int(streams))]
    folder = tempfile.TemporaryDirectory()
    endpoint = f"ipc://{folder.name}/tokenizer"
    done, tell = os.pipe()
    child = os.fork()
    if child == 0:
        manage(release, requests, endpoint, tell)
    socket = release.zmq_socket(zmq.Context(2), zmq.PUSH, endpoint, False)
    send = lambda message, *_: release.send(socket, message)
    outlet = SimpleNamespace(send_pyobj=send, send_output=send)
    scheduler = Scheduler(release, outlet, outlet, True)
    running = [scheduler.request(request) for request in requests]
    os.read(done, 1)

    def burst():
        for _ in range(FRAMES):
            for request in running:
                scheduler.grow(request, 1)
            scheduler.stream_output(running, False)
        os.read(done, 1)

    burst()
    burst.folder, burst.operations = folder, FRAMES * len(running)
    return burst, lambda: threads(os.getpid()) + threads(child), [child]


def manage(release, requests, endpoint, tell):
    """Runs the TokenizerManager until the parent exits. Reports its start and the end of every FRAMES frames."""
    import asyncio

    from testbed.tokenizer import Tokenizer

    import uvloop
    import zmq.asyncio

    end_with_parent()

    async def serve():
        socket = release.zmq_socket(zmq.asyncio.Context(2), zmq.PULL, endpoint, True)
        tokenizer = Tokenizer(release, socket, True, True)

        async def client(request):
            told = 0
            async for output in tokenizer.responses(tokenizer.register(request)):
                # The release may merge outputs.
                if request.index == 0 and output["meta_info"]["completion_tokens"] == told + FRAMES:
                    told += FRAMES
                    os.write(tell, b".")

        _clients = [asyncio.create_task(client(request)) for request in requests]
        os.write(tell, b".")
        await tokenizer.handle_loop()

    uvloop.run(serve())


def connection():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server


def reads_all(client):
    buffer = bytearray(1 << 16)

    def read_all():
        while client.recv_into(buffer):
            pass

    threading.Thread(target=read_all, daemon=True).start()


def write(size):
    client, server = connection()
    reads_all(client)
    event, send = b"x" * int(size), server.send

    def burst():
        for _ in range(BURST):
            send(event)

    return burst, own_thread, []


def tls(size):
    client, server = connection()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost".split()
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context.load_cert_chain(certificate, key)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    def read_all():
        encrypted = trusting.wrap_socket(client)
        while encrypted.recv(1 << 16):
            pass

    threading.Thread(target=read_all, daemon=True).start()
    received, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    plain = context.wrap_bio(received, outgoing, server_side=True)
    while True:
        try:
            plain.do_handshake()
            break
        except ssl.SSLWantReadError:
            server.send(outgoing.read())
            received.write(server.recv(1 << 16))
    server.send(outgoing.read())
    event = b"x" * int(size)

    def burst():
        for _ in range(BURST):
            plain.write(event)
            server.send(outgoing.read())

    return burst, own_thread, []


def call():
    def burst():
        for _ in range(BURST):
            os.getppid()

    return burst, own_thread, []


def main():
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    work = {"pair": pair, "hop": hop, "tokenizer": tokenizer, "write": write, "tls": tls, "call": call}[sys.argv[1]]
    burst, spent, children = work(*sys.argv[2:])
    print(os.getpid(), *children, flush=True)
    operations = getattr(burst, "operations", BURST)
    for line in sys.stdin:
        bursts = int(line) // operations
        begun = spent()
        for _ in range(bursts):
            burst()
            time.sleep(0.001)
        print(*((after - before) / (bursts * operations) for before, after in zip(begun, spent())), flush=True)


main()
