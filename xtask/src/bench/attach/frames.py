"""Writes frames for `peer.c`, made of a recorded one: its class, its columns, its protocol.

usage: frames.py FIXTURE GROUPS REQUESTS OUT

For each group of requests two frames, in their midst and at their end, each request with one new token. What the sender
changes from frame to frame (a request id's first four letters, the number of tokens so far) is found by writing the frame
twice with other values there: the bytes that differ are the places.
"""

import copy
import pickle
import struct
import sys
from pathlib import Path

# The relay's benchmark reads the same frames.
sys.path.insert(0, str(Path(__file__).parent.parent / "relay"))
from frame import Reader  # noqa: E402


def made_of(recorded, group, requests, ends, name, tokens):
    """The recorded frame with these requests instead of its own."""
    made = object.__new__(type(recorded))
    count = len(recorded.rids)
    for column, values in vars(recorded).items():
        if isinstance(values, list) and len(values) == count:
            # Copies: an object that stands there twice would be written once, which no sender's are.
            values = [copy.deepcopy(values[n % count]) for n in range(requests)]
            if column in ("decode_ids", "output_ids"):
                values = [ids[-1:] for ids in values]
        vars(made)[column] = values
    made.rids = [f"{name}{group:02x}{n:06x}{recorded.rids[n % count][12:]}" for n in range(requests)]
    # Numbers up to 256 are one byte.
    made.completion_tokens = [tokens] * requests
    if ends:
        made.finished_reasons = [{"type": "length", "length": 250} for _ in range(requests)]
    return pickle.dumps(made, protocol=4)


def places(one, other, width):
    """Where they differ, each place so many bytes long."""
    assert len(one) == len(other)
    differ = [at for at, (a, b) in enumerate(zip(one, other)) if a != b]
    assert len(differ) % width == 0
    starts = differ[::width]
    assert all(differ[n * width + i] == at + i for n, at in enumerate(starts) for i in range(width))
    return starts


def main(fixture, groups, requests, out):
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
