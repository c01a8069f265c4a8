"""Peers of the fault tests: pyzmq PUSH and PULL sockets that number, hash and check every message, unaware of any relay in between.

A message has a header (mark, connection, number, hash of body and number) and a body of random length. Each side hashes the messages of a
connection in order, so equal digests mean equal bytes in the same order.

Prints READY pid, then accepts commands on stdin:
send: "exec" execs the same program in the same process and prints READY again; "go" and "end" print DONE {connections: {N: {count,
bytes, digest}}} when all messages have left the process.
receive: "end {N: count, ...}" prints DONE {connections: {N: {count, bytes, digest, missing, repeated, backwards}}, corrupt, strange}.
"""

import argparse
import hashlib
import json
import os
import random
import struct
import sys
import threading
import time

import zmq

HEAD = struct.Struct("<8sIQ16s")
NUMBER = struct.Struct("<IQ")
MARK = b"fault-ok"
# Seconds without a message after which the receiver stops waiting, once the senders have exited.
QUIET = 3.0
SIZES = {
    "small": lambda dice: dice.randrange(0, 512),
    "mixed": lambda dice: dice.choice([40, 300, 300, 2000, 8000, 8000, 70_000]) + dice.randrange(0, 300),
    "large": lambda dice: dice.randrange(200_000, 1_500_000),
    "huge": lambda dice: 256 << 20,
}

options = argparse.ArgumentParser()
options.add_argument("role", choices=["send", "receive"])
options.add_argument("url")
options.add_argument("--first", type=int, default=0, help="number of the first connection")
options.add_argument("--connections", type=int, default=1)
options.add_argument("--count", type=int, default=0, help="messages per connection; 0: until stopped")
options.add_argument("--rate", type=int, default=0, help="messages per second in total; 0: full speed")
options.add_argument("--sizes", choices=list(SIZES), default="small")
options.add_argument("--hwm", type=int, default=0, help="high-water mark; 0: none")
options = options.parse_args()

commands = []


def read_commands():
    for line in sys.stdin:
        commands.append(line.strip())
    commands.append("end {}")


def print_line(word, **what):
    print(word, json.dumps(what), flush=True)


def digest(connection, number, body):
    return hashlib.blake2b(body, digest_size=16, salt=NUMBER.pack(connection, number)).digest()


def sending(context):
    dice = random.Random(options.first)
    noise = memoryview(dice.randbytes(4 << 20) * (65 if options.sizes == "huge" else 1))
    lengths = [SIZES[options.sizes](dice) for _ in range(1024)]
    places = [(dice.randrange(0, len(noise) - length), length) for length in lengths]
    sockets, sums, bytes_ = [], [], []
    for _ in range(options.connections):
        socket = context.socket(zmq.PUSH)
        socket.set_hwm(options.hwm)
        socket.linger = 60_000
        socket.connect(options.url)
        sockets.append(socket)
        sums.append(hashlib.blake2b(digest_size=16))
        bytes_.append(0)
    print_line("READY", pid=os.getpid())
    while not commands:
        time.sleep(0.002)
    if commands == ["exec"]:
        os.execv(sys.executable, [sys.executable, *sys.argv])
    number, sent, start = 0, 0, time.monotonic()
    while "end" not in commands[-1] and (not options.count or number < options.count):
        place, length = places[number % 1024]
        body = noise[place : place + length]
        for index, socket in enumerate(sockets):
            connection = options.first + index
            own = digest(connection, number, body)
            message = HEAD.pack(MARK, connection, number, own) + body
            socket.send(message)
            sums[index].update(own)
            bytes_[index] += len(message)
        number += 1
        sent += len(sockets)
        if options.rate and (ahead := sent / options.rate - (time.monotonic() - start)) > 0.001:
            time.sleep(ahead)
    for socket in sockets:
        socket.close()
    context.term()
    connections = {
        options.first + index: {"count": number, "bytes": bytes_[index], "digest": sums[index].hexdigest()}
        for index in range(options.connections)
    }
    print_line("DONE", connections=connections)


class Connection:
    def __init__(self):
        self.next, self.count, self.bytes = 0, 0, 0
        self.missing, self.repeated, self.backwards = [], 0, 0
        self.seen_last, self.sum = None, hashlib.blake2b(digest_size=16)

    def receive(self, number, own, length):
        if number > self.next:
            self.missing.append([self.next, number])
        if number < self.next:
            if number == self.seen_last:
                self.repeated += 1
            else:
                self.backwards += 1
            return
        self.next, self.seen_last = number + 1, number
        self.count += 1
        self.bytes += length
        self.sum.update(own)

    def totals(self):
        return {
            "count": self.count,
            "bytes": self.bytes,
            "digest": self.sum.hexdigest(),
            "missing": self.missing,
            "repeated": self.repeated,
            "backwards": self.backwards,
        }


def receiving(context):
    socket = context.socket(zmq.PULL)
    socket.set_hwm(options.hwm)
    socket.rcvtimeo = 50
    socket.bind(options.url)
    print_line("READY", pid=os.getpid())
    connections, corrupt, strange, wanted, last = {}, 0, 0, None, time.monotonic()
    while True:
        try:
            message = socket.recv()
        except zmq.Again:
            if not commands:
                continue
            if wanted is None:
                wanted = {int(name): count for name, count in json.loads(commands[0].removeprefix("end ")).items()}
                last = time.monotonic()
            complete = all(name in connections and connections[name].next >= count for name, count in wanted.items())
            if complete or time.monotonic() - last > QUIET:
                break
            continue
        last = time.monotonic()
        if len(message) < HEAD.size or message[:8] != MARK:
            strange += 1
            continue
        _, connection, number, own = HEAD.unpack_from(message)
        if digest(connection, number, memoryview(message)[HEAD.size :]) != own:
            corrupt += 1
            continue
        connections.setdefault(connection, Connection()).receive(number, own, len(message))
    totals = {name: connection.totals() for name, connection in connections.items()}
    print_line("DONE", connections=totals, corrupt=corrupt, strange=strange)
    socket.close(0)
    context.term()


threading.Thread(target=read_commands, daemon=True).start()
(sending if options.role == "send" else receiving)(zmq.Context())
