"""Truth files: a process's own record of a run, as JSON lines. Times are nanoseconds of CLOCK_MONOTONIC, the clock of the probes."""

import hashlib
import json
import time

mono_ns = time.monotonic_ns


def fingerprint(message: bytes) -> str:
    """First 64 bits of the message's SHA-256."""
    return hashlib.sha256(message).hexdigest()[:16]


class Truth:
    """A truth file: one object per line, `{"kind": ...}`, the last one of kind `totals`."""

    def __init__(self, path: str | None):
        self._file = open(path, "w", buffering=1 << 20) if path else None

    def write(self, kind: str, **fields) -> None:
        """Adds a line."""
        if self._file:
            self._file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def close(self, totals: dict) -> None:
        """Writes the totals and closes the file. Also prints them after the word DONE."""
        self.write("totals", **totals)
        if self._file:
            self._file.close()
        print("DONE", json.dumps(totals), flush=True)


def describe(message) -> dict:
    """Description of an output message: its class, and for each request the rid, the number of ids (null: none by design),
    completion_tokens and the kind of finish (null: not finished)."""
    name = type(message).__name__
    if name == "AbortReq":
        return {"class": name, "abort": message.rid, "chunks": []}
    if not name.startswith(("BatchTokenIDOut", "BatchStrOut")):
        return {"class": name, "chunks": []}
    # Text frames before 0.5.0rc0 list no ids: the column is absent, None or empty.
    listed = getattr(message, "output_ids", None) or [None] * len(message.rids)
    return {
        "class": name,
        "chunks": [
            [
                rid,
                None if listed[i] is None else len(listed[i]),
                message.completion_tokens[i],
                message.finished_reasons[i] and message.finished_reasons[i]["type"],
            ]
            for i, rid in enumerate(message.rids)
        ],
    }


class Tally:
    """Counts of one directed connection or inbox."""

    def __init__(self):
        self.frames = self.bytes = self.chunks = self.finishes = self.aborts = self.abort_messages = 0
        self.completion: dict[str, int] = {}
        self.tokens_of_finished = 0
        self.requests = 0

    def add(self, size: int, said: dict) -> None:
        """Counts one frame."""
        self.frames += 1
        self.bytes += size
        if "abort" in said:
            self.abort_messages += 1
        for rid, _, completion, finish in said["chunks"]:
            self.chunks += 1
            if rid not in self.completion:
                self.requests += 1
            self.completion[rid] = completion
            if finish is not None:
                self.finishes += 1
                self.aborts += finish == "abort"
                self.tokens_of_finished += self.completion.pop(rid)

    def totals(self) -> dict:
        """The counts; `tokens` is the sum of every request's last `completion_tokens`."""
        counted = ("frames", "bytes", "requests", "chunks", "finishes", "aborts", "abort_messages")
        tokens = self.tokens_of_finished + sum(self.completion.values())
        return {**{name: getattr(self, name) for name in counted}, "tokens": tokens}
