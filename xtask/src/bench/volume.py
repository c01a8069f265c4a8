"""Data volume of one pod: bytes of a scrape, of OTLP, of `/recording` and of a recording, while a demo runs."""

import json
import socket
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from attach import free_port, scrape
from common import Process, tokengap

SCENARIOS, SECONDS = ("prefill", "healthy", "race", "backlog"), 40


class Receiver(BaseHTTPRequestHandler):
    """Accepts every push and counts its bytes, including headers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        self.server.bytes += length + len(self.raw_requestline) + len(bytes(self.headers))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


class Proxy:
    """Forwards one connection to a port and counts the bytes that come back."""

    def __init__(self, port):
        self.port, self.bytes = port, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.port))
        threading.Thread(target=self.copy, args=(near, far), daemon=True).start()
        self.copy(far, near)

    def copy(self, source, to):
        try:
            while block := source.recv(1 << 16):
                to.sendall(block)
                if source.getpeername()[1] == self.port:
                    self.bytes += len(block)
        except OSError:
            # The demo has exited.
            pass


def measure(program, scenario):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.bytes = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    metrics = free_port()
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run.tgap"
        words = ["demo", "--headless", "--json", "--scenario", scenario, "--duration", f"{SECONDS}s", "--metrics", metrics]
        words += ["--otlp", f"http://127.0.0.1:{server.server_address[1]}", "--record", recording]
        with Process(program, *words, quiet=True) as demo:
            time.sleep(1)
            proxy = Proxy(metrics)
            with Process(program, "watch", "--headless", "--json", proxy.address, quiet=True):
                # The stream begins with the past, which does not count towards the rate.
                time.sleep(5)
                before = proxy.bytes
                time.sleep(SECONDS - 15)
                streamed = (proxy.bytes - before) / (SECONDS - 15)
                scraped = scrape(metrics)
                report = json.loads(demo.child.communicate()[0])
        chunks = report["chunks"]["sent"]
        size = recording.stat().st_size / chunks
    server.shutdown()
    series = sum(not line.startswith("#") for line in scraped.splitlines())
    rate = chunks / SECONDS
    cells = [f"`{scenario}`", f"{rate:.0f}", series, len(scraped), f"{server.bytes * 60 / SECONDS:.0f}", f"{streamed:.0f}", f"{size:.2f}", f"{size * rate * 3600 / 1e6:.1f}"]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def run(_quick):
    print("| demo | chunks/s | series | bytes/scrape | OTLP bytes/min | /recording bytes/s | recording, bytes/chunk | recording, MB/h |")
    print("|---|---|---|---|---|---|---|---|")
    program = tokengap()
    for scenario in SCENARIOS:
        measure(program, scenario)
