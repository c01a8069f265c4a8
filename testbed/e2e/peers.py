"""Real libzmq peers (`peer.py`) with their counts of messages, and hand-written ZMTP peers with deliberate errors."""

import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from .checks import Checks
from .process import connect
from .session import Run

STARTUP = 30
# Time limit for sending the remaining messages after a fault.
FINISH = 600
PEER = Path(__file__).with_name("peer.py")


@dataclass(frozen=True)
class Load:
    """Load of a sender process; by default four connections at a steady rate until stopped."""

    # Number of its first connection, unique for each receiver.
    first: int = 0
    connections: int = 4
    # Messages per connection in a normal and in a long run; 0 means until stopped.
    count: int = 0
    long: int = 0
    # Messages per second over all connections; 0 means full speed.
    rate: int = 10_000
    # `small`, `mixed`, `large` or `huge`, as in `peer.py`.
    sizes: str = "mixed"
    # High-water mark; 0 means none.
    hwm: int = 0


class Sender:
    """A process with PUSH sockets that connect to `endpoint`."""

    def __init__(self, run: Run, name: str, endpoint: str, load: Load, folder: Path):
        count = load.long if run.options.long and load.long else load.count
        self.endless = not count
        options = {"first": load.first, "connections": load.connections, "count": count, "rate": load.rate}
        options |= {"sizes": load.sizes, "hwm": load.hwm}
        words = [word for name_, value in options.items() for word in (f"--{name_}", value)]
        self.process = run.start(name, [run.options.python, PEER, "send", endpoint, *words], folder)
        self.process.line("READY", STARTUP)
        self.process.write_line("go")

    def end(self) -> dict:
        """Stops it unless it exits by itself, and waits until it has sent its count."""
        if self.endless:
            self.process.write_line("end")
        return json.loads(self.process.line("DONE", FINISH))["connections"]


class Receiver:
    """A process with a PULL socket that binds `endpoint`."""

    def __init__(self, run: Run, endpoint: str, hwm: int, folder: Path):
        command = [run.options.python, PEER, "receive", endpoint, "--hwm", hwm]
        self.process = run.start("receiver", command, folder)
        self.process.line("READY", STARTUP)

    def end(self, sent: dict):
        """Waits until all sent messages have arrived or no more arrive."""
        counts = {connection: one["count"] for connection, one in sent.items()}
        self.process.write_line(f"end {json.dumps(counts)}")
        return Arrived(sent, json.loads(self.process.line("DONE", FINISH)))


class Arrived:
    """Sent and received messages."""

    def __init__(self, sent: dict, received: dict):
        self.sent, self.received = sent, received
        self.messages = sum(one["count"] for one in sent.values())

    def check_exact(self, checks: Checks) -> None:
        """Received bytes equal sent bytes on every connection."""
        lost, _ = self.losses_at_breaks(0, checks)
        checks.equal("messages lost", 0, lost)
        for connection, sent in self.sent.items():
            got = self.received["connections"].get(connection, {})
            checks.equal(f"digest of connection {connection}", sent["digest"], got.get("digest"))

    def losses_at_breaks(self, breaks: int, checks: Checks) -> tuple[int, int]:
        """Messages arrive unchanged, in order and once, with at most one gap per connection and break. Returns lost messages and bytes."""
        checks.equal("messages with a wrong hash", 0, self.received["corrupt"])
        checks.equal("messages that were never sent", 0, self.received["strange"])
        messages = bytes_ = 0
        for connection, sent in self.sent.items():
            got = self.received["connections"].get(connection)
            if not got:
                messages, bytes_ = messages + sent["count"], bytes_ + sent["bytes"]
                continue
            twice = (got["repeated"], got["backwards"])
            checks.equal(f"messages of connection {connection} received twice or out of order", (0, 0), twice)
            holes = sum(to - first for first, to in got["missing"])
            at_the_end = max(0, sent["count"] - got["count"] - holes)
            only_gaps = len(got["missing"]) <= breaks and at_the_end == 0
            checks.true(f"connection {connection} has at most one gap per break", only_gaps)
            messages, bytes_ = messages + sent["count"] - got["count"], bytes_ + sent["bytes"] - got["bytes"]
        return messages, bytes_

    def __str__(self) -> str:
        megabytes = sum(one["bytes"] for one in self.sent.values()) / 1e6
        return f"{self.messages} messages, {megabytes:.0f} MB, {len(self.sent)} connections"


# First bytes of a PUSH socket: the greeting of ZMTP 3.1 with the NULL mechanism, and READY.
GREETING = (bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1]) + b"NULL").ljust(64, b"\0")
HANDSHAKE = GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"


def claim(length: int) -> bytes:
    """Header of a message that announces `length` bytes."""
    return b"\x02" + length.to_bytes(8, "big")


def send_raw(endpoint: str, what: bytes) -> socket.socket:
    """Connects and sends bytes; the receiver may close the connection at any point."""
    peer = connect(endpoint)
    peer.settimeout(0.5)
    send_more(peer, what)
    return peer


def send_more(peer: socket.socket, what: bytes) -> None:
    try:
        peer.sendall(what)
    except OSError:
        pass


def reset(peer: socket.socket) -> None:
    """Closes with a reset, if the transport supports it."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
