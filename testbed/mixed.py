"""`python3 -m testbed.mixed --tokengap FILE --sglang DIR --vllm DIR`: one `attach` on four real engines, three of SGLang and one of vLLM.

Every number must equal the clients' counts of that engine, and only an engine that is stopped may have a finding about it. The folders are
those of `real/install.sh` (0.5.9 and 0.5.23) and `vllm/install.sh`. Needs root and 12 GB of memory. The servers start one after the other,
in about five minutes of two cores.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from .real.compare import SLOW, Checks, compare, records
from .real.server import Server as SglangServer
from .real.server import started
from .vllm.__main__ import differences
from .vllm.server import Server as VllmServer

ROOT = Path(__file__).parents[1]
LOAD_SECONDS = 12
# A load that two cores carry: an engine that runs has a CPU when it needs one, and no finding.
TOKENS, PAUSE_SECONDS = "16", "0.4"
# A step of vLLM's executor.
STEP = {"STEP_MS": "30"}
STOP_AFTER, STOP_SECONDS = 4, 3
# Findings about an engine that does not run.
STOPPED = {"consumer-stopped", "engine-silent"}
# Between two requests, no frame waits for an engine that is stopped, but the next requests wait in its socket.
UNREAD = {"late-read"}
# A difference of testbed.vllm that a client without a CPU makes, too.
LATE_CLIENT = "longest time between events"
# A scheduler without requests sleeps, so that the other engines have its core.
IDLE = ["--sleep-on-idle", "--skip-server-warmup"]


class Sglang(SglangServer):
    """An SGLang server whose clients count."""

    def name(self) -> str:
        return f"sglang:{self.port}"

    def main_pid(self) -> int:
        return self.pids()["tokenizer"]

    def load(self, truth: Path, seed: int, seconds: float = LOAD_SECONDS) -> None:
        flags = ["--cumulative", "--streams", "2", "--seconds", str(seconds), "--tokens", TOKENS, "--pause", PAUSE_SECONDS, "--seed", str(seed)]
        clients = [str(self.python), "-m", "testbed.real.load", "--url", self.url, "--truth", str(truth), *flags]
        subprocess.run(clients, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=300)

    def compare(self, checks: Checks, report: dict, truth: Path) -> int:
        # Clients that left or aborted, of which only the engine knows all tokens, are not among these.
        compare(checks, records(truth), report, SLOW | STOPPED)
        return report["tokens"]["sent"]


class Vllm(VllmServer):
    """A vLLM server whose clients count."""

    LOAD = ["2", str(LOAD_SECONDS), TOKENS, "0"]

    def name(self) -> str:
        return f"vllm:{self.port}"

    def main_pid(self) -> int:
        return self.process.pid

    def family(self) -> dict[int, str]:
        return {pid: began for pid in processes_of_group(self.process.pid) if (began := started(pid))}

    def load(self, truth: Path, seed: int, seconds: float = LOAD_SECONDS) -> None:
        super().load(truth, [self.LOAD[0], str(seconds), *self.LOAD[2:], str(seed)], env={"PAUSE": PAUSE_SECONDS})

    def compare(self, checks: Checks, report: dict, truth: Path) -> int:
        wrong = differences(report, records(truth), self.LOAD, [])
        checks.made += 1
        expected = [f"finding {kind}" for kind in STOPPED]
        checks.failed += [line for line in wrong if line not in expected and not line.startswith(LATE_CLIENT)]
        return report["tokens"]["sent"]


def processes_of_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
        except ProcessLookupError:
            pass
    return found


def stop(server, whole: bool) -> None:
    """Stops the process that answers clients for a while, or all processes of the engine."""
    pids = list(server.family()) if whole else [server.main_pid()]
    time.sleep(STOP_AFTER)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOP_SECONDS)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


class Attach:
    """`tokengap attach` on all engines of this machine, or on those that `flags` select, in a `with` block."""

    def __init__(self, tokengap: Path, folder: Path, engines: list, *flags: str):
        self.folder, self.engines = folder, engines
        self.command = [str(tokengap), "attach", "--headless", "--json", "--slowest", "100000", "--duration", "300s", *flags]

    def __enter__(self):
        errors = self.folder / "attach.err"
        with open(self.folder / "report.json", "wb") as out, open(errors, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        deadline = time.monotonic() + 60
        while not all(f"of {engine.name()} (main pid" in errors.read_text() for engine in self.engines):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"attach did not find all engines: {errors.read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_) -> None:
        # The last responses are observed when they end.
        time.sleep(1)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def reports(self) -> dict[str, dict]:
        whole = json.loads((self.folder / "report.json").read_text())
        return {run["name"]: run["report"] for run in whole["runs"]}


def run_row(tokengap: Path, folder: Path, engines: list, seed: int, stopped=None, whole: bool = False) -> Checks:
    """Loads all engines at once under one attach. One of them is stopped meanwhile, unless `stopped` is `None`."""
    checks, truths = Checks(), {engine.name(): folder / f"{engine.name()}.jsonl" for engine in engines}
    loads = [threading.Thread(target=engine.load, args=(truths[engine.name()], seed + n)) for n, engine in enumerate(engines)]
    if stopped:
        loads.append(threading.Thread(target=stop, args=(stopped, whole)))
    with Attach(tokengap, folder, engines) as attach:
        for load in loads:
            load.start()
        for load in loads:
            load.join()
    reports = attach.reports()
    for engine in engines:
        report, own = reports[engine.name()], Checks()
        tokens = engine.compare(own, report, truths[engine.name()])
        own.equal("observations missed", 0, report["self"]["events_missed"])
        kinds = {finding["kind"] for finding in report["findings"] if finding["severity"] != "info"}
        if engine is stopped:
            own.equal(f"a finding about its stop, among {sorted(kinds)}", True, bool(kinds & (STOPPED | UNREAD)))
        else:
            own.equal("findings of an engine that runs", [], sorted(kinds))
        checks.made += own.made
        checks.failed += [f"{engine.name()}: {line}" for line in own.failed]
        print(f"         {engine.name():14} {tokens:6} tokens  {report['verdict'][:120]}")
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m testbed.mixed", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--sglang", type=Path, required=True, help="folder of the SGLang servers")
    parser.add_argument("--vllm", type=Path, required=True, help="folder of the vLLM server")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the rows' files")
    wanted = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="mixed-", dir=wanted.keep))
    servers = [
        Sglang(wanted.sglang, "0.5.9", IDLE, logs / "0.5.9.log"),
        Sglang(wanted.sglang, "0.5.23", IDLE, logs / "0.5.23.log"),
        Sglang(wanted.sglang, "0.5.23", IDLE, logs / "msgpack.log", env={"SGLANG_USE_PICKLE_IPC": "0"}),
        Vllm(wanted.vllm, logs / "vllm.log", [], STEP),
    ]
    failed = 0
    with ExitStack() as running:
        for number, server in enumerate(servers):
            running.enter_context(server)
            server.load(logs / "warm.jsonl", 90 + number, 1)
        rows = [("all run", None, False)]
        rows += [(f"{server.name()} does not answer", server, False) for server in servers]
        rows += [(f"{server.name()} stops", server, True) for server in (servers[1], servers[3])]
        for number, (name, stopped, whole) in enumerate(rows):
            folder = logs / str(number)
            folder.mkdir()
            checks = run_row(wanted.tokengap.resolve(), folder, servers, 10 * number, stopped, whole)
            verdict = "FAILED" if checks.failed else "ok"
            failed += bool(checks.failed)
            print(f"{verdict:6} {name:40} {checks.made:4} checks", flush=True)
            for line in checks.failed:
                print(f"         {line[:400]}")
    print(f"{failed} rows failed; files: {logs}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
