"""The Python peer of `cargo xtask bench decode`, which decodes the same bytes.

usage: peer.py FILE CLASS FIELD...

Each line "N" on stdin decodes the message N times and prints the CPU nanoseconds per message. CPU time excludes waiting when the machine
is busy. The classes are stand-ins with the fields of the release, so SGLang is not imported.
"""

import array
import pickle
import sys
import time
import types

path, class_name, *fields = sys.argv[1:]
message = open(path, "rb").read()


def module(name, **members):
    """Creates a module at `name`, with every package above it, so that pickle finds its classes there."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    for member, value in members.items():
        value.__module__ = name
        setattr(sys.modules[name], member, value)


module("sglang.srt.observability.req_time_stats", SchedulerReqTimeStats=type("SchedulerReqTimeStats", (), {}))
io_struct = "sglang.srt.managers.io_struct"
for plain in ("GetLoadReqOutput", "GetLoadsReqOutput"):
    module(io_struct, **{plain: type(plain, (), {})})

packed = path.endswith(".msgpack")
if packed or b"msgspec._utils" in message[:64]:
    import msgspec

    batch = msgspec.defstruct(class_name, fields, tag=True, kw_only=True, array_like=True)
else:
    batch = type(class_name, (), {})
module(io_struct, **{class_name: batch})

if packed:
    # Like SGLang's ext_hook for type 1: a length, the type code, the machine words.
    def ext(code, data):
        skip = 4 + int.from_bytes(data[:4], "big")
        return array.array("q", data[skip:].tobytes()) if code == 1 else data

    decode = msgspec.msgpack.Decoder(batch, ext_hook=ext).decode
else:
    decode = pickle.loads

for line in sys.stdin:
    n = int(line)
    start = time.process_time_ns()
    for _ in range(n):
        decode(message)
    print((time.process_time_ns() - start) / n, flush=True)
