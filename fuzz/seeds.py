"""Fuzzing seeds: real messages, connections, recordings and logs in the input format of each target. `cargo xtask fuzz` adds those of
`block`."""

import struct
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Maximum size of a pickle in bytes; longer files slow the fuzzer down and add little coverage.
LONGEST = 64 << 10
FILTERS = [
    b"gap>1s drop>0 rid:5b92 state:live",
    b"silence>=250ms age<2h sent=10k -flag:abort",
    b"deliv<=1M chunks>0 merged=3 lost>0 prompt<4k retract>0 worker:1",
    b"flag:DROPPED -state:done 5b92",
    b"GAP<1.5us received>9ns",
]
CONFIGURATIONS = [
    b'[live]\nheadless = true\nrate = 0.5\n[attach]\npid = [1, 2]\nname = "x"\nverbose = 3\n[tap]\nseed = 7\n',
    b'[run]\npod = "p"\n\n[demo]\nseed = 8\npayload = "tokens"\n',
    b"live.payload = 'safe'\nattach = { pid = 9, pod = \"a\" }\n",
]
# Greeting of a ZMTP 3.1 peer, and a READY command.
GREETING = (b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL").ljust(64, b"\0") + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04PUSH"


def files(folder, *kinds):
    """Contents of the files below `folder` with one of these extensions, the shortest first."""
    found = [path for path in (ROOT / folder).rglob("*") if path.suffix[1:] in kinds and path.is_file()]
    short = [path for path in found if path.suffix != ".pkl" or path.stat().st_size <= LONGEST]
    return [path.read_bytes() for path in sorted(short, key=lambda path: (path.stat().st_size, path))]


def frame(body):
    """A single-part ZMTP message."""
    return (bytes([0, len(body)]) if len(body) < 256 else b"\2" + struct.pack(">Q", len(body))) + body


def ring_record(kind, seq, body, target=0):
    """A record of the probe's ring buffer."""
    return struct.pack("=8Q3I", 7, 1, seq, len(body), 0, 0, 0, 0, target, 9, len(body)) + bytes([kind, 0, 0, 102]) + body


def record(kind, seq, body):
    """A record prefixed with half its length."""
    head = ring_record(kind, seq, body)
    head += bytes(len(head) % 2)
    return bytes([len(head) // 2 & 0xFF]) + head


def passage(seq, body):
    """Records of a frame that is sent, received and processed, each prefixed with its length."""
    records = [ring_record(kind, seq, of, target) for kind, target, of in ((1, 1, body), (3, 2, body), (4, 2, b""))]
    return b"".join(struct.pack("<H", len(record)) + record for record in records)


def libraries():
    """Leading bytes of a few real libraries: those of this Python, and the engine's libzmq if it is installed."""
    mapped = {Path(line.split()[5]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    zmq = ROOT.glob(".venv-testbed/lib/*/site-packages/pyzmq.libs/libzmq*")
    return [path.read_bytes()[: 60 << 10] for path in [*sorted(mapped), *zmq] if path.exists()]


def tables():
    """The kernel's process tables that exist on this machine."""
    names = ("self/maps", "self/stat", "self/status", "net/tcp", "net/unix", "self/cmdline")
    paths = (Path("/proc") / name for name in names)
    return [path.read_bytes()[: 3 << 10] for path in paths if path.exists()]


def seeds():
    """The seeds of each target, with its prefix: mode, chunk sizes or the share sent forward."""
    messages = files("zmq-tap/fixtures/messages", "pkl", "msgpack")
    short = [body for body in messages if len(body) < 400]
    frames = [frame(body) for body in messages]
    triples = zip(frames, frames[1:], frames[2:])
    pairs = list(zip(frames, frames[1:]))[::8]
    logs = files("engines/tests/logs", "log")
    dispatched = [(0, body) for body in messages] + [(0, body) for body in files("engines/fixtures/vllm", "1", "2")]
    return {
        "wire": messages,
        "msgpack": files("zmq-tap/fixtures/messages", "msgpack"),
        "vllm": [body for body in files("engines/fixtures/vllm", "0") if len(body) <= 16 << 10],
        # The kind of a vLLM message, and an eighth of the captured bytes.
        "dispatch": [bytes([kind, 16]) + body for kind, body in dispatched],
        "zmtp": [b"\x10" + GREETING + one for one in frames],
        "zmtp_midstream": [b"\x10" + first[1:] + second + third for first, second, third in triples],
        "egress": [bytes([2, 40]) + served[: 8 << 10] for served in files("responses/fixtures", "bin")],
        "response_plane": [bytes([1, 40]) + plane[: 8 << 10] for plane in files("engines/fixtures/dynamo/responses", "bin")],
        "recording": [recording[: 60 << 10] for recording in files("recording/fixtures", "tgap")],
        "recording_roundtrip": messages[:100],
        # Use a few excerpts of each log.
        "import": [log[at : at + 1500] for log in logs for at in range(0, len(log), 7 * 1500)],
        "probe_record": [record(1, 0, b) + record(3, 0, b) + record(4, 0, b"") + record(2, 1, b"") for b in short],
        "attach": [passage(0, body) + passage(1, body) for body in messages if len(body) < 8 << 10],
        "probe_points": libraries(),
        "proc": tables(),
        # One of each operation, with and without a path.
        "requests": [bytes([n]) + bytes(size - 1) + path for n in range(14) for size in (32, 280) for path in (b"", b"/a/b")],
        "relay": [bytes([40, 90, 200]) + GREETING + forth + GREETING + back for forth, back in pairs],
        "recording_stream": [b"\x28" + recording[: 60 << 10] for recording in files("recording/fixtures", "tgap")],
        "query": FILTERS,
        "config": CONFIGURATIONS,
    }


def write(folder):
    for target, contents in seeds().items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for index, content in enumerate(contents):
            (folder / target / f"s{index:04}").write_bytes(content)
