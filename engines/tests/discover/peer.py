"""Processes connected like those of an engine, over real pyzmq, without sending messages.

peer.py main BASE [--workers N] [--skip]   starts a scheduler, a detokenizer and N workers below it
peer.py push|pull ENDPOINT                 one unnamed process with one socket
peer.py relay IN OUT                       receives from IN (bound), sends to OUT
peer.py late TITLE ENDPOINT                sets its title and connects when it reads a line

BASE is an ipc prefix or tcp://127.0.0.1:PORT (then PORT, PORT+1, ... are used). Each process prints one line of JSON
once its sockets are created, and exits at the end of standard input.
"""

import ctypes
import json
import os
import subprocess
import sys

import zmq


def set_title(title):
    """Imitates setproctitle: sets the name, and writes the title over the arguments and the environment."""
    ctypes.CDLL(None).prctl(15, title.encode())  # PR_SET_NAME
    fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[48])  # arg_start, env_end
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title.encode(), len(title))


def endpoint(base, number, name):
    if base.startswith("tcp://"):
        host, port = base.rsplit(":", 1)
        return f"{host}:{int(port) + number}"
    return base + name


context = zmq.Context(2)


def bind(kind, where):
    sockets.append(context.socket(kind))
    sockets[-1].bind(where)


def connect(kind, where):
    sockets.append(context.socket(kind))
    sockets[-1].connect(where)


sockets = []


def start(*arguments):
    child = subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    children.append(child)
    return json.loads(child.stdout.readline())["pid"]


children = []


def main(role, *arguments):
    pids = {}
    if role == "main":
        base, *options = arguments
        count = int(options[options.index("--workers") + 1]) if "--workers" in options else 0
        bind(zmq.PULL, endpoint(base, 0, "tokenizer"))
        bind(zmq.PUSH, endpoint(base, 1, "scheduler"))
        workers = [endpoint(base, 4 + i, f"worker{i}") for i in range(count)]
        if workers:
            bind(zmq.PULL, endpoint(base, 3, "workers"))
        pids["workers"] = [start("worker", base, where) for where in workers]
        pids["detokenizer"] = start("detokenizer", base, *workers)
        pids["scheduler"] = start("scheduler", base, *[o for o in options if o == "--skip"])
    elif role == "scheduler":
        base, skip = arguments[0], "--skip" in arguments
        set_title("sglang::scheduler_DP0_TP0")
        connect(zmq.PULL, endpoint(base, 1, "scheduler"))
        connect(zmq.PUSH, endpoint(base, 0, "tokenizer"))
        connect(zmq.PUSH, endpoint(base, 0, "tokenizer") if skip else endpoint(base, 2, "detokenizer"))
    elif role == "detokenizer":
        base, *workers = arguments
        set_title("sglang::detokenizer")
        bind(zmq.PULL, endpoint(base, 2, "detokenizer"))
        connect(zmq.PUSH, endpoint(base, 0, "tokenizer"))
        for where in workers:
            connect(zmq.PUSH, where)
    elif role == "worker":
        base, where = arguments
        set_title(f"sglang::tokenizer_worker:{os.getpid()}")
        bind(zmq.PULL, where)
        connect(zmq.PUSH, endpoint(base, 3, "workers"))
    elif role == "push":
        connect(zmq.PUSH, arguments[0])
    elif role == "pull":
        bind(zmq.PULL, arguments[0])
    elif role == "relay":
        bind(zmq.PULL, arguments[0])
        connect(zmq.PUSH, arguments[1])
    elif role == "late":
        print(json.dumps({"pid": os.getpid()}), flush=True)
        sys.stdin.readline()
        set_title(arguments[0])
        connect(zmq.PUSH, arguments[1])
    print(json.dumps({"pid": os.getpid(), **pids}), flush=True)
    sys.stdin.read()
    for child in children:
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # Sockets without a peer would linger.
