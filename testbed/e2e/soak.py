"""`python -m testbed.e2e.soak`: all features at once for a long time. Resource use must not grow, counts must match, and replayed recordings
must give the same report.

Three processes run at the same time: a demo with races, a tap between a real scheduler and tokenizer, and an attach to another pair that
serves HTTP clients.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .checks import Checks, at
from .kernel import refused
from .process import ROOT, Process, endpoint, wait_until_bound
from .record import replayed
from .session import PLAIN, STARTUP, Engine, Run, plan_options

RELEASE = "0.5.23"
# Seconds after the soak at which a process of the engine exits by itself.
EXTRA_TIME = 600
# Number of samples over a run.
SAMPLES = 200
# Allowed memory growth in KiB over the last two thirds of a run. A leak of 20 bytes per message exceeds it within an hour.
MAX_KIB = 4096
ENDING = 60


@dataclass
class Resources:
    """Resource use of a process."""

    minutes: float
    # Resident memory in KiB.
    memory: int
    # Maximum number of open files of any thread: the relay's thread has a separate descriptor table.
    files: int
    threads: int
    mappings: int
    # Bytes of the eBPF maps that the process holds open, as counted by the kernel.
    maps: int

    @classmethod
    def at(cls, pid: int, minutes: float):
        process = Path(f"/proc/{pid}")
        status = dict(re.findall(r"(VmRSS|Threads):\s*(\d+)", (process / "status").read_text()))
        # Threads and descriptors may disappear during the scan.
        files = max(entries(task / "fd") for task in (process / "task").iterdir())
        kernel = 0
        for file in (process / "fdinfo").iterdir():
            try:
                text = file.read_text()
            except OSError:
                continue
            if "map_id:" in text and (memory := re.search(r"memlock:\s*(\d+)", text)):
                kernel += int(memory[1])
        mappings = len((process / "maps").read_text().splitlines())
        return cls(minutes, int(status["VmRSS"]), files, int(status["Threads"]), mappings, kernel)


def entries(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope of a least-squares fit in units per minute, and twice its standard error."""
    count = len(points)
    x, y = (sum(values) / count for values in zip(*points))
    spread = sum((at - x) ** 2 for at, _ in points)
    slope = sum((at - x) * (value - y) for at, value in points) / spread
    off = sum((value - y - slope * (at - x)) ** 2 for at, value in points)
    return slope, 2 * (off / (count - 2) / spread) ** 0.5


