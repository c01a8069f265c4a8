"""Checks that pickletools accepts the pickles that `tokengap decode` accepts, and that CPython reads the same requests from them. Nothing
is imported or called: classes are stand-ins, as in the decoder."""

import io
import json
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path


# Maximum number of disagreements to print.
SHOWN = 20
# The decoder's limit on the length of a request id in bytes.
LONGEST_RID = 4096


class StandIn:
    """Stand-in for any class, which keeps the pickled state."""

    def __new__(cls, *args, **named):
        made = object.__new__(cls)
        made.args = args
        return made

    def __init__(self, *args, **named):
        pass

    def __call__(self, *args, **named):
        return StandIn(*args)

    def __setstate__(self, state):
        self.state = state


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return StandIn

    def persistent_load(self, name):
        return StandIn()


def requests(value):
    """The request ids of a message, whose location depends on the release."""
    state = getattr(value, "state", None)
    fields = state if isinstance(state, dict) else {}
    rids = fields.get("rids", fields.get("rid"))
    return [rids] if isinstance(rids, str) else rids


def readable(rid):
    """The request id, or the empty string, as in the decoder, if the id is too long or not UTF-8."""
    if not isinstance(rid, str):
        return rid
    try:
        return rid if len(rid.encode()) <= LONGEST_RID else ""
    except UnicodeEncodeError:
        return ""


class Disagreement(Exception):
    """CPython disagrees with the decoder."""


def unframed(data, opcodes):
    """The pickle without its frames, which are only read-ahead hints. Fuzzed frames may end within an opcode, but not beyond the end of
    the data."""
    parts, start = [], 0
    for name, length, place in opcodes:
        if name == "FRAME":
            rest = place + 9
            if length > len(data) - rest:
                raise Disagreement(f"the frame at {place} extends beyond the end of the data")
            parts.append(data[start:place])
            start = rest
    return b"".join([*parts, data[start:]])


def compare(message, data):
    """Returns whether there was anything to compare; raises Disagreement if CPython reads something else."""
    try:
        opcodes = [(code.name, value, place) for code, value, place in pickletools.genops(data)]
    except UnicodeDecodeError:
        # Text that is never used may be invalid; the decoder checks only the texts that it reads.
        return "unread"
    except Exception as error:
        raise Disagreement(f"pickletools says {error!r}") from error
    ends = opcodes[-1][2] + 1
    if ends != len(data):
        raise Disagreement(f"pickletools ends {len(data) - ends} bytes early")
    try:
        value = Reader(io.BytesIO(unframed(data, opcodes))).load()
    except UnicodeDecodeError:
        return "unread"
    except (TypeError, AttributeError):
        # A call of a non-class, an unhashable key, or state for an object without state: detecting these requires execution, and the
        # decoder executes nothing.
        return "unbuilt"
    except Exception as error:
        if "argument must be" in str(error) or "state is not" in str(error):
            return "unbuilt"
        raise Disagreement(f"CPython says {error!r}") from error
    decoder_rids = [chunk["rid"] for chunk in message["chunks"]]
    cpython_rids = requests(value)
    if not decoder_rids or cpython_rids is None:
        return "apart"
    if [readable(rid) for rid in cpython_rids] != decoder_rids:
        raise Disagreement(f"CPython reads the requests {cpython_rids}, the decoder {decoder_rids}")
    return "compared"


def main(tokengap, *folders):
    files = sorted(str(path) for folder in folders for path in Path(folder).rglob("*") if path.is_file())
    accepted = compared = unread = unbuilt = 0
    wrong = []
    for start in range(0, len(files), 500):
        batch = files[start : start + 500]
        output = subprocess.run([tokengap, "decode", "--json", *batch], capture_output=True, text=True, check=False).stdout
        for line in output.splitlines():
            message = json.loads(line)
            if "error" in message or message["codec"] != "pickle":
                continue
            accepted += 1
            try:
                verdict = compare(message, Path(message["file"]).read_bytes())
            except Disagreement as disagreement:
                wrong.append(f"{message['file']}: accepted by the decoder, but {disagreement}")
                continue
            unread += verdict == "unread"
            unbuilt += verdict == "unbuilt"
            compared += verdict == "compared"
    if wrong:
        sys.exit("\n".join(wrong[:SHOWN]))
    if not compared:
        sys.exit("no messages were compared")
    print(
        f"{len(files)} messages: all {accepted} accepted pickles are well formed for CPython, {unread} of them with invalid strings "
        f"and {unbuilt} with rejected calls, neither of which the decoder reads; the requests are the same in {compared}"
    )


main(*sys.argv[1:])
