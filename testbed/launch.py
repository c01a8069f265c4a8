"""`python -m testbed launch`: starts scheduler, detokenizer and tokenizer together, with socket names like the engine's.

The engine's `PortArgs` takes each name from `tempfile.NamedTemporaryFile(delete=False)`: a file in TMPDIR that libzmq replaces when it
binds. A process that connects before that retries until there is a listener.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import plan as plans
from . import process


def add_options(parser) -> None:
    parser.add_argument("--detokenizer", action="store_true", help="put a detokenizer into the path")
    parser.add_argument("--gap", type=float, default=0.0, metavar="SECONDS", help="pause between two steps")
    parser.add_argument("--truths", metavar="FOLDER", help="folder for the truth file of each process")
    parser.add_argument("--exit", type=int, default=0, metavar="CODE", help="exit code on success")
    plans.add_options(parser)
    process.add_options(parser)


def run(options) -> int:
    def name() -> str:
        return "ipc://" + tempfile.NamedTemporaryFile(delete=False).name

    plan = plans.from_options(options)
    numbers = ("senders", "requests", "tokens", "rounds", "burst", "stagger", "stops", "aborts", "unary", "seed")
    wanted = [word for key in numbers for word in (f"--{key}", str(getattr(plan, key)))]
    wanted += ["--queued-aborts", str(plan.queued_aborts)]
    started: list[subprocess.Popen] = []

    def start(role: str, title: str, *args: str) -> subprocess.Popen:
        truth = ("--truth", str(Path(options.truths) / f"{title}.truth")) if options.truths else ()
        workload = () if role == "detokenize" else wanted
        line = [sys.executable, "-m", "testbed", options.release, role, *args, *truth, *workload]
        begun = subprocess.Popen([*line, "--deadline", str(options.deadline)])
        started.append(begun)
        return begun

    def pass_on(number, _frame):
        for begun in started:
            begun.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    tokenizer = name()
    output = name() if options.detokenizer else tokenizer
    between = ["--detokenizer"] if options.detokenizer else []
    senders = [
        start("send", f"sender{number}", "--connect", output, "--control", tokenizer, "--sender", str(number),
              "--gap", str(options.gap), *between)
        for number in range(plan.senders)
    ]  # fmt: skip
    detokenizer = None
    if options.detokenizer:
        detokenizer = start("detokenize", "detokenizer", "--bind", output, "--connect", tokenizer)
    receiver = start("receive", "receiver", "--bind", tokenizer, *between)
    print("LAUNCHED", os.getpid(), tokenizer, output, flush=True)
    codes = [sender.wait() for sender in senders]
    codes.append(receiver.wait())
    if detokenizer:
        detokenizer.terminate()
        codes.append(detokenizer.wait())
    return next((code for code in codes if code), options.exit)