def compare_with_limits(name: str, samples: list[Resources], checks: Checks) -> str:
    """Compares the samples with the limits, except those of the first third, while tables fill."""
    late = samples[len(samples) // 3 :]
    first, last = late[0], late[-1]
    grows, error = slope([(sample.minutes, sample.memory) for sample in late])
    summary = f"{first.memory / 1024:.1f} to {last.memory / 1024:.1f} MiB | {grows:+.1f} ± {error:.1f} KiB"
    summary += f" | {last.files}, {last.threads}, {last.mappings}, {last.maps / (1 << 20):.1f} MiB"
    checks.true(f"{name} does not grow ({summary})", (grows - error) * (last.minutes - first.minutes) < MAX_KIB)
    # The number of open files fluctuates during the scan of /proc: compare the minimum at the end with the maximum at the beginning.
    begin, end = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    for what, slack in {"files": 0, "threads": 0, "maps": 0, "mappings": 20}.items():
        before, after = max(getattr(sample, what) for sample in begin), min(getattr(sample, what) for sample in end)
        checks.true(f"{what} of {name} do not grow (from {before} to {after})", after <= before + slack)
    return summary


class Load:
    """One tokengap process and its traffic, which is the engine's or that of the demo."""

    def __init__(self, run: Run, name: str, seconds: float):
        self.run, self.name, self.folder, self.samples = run, name, run.place(name), []
        self.recording = self.folder / "run.tgap"
        self.receiver = self.sender = self.clients = None
        self.deadline = seconds + EXTRA_TIME
        if name == "demo":
            self.tokengap = self.observe("demo", "--scenario", "race")
        elif name == "tap":
            front, back = endpoint(self.folder, "front"), endpoint(self.folder, "back")
            self.tokengap = self.observe("tap", "--listen", front, "--upstream", back)
            self.engine(back, front, lambda: wait_until_bound(front, self.tokengap), [])
        else:
            back = endpoint(self.folder, "tokenizer")
            self.engine(back, back, lambda: None, ["--http"])
            self.tokengap = self.observe("attach", "--pid", self.receiver.pid)
            self.tokengap.wait_for_stderr("attached to", ENDING)

    def observe(self, source: str, *flags) -> Process:
        """Flags of a live source that records, with small tables: growth of full tables is a leak. The duration is only a safety limit."""
        options = ["--headless", "--json", "--max-finished", "500", "--slowest", "50", "--duration", "48h"]
        options += ["--limit", "lossy_requests=500", "--limit", "lost_ranges=5000", "--record", self.recording]
        return self.run.start("tokengap", [self.run.program, source, *options, *flags], self.folder)

    def engine(self, back: str, front: str, between, http: list[str]) -> None:
        """Starts the tokenizer, calls `between`, then starts clients and scheduler, which do not send yet."""
        plan = plan_options(PLAIN | dict(requests=16, rounds=0, burst=2, stagger=1))

        def part(role: str, *options) -> Process:
            words = ["--deadline", self.deadline, *options, *plan]
            process = self.run.role(role, role, words, self.folder, truth=False)
            self.ready = process.line("READY", STARTUP)
            return process

        self.receiver = part("receive", "--bind", back, *http)
        url = self.ready.split()[-1]
        between()
        self.clients = part("client", "--url", url) if http else None
        self.sender = part("send", "--connect", front, "--control", front, "--health-every", 25, "--gap", "25e-3")

    def go(self) -> None:
        for process in (self.receiver, self.sender):
            if process:
                process.write_line("go")

    def sample(self, minutes: float) -> None:
        self.tokengap.check()
        self.samples.append(Resources.at(self.tokengap.pid, minutes))

    def end(self, checks: Checks) -> tuple[str, str]:
        """Stops the traffic, then the observer; compares its report with the truth and with its recording."""

        def totals(process: Process) -> dict:
            process.stop()
            return json.loads(process.line("DONE", ENDING))

        truth = None
        if self.sender:
            sender = totals(self.sender)
            # Rounds registered ahead never start. On a busy machine, the last outputs take a while to reach their clients.
            time.sleep(5)
            clients = totals(self.clients) if self.clients else None
            truth = sender, totals(self.receiver), clients
        self.tokengap.signal(signal.SIGINT)
        report = json.loads(self.tokengap.end_well(ENDING))
        if truth:
            check_engine(self.name, *truth, report, checks)
        else:
            check_demo(report, checks)
        tokens = [report["tokens"][stage] for stage in ("sent", "received", "delivered")]
        known = [count for count in tokens if count is not None]
        checks.equal("tokens sent, received, delivered: each at most the previous", sorted(known, reverse=True), known)
        replayed(checks, self.run.program, self.recording, report)
        carried = f"{report['requests']['seen']} requests, {report['chunks']['sent']} chunks, {report['tokens']['sent']} tokens"
        flow = " ≥ ".join("-" if count is None else str(count) for count in tokens)
        missed, size = report["self"]["events_missed"], self.recording.stat().st_size >> 10
        return carried, f"sent, received, delivered {flow}; {missed} observations missed; replay equal ({size} KiB)"


def check_demo(report: dict, checks: Checks) -> None:
    """The report equals the counts of the demo's peers."""
    truth = report["demo"]["truth"]
    expected = {
        "requests/seen": truth["requests"],
        "chunks/sent": truth["chunks"],
        "tokens/sent": truth["tokens"],
        "chunks/dropped_confirmed": truth["chunks_dropped"],
        "chunks/tokens_lost": truth["tokens_lost"],
        "chunks/merged": truth["chunks_merged"],
    }
    checks.matches(report, expected)


def check_engine(name: str, sender: dict, receiver: dict, clients: dict | None, report: dict, checks: Checks) -> None:
    """The report equals the counts of the engine's processes, except for frames counted as missed."""
    missed, output = at(report, "self/events_missed"), sender["output"]
    sent = output["frames"] + sender["control"]["frames"]
    seen, received = (sum(hop[stage] or 0 for hop in report["hops"]) for stage in ("frames_sent", "frames_received"))
    checks.equal(f"{name}: frames that the tokenizer received", sent, receiver["frames"])
    checks.true(f"{name}: {seen} frames in the report and {missed} missed, of {sent} sent", seen <= sent <= seen + missed)
    if not missed:
        checks.matches(report, {"tokens/sent": output["tokens"], "chunks/sent": output["chunks"]})
    if clients:
        checks.equal(f"{name}: frames received, in the report", sent - min(missed, sent), received)
        checks.matches(report, {"tokens/delivered": clients["ids"]})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.e2e.soak", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--table", type=Path, help="write the results to this file, as Markdown")
    options = parser.parse_args()
    options.python, options.engines, options.xtask = Path(sys.executable), ROOT / ".engine", None
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run = Run(options, Engine(RELEASE), "soak", Path(folder), checks)
        try:
            summary, rows = soak(run, options.seconds)
        finally:
            run.close()
    print(summary)
    for line in checks.failed:
        print(f"    {line}")
    if options.table:
        minutes = options.seconds / 60
        options.table.write_text(f"`cargo xtask soak`, {minutes:.0f} minutes, {checks.made} comparisons:\n\n{rows}")
    return 1 if checks.failed else 0


def soak(run: Run, seconds: float) -> tuple[str, str]:
    names = ["tap", "attach", "demo"]
    if why := refused():
        print(f"SKIPPED: attach: {why}")
        names.remove("attach")
    # The demo begins with its first message.
    loads = [Load(run, name, seconds) for name in names]
    for load in loads:
        load.go()
    started, pause = time.monotonic(), max(0.5, seconds / SAMPLES)
    print(f"{', '.join(names)} under load for {seconds:.0f} s", flush=True)
    while time.monotonic() - started < seconds:
        time.sleep(pause)
        for load in loads:
            load.sample((time.monotonic() - started) / 60)
    summary = ""
    rows = "| load | carried | memory | a minute | files, threads, mappings, kernel maps | report |\n|---|---|---|---|---|---|\n"
    for load in loads:
        footprint = compare_with_limits(load.name, load.samples, run.checks)
        carried, report = load.end(run.checks)
        summary += f"{load.name}: {footprint}; {carried}; {report}\n"
        rows += f"| {load.name} | {carried} | {footprint} | {report} |\n"
    return f"{summary}{run.checks.made} comparisons in {time.monotonic() - started:.0f} s", rows


if __name__ == "__main__":
    sys.exit(main())
