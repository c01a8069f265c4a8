"""The four verdicts on a consumer's CPU, each on a real tokenizer that is late for exactly that reason. The correct verdict must appear,
and the other three must not.

Other load on the machine must not change a verdict, so the rows set scheduling priorities explicitly.
"""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from .checks import Checks, at, findings, same_bytes
from .session import PLAIN, Run, Session, Setting, Watch

# Seconds of observation while the tokenizer is late.
LATE = 5
# Seconds after which the probe has detected the tokenizer's move to another cgroup.
NOTICED = 1.5
HOP = "scheduler->tokenizer"
# More work than a tokenizer with a CPU of its own can process in time, for the whole run.
BUSY = Setting(plan=PLAIN | dict(requests=32, tokens=200), gap_ms=10, receiver=("--busy", "2e-3"))
IDLE = Setting(plan=PLAIN | dict(requests=8, tokens=800), gap_ms=10)


def threads(pid: int) -> dict[int, str]:
    """Threads of a process with their names."""
    return {int(task.name): (task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()}


def run_at_realtime_priority(tid: int) -> None:
    """Runs a thread at real-time priority; the kernel reserves a twentieth of the CPU for others. Nice values have no effect across the
    kernel's automatic session groups."""
    os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(1))


def cpus() -> tuple[int, int]:
    """First and last available CPU; equal if there is only one."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]


@contextlib.contextmanager
def own_cpu(pid: int):
    for tid in threads(pid):
        run_at_realtime_priority(tid)
    yield


@contextlib.contextmanager
def neighbours(cpu: int, count: int):
    """Processes in a busy loop on one CPU."""
    loop, nothing = ["sh", "-c", "while :; do :; done"], subprocess.DEVNULL
    running = []
    try:
        for _ in range(count):
            running.append(subprocess.Popen(loop, stdin=nothing, stdout=nothing))
            os.sched_setaffinity(running[-1].pid, {cpu})
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def beside_neighbours(pid: int):
    for tid in threads(pid):
        os.sched_setaffinity(tid, {cpus()[1]})
    with neighbours(cpus()[1], 4):
        yield


@contextlib.contextmanager
def late_io_thread(pid: int):
    consumer, io = cpus()
    for tid, name in threads(pid).items():
        if name.startswith("ZMQbg/IO"):
            os.sched_setaffinity(tid, {io})
            os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.sched_setaffinity(tid, {consumer})
            run_at_realtime_priority(tid)
    # A low-priority thread waits longer for its share if it has more competitors.
    with neighbours(io, 16):
        yield


@contextlib.contextmanager
def quota(pid: int | None):
    """A cgroup with a CPU quota of 20 ms in 100 ms and the highest weight, and one process in it."""
    root = Path("/sys/fs/cgroup")
    control = root / "cgroup.subtree_control"
    limits = {"cpu.max": "20000 100000", "cpu.weight": "10000"}
    if not control.exists() or "cpu" not in control.read_text().split():
        root = root / "cpu"
        limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000", "cpu.shares": "262144"}
        if not (root / "cpu.shares").exists() and not (root / "tasks").exists():
            raise OSError("no cgroup hierarchy below /sys/fs/cgroup has a cpu controller")
    group = root / f"tokengap-e2e-{pid or f'try-{os.getpid()}'}"
    group.mkdir()
    try:
        for file, value in limits.items():
            (group / file).write_text(value)
        if pid:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        # Move the process to the parent group, because only an empty group can be removed.
        if pid:
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def no_quota() -> str | None:
    """Reason why no quota can be set here; `None` if it can."""
    try:
        with quota(None):
            return None
    except OSError as error:
        return f"cannot create a cgroup with a CPU quota: {error}"


def one_cpu() -> str | None:
    return "needs two CPUs" if cpus()[0] == cpus()[1] else None


def cpu_bound(checks: Checks, report: dict) -> None:
    evidence = next((f["evidence"] for f in findings(report, "consumer-cpu-bound")), {})
    checks.true("waits for a frame are short", at(evidence, "recv_wait_p50_ns") < 5_000_000)
    checks.true("it hardly sleeps, so it is not I/O-bound", at(evidence, "blocked") < 0.1)
    checks.matches(evidence, {"kernel_bytes_max": 0}, "evidence")
    # The tokenizer's profile lists the known slow function first, for the whole run and for the time while frames were queued.
    tokenizer = next((line for line in report["stacks"] if line["role"] == "tokenizer"), {"functions": []})
    names = [function["function"] for function in tokenizer["functions"]] or [""]
    checks.equal("the hottest function", "pause", names[0].rpartition(".")[2])
    for when in ("all", "growing"):
        share = at(tokenizer, f"functions/0/{when}/own")
        checks.true(f"half of the stacks end in that function ({when}: {share})", isinstance(share, float) and share > 0.5)
    checks.true("its caller is listed", any(name.endswith("consume") for name in names))


@dataclass
class Case:
    """A verdict, and the condition that causes it."""

    verdict: str
    # Expected dominant state of the thread's time.
    thread: str
    setting: Setting
    condition: Callable
    needs: Callable[[], str | None] = lambda: None
    compare: Callable[[Checks, dict], None] = lambda checks, report: None


CASES = [
    Case("consumer-cpu-bound", "cpu-bound", BUSY, own_cpu, compare=cpu_bound),
    Case("consumer-throttled", "throttled", BUSY, quota, no_quota),
    Case("consumer-starved", "starved", BUSY, beside_neighbours),
    Case("io-thread-starved", "asleep", IDLE, late_io_thread, one_cpu),
]


def row(case: Case):
    """Runs a row of the table."""

    def play(run: Run) -> str:
        checks, session = run.checks, Session(run, case.setting, None)
        pid = session.receiver.pid
        watch = Watch(run, pid, "--python-stacks", "100")
        with case.condition(pid):
            time.sleep(NOTICED)
            session.go()
            time.sleep(LATE)
            # Stop attach first, because the report must cover only the late period.
            report = watch.report()
        outcome = session.finish()
        same_bytes(checks, outcome)
        checks.equal("clients with a finish", case.setting.plan["requests"], outcome.receiver.totals["finished"])
        reported = {c.verdict: f["summary"] for c in CASES for f in findings(report, c.verdict)[:1]}
        checks.equal("verdicts on the tokenizer's CPU", [case.verdict], list(reported))
        hops = [f["hop"] for f in findings(report, case.verdict)[:1]]
        checks.equal("hop of the verdict", [HOP], hops)
        leg = next((leg for leg in report["path"] if leg["kind"] == "wait"), {})
        checks.matches(leg, {"thread": case.thread}, "waiting")
        for gap in findings(report, "first-token-gap")[:1]:
            checks.matches(gap, {"hop": HOP, "evidence/bottleneck_thread": leg["thread"]}, "first-token-gap")
        case.compare(checks, report)
        return reported.get(case.verdict, "")

    return play
