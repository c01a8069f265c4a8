"""Memory of `tap` under CONNECTIONS whose receiver does not read. tap_memory.py TOKENGAP CONNECTIONS"""
import resource
import socket
import subprocess
import sys
import threading
import time

# The default budget of the analysis is 64 MiB, and connections that stand still share a further 64 MiB.
LIMIT_MIB = 160
program, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
upstream = socket.create_server(("127.0.0.1", 0), backlog=4096)
upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
held = []


def serve():
    """Accepts and reads nothing."""
    while True:
        held.append(upstream.accept()[0])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def resident_mib():
    lines = open(f"/proc/{tap.pid}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


threading.Thread(target=serve, daemon=True).start()
port = free_port()
command = [program, "tap", "--listen", f"http://127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{upstream.getsockname()[1]}"]
tap = subprocess.Popen([*command, "--headless", "--duration", "90s"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
for _ in range(200):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        break
    except OSError:
        time.sleep(0.1)
print("idle:", resident_mib(), "MiB")
body = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 400_000
clients = []
for n in range(count):
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    clients.append(client)
    if n % 500 == 0:
        time.sleep(0.2)
peak = 0
for _ in range(8):
    for client in clients:
        try:
            client.send(body)
        except OSError:
            pass
    time.sleep(0.5)
    peak = max(peak, resident_mib())
print(f"{count} connections: {peak} MiB")
accepted = len(held)
other = socket.create_connection(("127.0.0.1", port))
other.settimeout(60)
other.sendall(b"request")
while len(held) == accepted:
    time.sleep(0.01)
held[-1].settimeout(60)
held[-1].sendall(held[-1].recv(100) + b" answered")
answer = other.recv(100)
tap.terminate()
_, errors = tap.communicate()
print(errors.decode()[-600:])
if peak > LIMIT_MIB:
    print(f"BROKEN: {peak} MiB for {count} connections that stand still")
    sys.exit(1)
if answer != b"request answered":
    print(f"BROKEN: another client received {answer}")
    sys.exit(1)
print("held")
