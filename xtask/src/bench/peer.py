"""The process measured with and without an observer. Usage: peer.py pair SIZE | hop SIZE LOOP BATCH | write SIZE | tls SIZE | call.

`pair` sends a message to itself over inproc with pyzmq and receives it. `hop` sends messages over ipc to a child, which receives them in a
LOOP: `blocking` or `asyncio`. It waits for the child after each BATCH messages. `write` writes to a TCP client that reads everything, and
`tls` encrypts with OpenSSL what it writes, as event loops do. `call` makes a no-op system call. Prints its pid and its child's. Each line
on stdin is a number of operations; each reply is the CPU nanoseconds per operation of its thread, and for `hop` of four: the sender and its
I/O thread, the receiver and its I/O thread. Pauses after every BURST operations so that the observer's reader keeps up: a missed
observation would cost less than a recorded one.
"""

import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BURST = 50


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
    """CPU time of a process's main thread and of its libzmq I/O thread."""
    tasks = {(task / "comm").read_text().strip(): task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)}
    return [int((task / "schedstat").read_text().split()[0]) for task in (Path(f"/proc/{pid}"), tasks["ZMQbg/IO/0"])]


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
    import ctypes
    import signal

    import zmq
    import zmq.asyncio

    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)

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
    work = {"pair": pair, "hop": hop, "write": write, "tls": tls, "call": call}[sys.argv[1]]
    burst, spent, children = work(*sys.argv[2:])
    print(os.getpid(), *children, flush=True)
    for line in sys.stdin:
        bursts = int(line) // BURST
        begun = spent()
        for _ in range(bursts):
            burst()
            time.sleep(0.001)
        print(*((after - before) / (bursts * BURST) for before, after in zip(begun, spent())), flush=True)


main()
