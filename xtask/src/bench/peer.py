"""The process measured with and without an observer. Usage: peer.py pair SIZE | write SIZE | call.

`pair` sends a message to itself over inproc with pyzmq and receives it. `write` writes to a TCP client that reads everything. `call` makes
a no-op system call. Prints its pid. Each line on stdin is a number of operations; each reply is the thread's CPU nanoseconds per operation.
Pauses after every BURST operations so that the observer's reader keeps up: a missed observation would cost less than a recorded one.
"""

import os
import socket
import sys
import threading
import time

BURST = 50


def pair(size):
    import zmq

    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.bind("inproc://pair")
    receiver.connect("inproc://pair")
    body = os.urandom(int(size))
    send, recv = sender.send, receiver.recv
    return lambda: (send(body), recv())


def write(size):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(1 << 16)

    def read_all():
        while client.recv_into(buffer):
            pass

    threading.Thread(target=read_all, daemon=True).start()
    event, send = b"x" * int(size), server.send
    return lambda: send(event)


def call():
    return os.getppid


def main():
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    work = {"pair": pair, "write": write, "call": call}[sys.argv[1]](*sys.argv[2:])
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        bursts = int(line) // BURST
        begun = time.thread_time_ns()
        for _ in range(bursts):
            for _ in range(BURST):
                work()
            time.sleep(0.001)
        print((time.thread_time_ns() - begun) / (bursts * BURST), flush=True)


main()
