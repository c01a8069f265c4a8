"""`python3 -m testbed.node --tokengap FILE --sglang DIR --vllm DIR`: the screen of one `attach` on a prefill/decode pair and two vLLM servers.

While one of them is at fault, the list of runs (`7`) must name it and the leg of its requests, and blame no other. The folders are those of
`real/install.sh` and `vllm/install.sh`. Needs root, tmux and 10 GB of memory.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .mixed import PAUSE_SECONDS, STEP, TOKENS, Vllm
from .pair.servers import Pair
from .real.__main__ import Lane
from .real.compare import Checks

LOAD_SECONDS, FAULT_AFTER, STOP_SECONDS = 14, 4, 4
SCREEN_SECONDS, PAUSE_BETWEEN_SCREENS = 30, 0.5
SLOW_TRANSFER_MS = 700
# Findings about a process that is stopped.
OF_STOP = "consumer-stopped|engine-silent|first-token-gap|late-(read|receive)"
API_SERVER_LEG = "waited? on engine-core->api-server|in the server's socket"
SCHEDULER_LEG = "scheduler sent no frame|waited? on tokenizer->scheduler|on the way to the scheduler"
OF_TRANSFERS = "transfer-slow"
TRANSFER_LEG = "was spent in the transfer of the cache"


class Screen:
    """`tokengap attach` in tmux, with the list of runs open."""

    def __init__(self, tokengap: Path, folder: Path):
        self.folder = folder
        self.tmux("new-session", "-d", "-x", "180", "-y", "45", f"LC_ALL=C.UTF-8 {tokengap} attach 2> {folder}/attach.err")

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self.folder / "tmux"), "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def open_runs(self, names: list[str]) -> None:
        """Opens the list, and waits until it has all these runs."""
        deadline = time.monotonic() + SCREEN_SECONDS
        while not all(f" {name} " in (shown := self.text()) for name in names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the list of runs lacks one of {names}:\n{shown}")
            if "7 Runs" in shown:
                self.tmux("send-keys", "7")
            time.sleep(1)

    def select(self, run: str, names: list[str]) -> str:
        """Selects a run of the list. Returns the screen, which then has its headline."""
        listed = [name for line in self.text().splitlines() for name in names if re.match(rf" \S {re.escape(name)}\s", line)]
        index = listed.index(run)
        self.tmux("send-keys", *["Up"] * 9, *["Down"] * index)
        time.sleep(PAUSE_BETWEEN_SCREENS)
        return self.text()

    def close(self) -> None:
        self.tmux("send-keys", "q")
        time.sleep(1)
        subprocess.run(["tmux", "-S", str(self.folder / "tmux"), "kill-server"], capture_output=True)


@dataclass
class Fault:
    name: str
    # Run that the screen must mark. A pair's finding marks its decode server.
    run: str
    # What must stand in its line: a finding about it.
    finding: str
    # What its headline must say, below the list when it is selected: the leg.
    leg: str
    # Begins the fault and ends it.
    inject: object


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STOP_SECONDS)
    os.kill(pid, signal.SIGCONT)


def marked_runs(screen: str, names: list[str]) -> dict[str, str]:
    """The lines of the runs that are marked as unhealthy, by name.

    >>> marked_runs(" ! vllm:1   live 3.0 s\\n ✓ vllm:2   live 3.0 s\\n ✗ sglang:3-2 live", ["vllm:1", "vllm:2", "sglang:3", "sglang:3-2"])
    {'vllm:1': '! vllm:1   live 3.0 s', 'sglang:3-2': '✗ sglang:3-2 live'}
    """
    lines = [line.strip() for line in screen.splitlines()]
    found = [(name, line) for line in lines for name in names if re.match(rf"[✗!] {re.escape(name)}\s", line)]
    return dict(found)


def lines_about(screen: str, run: str) -> str:
    """The line of a run."""
    lines = [line for line in screen.splitlines() if f" {run} " in line]
    return " ".join(" ".join(lines).split())


def is_blamed_in_headline(screen: str, run: str) -> bool:
    """Whether the top line, which is about the worst run, names this one.

    >>> is_blamed_in_headline(" tokengap  7 Runs\\n ! WARNING  sglang:2: 99 % of the TTFT", "sglang:2")
    True
    """
    return re.search(rf"^ [✗!] (WARNING|CRITICAL)  {re.escape(run)}: ", screen, re.MULTILINE) is not None


def run_fault(tokengap: Path, pair: Pair, servers: list[Vllm], fault: Fault):
    """A row with the fault, which also keeps the last screen."""

    def run(folder: Path, checks: Checks) -> str:
        names = [server.name() for server in (*pair.servers(), *servers)]
        flags = ["--streams", "2", "--seconds", str(LOAD_SECONDS), "--tokens", TOKENS, "--pause", PAUSE_SECONDS]
        loads = [threading.Thread(target=pair.load, args=(folder / "pair.jsonl", *flags))]
        loads += [threading.Thread(target=server.load, args=(folder / f"{server.port}.jsonl", server.port, LOAD_SECONDS)) for server in servers]
        screen = Screen(tokengap, folder)
        try:
            screen.open_runs(names)
            for load in loads:
                load.start()
            time.sleep(FAULT_AFTER)
            threading.Thread(target=fault.inject).start()
            blamed, named = set(), None
            while any(load.is_alive() for load in loads):
                shown = screen.text()
                marked = marked_runs(shown, names)
                blamed |= marked.keys()
                if fault.run in marked and re.search(fault.finding, lines_about(shown, fault.run)):
                    named = named or screen.select(fault.run, names)
                time.sleep(PAUSE_BETWEEN_SCREENS)
            last = named or shown
            (folder / "screen.txt").write_text(last)
        finally:
            screen.close()
        checks.equal("runs that are blamed", {fault.run}, blamed)
        checks.equal(f"the screen says {fault.finding}; see screen.txt", True, named is not None)
        checks.equal("the top line names it; see screen.txt", True, is_blamed_in_headline(last, fault.run))
        checks.equal(f"the headline says {fault.leg}; see screen.txt", True, re.search(fault.leg, " ".join(last.split())) is not None)
        return lines_about(last, fault.run)[:600]

    return run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m testbed.node", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--sglang", type=Path, required=True, help="folder of the SGLang servers")
    parser.add_argument("--vllm", type=Path, required=True, help="folder of the vLLM server")
    parser.add_argument("--only", help="run only rows whose name contains this")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the rows' files")
    wanted = parser.parse_args()
    lane = Lane(wanted)
    logs = Path(tempfile.mkdtemp(prefix="node-", dir=wanted.keep))
    servers = [Vllm(wanted.vllm, logs / f"vllm-{number}.log", [], STEP) for number in range(2)]
    with ExitStack() as running:
        pair = running.enter_context(Pair(wanted.sglang, "0.5.23", "mini-lb", logs))
        for number, server in enumerate(servers):
            running.enter_context(server)
            server.load(logs / "warm.jsonl", 90 + number, 1)
        pair.load(logs / "warm.jsonl", "--streams", "8", "--seconds", "4")
        sick, decode = servers[1], pair.decode
        faults = [
            Fault("a vLLM server does not answer", sick.name(), OF_STOP, API_SERVER_LEG, partial(stop, sick.main_pid())),
            Fault("decode's scheduler stops", decode.name(), OF_STOP, SCHEDULER_LEG, partial(stop, decode.pids()["scheduler"])),
            Fault("slow transfers", decode.name(), OF_TRANSFERS, TRANSFER_LEG, partial(pair.delay_transfers, SLOW_TRANSFER_MS)),
        ]
        for fault in faults:
            lane.row(fault.name, run_fault(lane.tokengap, pair, servers, fault))
    print(f"{lane.failed} rows failed")
    return 1 if lane.failed else 0


if __name__ == "__main__":
    sys.exit(main())
