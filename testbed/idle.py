"""`python3 -m testbed.idle --tokengap FILE --engines N`: what one `attach` costs on N idle engines of the harness.

Prints the time until all are attached to, the CPU time at rest, the memory of the eBPF maps and programs, and the resident memory. Run it with
the harness's Python (`cargo xtask engine 0.5.9` prints the command), as root, on an otherwise idle machine.
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
SETTLING_SECONDS, REST_SECONDS = 5, 30


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bpf_bytes(pid: int) -> int:
    """Locked memory of the maps and programs that the process holds."""
    found = [re.search(r"memlock:\s*(\d+)", entry.read_text()) for entry in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return sum(int(locked[1]) for locked in found if locked)


def resident_mib(pid: int) -> float:
    return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def measure(run: Run, engines: int) -> str:
    setting = steady(6, gap_ms=8, receiver=PATIENT, sender=PATIENT)
    for number in range(engines):
        # Never told to go.
        Session(run, setting, None, run.place(f"engine-{number}"))
    time.sleep(SETTLING_SECONDS)
    began = time.monotonic()
    attach = run.start("attach", [run.program, "attach", "--headless", "--json", "--duration", "300s"])
    attach.wait_for_stderr("attached to", 60, engines)
    start_ms, start_cpu = (time.monotonic() - began) * 1e3, cpu_seconds(attach.pid)
    time.sleep(SETTLING_SECONDS)
    began, before = time.monotonic(), cpu_seconds(attach.pid)
    time.sleep(REST_SECONDS)
    rest = (cpu_seconds(attach.pid) - before) / (time.monotonic() - began)
    summary = (
        f"{engines} engines: attached after {start_ms:.0f} ms and {start_cpu * 1e3:.0f} ms of CPU; at rest {rest * 100:.2f} % of a core; "
        f"BPF {bpf_bytes(attach.pid) / 1e6:.1f} MB; resident {resident_mib(attach.pid):.1f} MiB"
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
