"""An HTTP/2 server leaves 250 responses of a connection unfinished, each inside an event of 7 MiB. Memory of `tap` stays bounded.
usage: response_memory.py TOKENGAP"""
import socket, struct, subprocess, sys, threading, time

LIMIT_MIB = 640
RESPONSES, FRAMES = 250, 7 * 64


def frame(kind, flags, stream, content):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def serve(upstream):
    connection, _ = upstream.accept()
    fields = b"\x88\x5f\x11text/event-stream"
    try:
        connection.sendall(frame(4, 0, 0, b""))
        for stream in range(1, 2 * RESPONSES, 2):
            connection.sendall(frame(1, 4, stream, fields))
            for number in range(FRAMES):
                connection.sendall(frame(0, 0, stream, (b"" if number else b"data: ").ljust(16384, b"x")))
                # Faster than the analysis, the bytes would be dropped before it.
                time.sleep(0.00025)
    except OSError:
        pass


def rss_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))


upstream = socket.create_server(("127.0.0.1", 0))
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
endpoints = ["--listen", f"http://127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{upstream.getsockname()[1]}"]
tap = subprocess.Popen([sys.argv[1], "tap", "--headless", *endpoints], stdout=open("report", "w"), stderr=open("errors", "w"))
peak, received = 0, 0
try:
    for _ in range(100):
        try:
            client = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.1)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    server = threading.Thread(target=serve, args=[upstream], daemon=True)
    server.start()
    client.settimeout(5)
    end = time.time() + 110
    while server.is_alive() and time.time() < end:
        received += len(client.recv(1 << 20))
        peak = max(peak, rss_mib(tap.pid))
        if peak > LIMIT_MIB:
            break
finally:
    tap.kill()
print(f"relayed {received >> 20} MiB, took {peak} MiB of memory")
if peak > LIMIT_MIB:
    print(f"BROKEN: {received >> 20} MiB of unfinished responses take {peak} MiB of memory")
    sys.exit(1)
if received < LIMIT_MIB << 20:
    print("BROKEN: too little was relayed, so nothing was tested")
    sys.exit(1)
print("held")
