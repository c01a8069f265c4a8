"""What `tokengap decode` accepts of a folder of pickles, CPython reads too, with the same requests. Nothing is imported or called:
classes are stand-ins, as the decoder's are."""

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path


class StandIn:
    """Any class: keeps what a pickle gives it."""

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
    """The rids of a message, wherever its release keeps them."""
    state = getattr(value, "state", None)
    fields = state if isinstance(state, dict) else {}
    rids = fields.get("rids", fields.get("rid"))
    return [rids] if isinstance(rids, str) else rids


def main(tokengap, *folders):
    files = sorted(str(path) for folder in folders for path in Path(folder).iterdir())
    accepted = compared = unread = 0
    for start in range(0, len(files), 500):
        batch = files[start : start + 500]
        said = subprocess.run([tokengap, "decode", "--json", *batch], capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            message = json.loads(line)
            if "error" in message or message["codec"] != "pickle":
                continue
            accepted += 1
            data = Path(message["file"]).read_bytes()
            try:
                value = Reader(io.BytesIO(data)).load()
            except UnicodeDecodeError:
                # A text that nothing is read from may be broken; ours are looked at when they are read.
                unread += 1
                continue
            except Exception as error:
                sys.exit(f"{message['file']}: accepted here, and CPython says {error!r}")
            ours = [chunk["rid"] for chunk in message["chunks"]]
            theirs = requests(value)
            if ours and theirs is not None:
                compared += 1
                if list(theirs) != ours:
                    sys.exit(f"{message['file']}: {ours} here, {theirs} by CPython")
    if not compared:
        sys.exit("nothing was compared")
    print(f"{len(files)} messages: CPython reads all {accepted} pickles that were accepted, but {unread} with broken texts that are not read, and finds the same requests in {compared}")


main(*sys.argv[1:])
