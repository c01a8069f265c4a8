"""Writes a real frame with more or fewer requests, to approximate the requested size.

usage: frame.py FIXTURE SIZE OUT

Reads the fixture's pickle with stand-in classes, repeats its requests under new ids, and writes it as its sender would: same class, same
columns, same protocol.
"""

import copy
import pickle
import sys
import types


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if module.startswith("sglang."):
            for dot in [i for i, c in enumerate(module + ".") if c == "."]:
                home = sys.modules.setdefault(module[:dot], types.ModuleType(module[:dot]))
            if not hasattr(home, name):
                setattr(home, name, type(name, (), {"__module__": module}))
            return getattr(home, name)
        return super().find_class(module, name)


def with_requests(frame, count):
    """The same frame with `count` requests in every column."""
    rids = frame.rids
    grown = object.__new__(type(frame))
    for name, column in vars(frame).items():
        if isinstance(column, list) and len(column) == len(rids):
            # Copy: pickle would write a repeated object only once, unlike a real sender.
            column = [copy.copy(column[n % len(rids)]) for n in range(count)]
        vars(grown)[name] = column
    grown.rids = [f"{n:08x}{rids[n % len(rids)][8:]}" for n in range(count)]
    return pickle.dumps(grown, protocol=4)


def main(fixture, size, out):
    with open(fixture, "rb") as file:
        frame = Reader(file).load()
    count = max(1, len(frame.rids) * size // len(with_requests(frame, len(frame.rids))))
    for _ in range(4):
        count = max(1, round(count * size / len(with_requests(frame, count))))
    message = with_requests(frame, count)
    with open(out, "wb") as file:
        file.write(message)
    print(count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
