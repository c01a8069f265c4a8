"""Clients of a real server whose clock is their kernel's, for times to first token: `python -m testbed.first_tokens --url URL ...`.

A client of asyncio reads a first token some milliseconds after it arrived, if other streams keep its loop busy. Here each client has a thread,
and the kernel stamps what it sends and receives (SO_TIMESTAMPING), so that busy clients count no time of their own.
"""

import argparse
import json
import random
import socket
import struct
import threading
import time
import uuid
from urllib.parse import urlsplit

SO_TIMESTAMPING = 37
# Stamps of what is sent and received, taken by the kernel; those of what is sent come without the data.
STAMPS = (1 << 1) | (1 << 3) | (1 << 4) | (1 << 11)
READ_BYTES = 65_536
# Less than an event with a token.
READ_BYTES_BEFORE_FIRST = 64
TIMEOUT_SECONDS = 300
END_OF_HEAD = b"\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"


class Client:
    """Requests on one connection, one after the other."""

    def __init__(self, host: str, port: int):
        self.host = host
        self.socket = socket.create_connection((host, port), TIMEOUT_SECONDS)
        # With a timeout of Python's, a read of the stamps of sent data would wait for the answer.
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT_SECONDS, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMPS)

    def send(self, message: bytes) -> int:
        """When the kernel passed the first of these bytes to the server, by CLOCK_MONOTONIC."""
        self.socket.sendall(message)
        stamps = []
        while True:
            try:
                _, ancillary, _, _ = self.socket.recvmsg(0, 256, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            stamps += stamps_of(ancillary)
        if not stamps:
            raise RuntimeError("the kernel stamped no sent data")
        return min(stamps)

    def read(self, limit: int) -> tuple[bytes, int]:
        """Bytes received, and when the last of them arrived, by CLOCK_MONOTONIC."""
        data, ancillary, _, _ = self.socket.recvmsg(limit, 256)
        if not data:
            raise ConnectionError("the server closed the connection")
        stamps = stamps_of(ancillary)
        if not stamps:
            raise RuntimeError("the kernel stamped no received data")
        return data, stamps[0]

    def ask(self, path: str, body: dict) -> dict:
        """Sends a request. Returns its times and its answer's status and id."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        message = head.encode() + content
        sent_ns = self.send(message)
        answer, first_ns = b"", None
        while not is_complete(answer):
            # A read of several events would have the time of the last one.
            data, at_ns = self.read(READ_BYTES if first_ns else READ_BYTES_BEFORE_FIRST)
            answer += data
            start = answer.find(END_OF_HEAD)
            if first_ns is None and start >= 0 and len(answer) > start + len(END_OF_HEAD):
                first_ns = at_ns
        status = int(answer.split(b" ", 2)[1])
        event = json.loads(answer[answer.index(b"data: {") + 6 :].split(b"\r\n", 1)[0].split(b"\n", 1)[0]) if status == 200 else {}
        return {"status": status, "id": event.get("id"), "sent_ns": sent_ns, "first_ns": first_ns}


def stamps_of(ancillary: list) -> list[int]:
    """The kernel's software stamps among ancillary data, which are of CLOCK_REALTIME, as times of CLOCK_MONOTONIC."""
    ahead_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
    stamps = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
            seconds, ns = struct.unpack("qq", data[:16])
            stamps.append(seconds * 1_000_000_000 + ns - ahead_ns)
    return stamps


def is_complete(answer: bytes) -> bool:
    """Whether a response has ended: chunked if it is streamed, else with its length."""
    head, end, body = answer.partition(END_OF_HEAD)
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
    return (b"\r\n" + body).endswith(b"\r\n" + END_OF_CHUNKS)


class Load:
    def __init__(self, wanted: argparse.Namespace):
        self.wanted, self.random, self.lock, self.done = wanted, random.Random(wanted.seed), threading.Lock(), []
        self.ends = time.monotonic() + wanted.seconds

    def draw(self) -> tuple[str, dict, str | None]:
        """Path and body of a request, and its id if the client selects it."""
        with self.lock:
            tokens = max(1, int(self.wanted.tokens * (0.5 + self.random.random())))
            prompt = " ".join(f"w{self.random.randrange(8000)}" for _ in range(self.wanted.words))
            rid = uuid.UUID(int=self.random.getrandbits(128)).hex
        if self.wanted.engine == "vllm":
            options = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "return_token_ids": True}
            return "/v1/completions", {"model": "m", "prompt": prompt, **options}, None
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        return "/generate", {"rid": rid, "text": prompt, "stream": True, "sampling_params": sampling}, rid

    def run_client(self, client: Client) -> None:
        while time.monotonic() < self.ends:
            path, body, rid = self.draw()
            record = client.ask(path, body)
            record["id"] = rid or record["id"]
            self.done.append(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--engine", choices=["sglang", "vllm"], default="sglang")
    parser.add_argument("--streams", type=int, default=8, help="concurrent requests")
    parser.add_argument("--seconds", type=float, default=10, help="time during which new requests begin")
    parser.add_argument("--tokens", type=int, default=64, help="mean length of an answer; lengths vary by half")
    parser.add_argument("--words", type=int, default=16, help="length of a prompt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--truth", required=True, help="file for one line of JSON per request")
    wanted = parser.parse_args()
    address, load = urlsplit(wanted.url), Load(wanted)
    clients = [Client(address.hostname, address.port) for _ in range(wanted.streams)]
    threads = [threading.Thread(target=load.run_client, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(wanted.truth, "w") as file:
        for record in load.done:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
