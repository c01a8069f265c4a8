"""`python3 -m testbed.idle --tokengap FILE --engines N`: what one `attach` costs on N idle engines of the harness, which listen for clients.

Prints the time until all are attached to, the CPU time at rest, the memory of the eBPF maps and programs, and the resident memory, each of all
its processes. Run it with the harness's Python (`cargo xtask engine 0.5.9` prints the command), as root, on an otherwise idle machine.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from .e2e.accidents import steady
from .e2e.checks import Checks
from .e2e.process import ROOT
from .e2e.session import Engine, Run, Session

RELEASE = "0.5.9"
# Engines start one after the other, and their time limits begin at once.
PATIENT = ("--deadline", "300")
# A process is examined again after a quarter of its age, so young engines cost more than those that serve.
SETTLING_SECONDS, REST_SECONDS = 75, 30
CPU_CLOCK_OF_PROCESS = 2


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """The process and its descendants: attach has one that holds programs and maps, and one that opens files."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(stat(int(entry.name))[1])
        except OSError:
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of the processes, and of their children that have ended."""
    ended = sum(int(ticks) for pid in pids for ticks in stat(pid)[13:15]) / os.sysconf("SC_CLK_TCK")
    return ended + sum(time.clock_gettime((~pid << 3) | CPU_CLOCK_OF_PROCESS) for pid in pids)


def bpf_bytes(pids: list[int]) -> int:
    """Locked memory of the maps and programs that the processes hold, each counted once."""
    locked = {}
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
            fields = dict(re.findall(r"^(map_id|prog_id|memlock):\s*(\d+)$", entry.read_text(), re.MULTILINE))
            if "memlock" in fields:
                locked["map_id" in fields, fields.get("map_id") or fields["prog_id"]] = int(fields["memlock"])
    return sum(locked.values())


def resident_mib(pids: list[int]) -> float:
    """Proportional share of the resident memory, so that pages that the processes share count once."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss:\s*(\d+)", rollup, re.MULTILINE)[1]) for rollup in rollups) / 1024


def measure(run: Run, engines: int) -> str:
    # No client begins, and no engine is told to go.
    setting = steady(6, gap_ms=8, receiver=PATIENT, sender=PATIENT, http=True, late_clients=True)
    for number in range(engines):
        Session(run, setting, None, run.place(f"engine-{number}"))
    time.sleep(SETTLING_SECONDS)
    began = time.monotonic()
    attach = run.start("attach", [run.program, "attach", "--headless", "--json", "--duration", "300s"])
    attach.wait_for_stderr("attached to", 60, engines)
    start_ms, start_cpu = (time.monotonic() - began) * 1e3, cpu_seconds(family(attach.pid))
    time.sleep(SETTLING_SECONDS)
    processes = family(attach.pid)
    began, before = time.monotonic(), [cpu_seconds([pid]) for pid in processes]
    time.sleep(REST_SECONDS)
    seconds = time.monotonic() - began
    shares = [(cpu_seconds([pid]) - at) / seconds * 100 for pid, at in zip(processes, before)]
    summary = (
        f"{engines} engines: attached after {start_ms:.0f} ms and {start_cpu * 1e3:.0f} ms of CPU; at rest {sum(shares):.2f} % of a core, "
        f"by process {', '.join(f'{share:.2f}' for share in shares)}; BPF {bpf_bytes(processes) / 1e6:.1f} MB; "
        f"resident {resident_mib(processes):.1f} MiB"
    )
    attach.signal(signal.SIGINT)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m testbed.idle", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--engines", type=int, default=8)
    wanted = parser.parse_args()
    options = SimpleNamespace(tokengap=wanted.tokengap.resolve(), xtask=None, python=Path(sys.executable), engines=ROOT / ".engine")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options, Engine(RELEASE), "idle", Path(folder), Checks())
        try:
            print(measure(run, wanted.engines))
        finally:
            run.close()


if __name__ == "__main__":
    main()
