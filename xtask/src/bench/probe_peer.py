"""Sends to itself over inproc. Usage: probe_peer.py SIZE.

Prints its pid. Each line on stdin is a number of send and receive pairs; each reply is the thread's CPU nanoseconds per pair. It pauses
after every BURST so that the reader keeps up, because a missed observation costs less than a recorded one."""

import os
import sys
import time

import zmq

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
BURST = 50
context = zmq.Context()
here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
here.bind("inproc://pair")
there.connect("inproc://pair")
body = os.urandom(int(sys.argv[1]))
send, recv = here.send, there.recv
print(os.getpid(), flush=True)
for line in sys.stdin:
    pairs = int(line)
    begun = time.thread_time_ns()
    for _ in range(pairs // BURST):
        for _ in range(BURST):
            send(body)
            recv()
        time.sleep(0.001)
    print((time.thread_time_ns() - begun) / pairs, flush=True)
