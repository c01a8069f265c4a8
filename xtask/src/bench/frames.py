"""Writes frames for `engine.c` with the class, columns and protocol of a recorded frame.

Each group of requests gets two frames: a middle one and a final one, with one new token per request. The sender changes two fields in
every frame: the first four letters of each request id, and the number of tokens so far. To find their offsets, the script writes the
frame twice with different values and compares the bytes.
"""

import copy
import pickle
import struct
import sys
from pathlib import Path

# Share the reader of the decoder's benchmark.
sys.path.insert(0, str(Path(__file__).parents[3] / "engines/benches/decode"))
from frame import Reader  # noqa: E402


def made_of(recorded, group, requests, ends, name, tokens):
    """The recorded frame with its requests replaced by these."""
    made = object.__new__(type(recorded))
    count = len(recorded.rids)
    for column, values in vars(recorded).items():
        if isinstance(values, list) and len(values) == count:
            # Deep copies: pickle would write a repeated object only once, unlike a real sender.
            values = [copy.deepcopy(values[n % count]) for n in range(requests)]
            if column in ("decode_ids", "output_ids"):
                values = [ids[-1:] for ids in values]
        vars(made)[column] = values
    made.rids = [f"{name}{group:02x}{n:06x}{recorded.rids[n % count][12:]}" for n in range(requests)]
    # Counts below 256 take one byte.
    made.completion_tokens = [tokens] * requests
    if ends:
        made.finished_reasons = [{"type": "length", "length": 250} for _ in range(requests)]
    return pickle.dumps(made, protocol=4)


def places(one, other, width):
    """Offsets of the differences, each `width` bytes long."""
    assert len(one) == len(other)
    differ = [at for at, (a, b) in enumerate(zip(one, other)) if a != b]
    assert len(differ) % width == 0
    starts = differ[::width]
    assert all(differ[n * width + i] == at + i for n, at in enumerate(starts) for i in range(width))
    return starts


def write_frames(fixture, groups, requests, out):
    with open(fixture, "rb") as file:
        recorded = Reader(file).load()
    with open(out, "wb") as file:
        for group in range(groups):
            for ends in (False, True):
                made = made_of(recorded, group, requests, ends, "0000", 1)
                names = places(made, made_of(recorded, group, requests, ends, "ffff", 1), 4)
                tokens = places(made, made_of(recorded, group, requests, ends, "0000", 254), 1)
                assert len(names) == len(tokens) == requests
                file.write(struct.pack(f"<{2 + 2 * requests}I", len(made), requests, *names, *tokens))
                file.write(made)

