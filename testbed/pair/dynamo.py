"""`python3 -m testbed.pair.dynamo --tokengap FILE --home DIR`: one `attach` on a prefill and a decode worker of Dynamo, behind its frontend.

Every request must be joined by its room, and its numbers must equal the clients' counts. DIR is that of `real/install.sh`, with Dynamo
(`dynamo.sh DIR`). The servers are those of 0.5.23, which Dynamo 1.6.1 accepts, though it asks for 0.5.21. Needs root and 6 GB of memory.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from ..real.__main__ import Lane
from ..real.compare import SLOW, Checks, expect_findings, records
from ..real.server import ENVIRONMENT as ENVIRONMENT_OF_SERVER
from ..real.server import FLAGS as FLAGS_OF_SERVER
from ..real.server import HERE as REAL
from ..real.server import free_port
from .servers import DECODE_FLAGS, DECODE_FLAGS_OF, ENVIRONMENT, FLAGS, HOOKS, ROOT

RELEASE, DYNAMO = "0.5.23", "dynamo-1.6.1"
START_SECONDS, ATTACH_SECONDS, LOAD_SECONDS = 400, 60, 300
FOUND = ["--discovery-backend", "file"]
# Streams, seconds, tokens, share that leaves, seed, source of the counts.
LOAD = ["4", "8", "24", "0", "1", "text"]


class Workers:
    """Both workers and the frontend, which run inside a `with` block."""

    def __init__(self, home: Path, logs: Path):
        self.python, self.port, self.logs = home / f"venv-{RELEASE}/bin/python", free_port(), logs
        (logs / "delay").write_text("0")
        packages = [HOOKS, home / DYNAMO, REAL / "stubs", home / "pair"]
        self.env = {
            **{**os.environ, **ENVIRONMENT_OF_SERVER, **ENVIRONMENT, "DYN_FILE_KV": str(logs / "found"), "TRANSFER_DELAY": str(logs / "delay")},
            "PYTHONPATH": ":".join(map(str, packages)),
        }
        bootstrap = ["--disaggregation-bootstrap-port", str(free_port())]
        worker = ["dynamo.sglang", *FOUND, "--model-path", str(home / "model"), "--served-model-name", "m", *FLAGS_OF_SERVER, *FLAGS]
        self.commands = {
            "frontend": ["dynamo.frontend", *FOUND, "--http-host", "127.0.0.1", "--http-port", str(self.port)],
            "prefill": [*worker, "--disaggregation-mode", "prefill", *bootstrap, "--port", str(free_port())],
            "decode": [*worker, *DECODE_FLAGS, *DECODE_FLAGS_OF[RELEASE], "--port", str(free_port())],
        }
        self.processes: dict[str, subprocess.Popen] = {}

    def __enter__(self):
        for name, command in self.commands.items():
            with open(self.logs / f"{name}.log", "wb") as log:
                words = [str(self.python), "-m", *command]
                self.processes[name] = subprocess.Popen(
                    words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        try:
            self.wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_until_up(self) -> None:
        """Waits until the frontend answers with a token of both workers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} exited with {process.returncode}: see {self.logs}")
            try:
                self.load(self.logs / "warm.jsonl", ["1", "1", "8", "0", "9", "text"])
                if all(line["status"] == 200 for line in records(self.logs / "warm.jsonl")):
                    return
            except (OSError, subprocess.SubprocessError):
                pass
            time.sleep(2)
        raise RuntimeError(f"the workers did not start within {START_SECONDS} s: see {self.logs}")

    def load(self, truth: Path, load: list[str]) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5) as models:
            if not json.load(models)["data"]:
                raise OSError("no model yet")
        command = [str(self.python), str(ROOT / "testbed/vllm/load.py"), f"http://127.0.0.1:{self.port}", str(truth), *load]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_SECONDS)

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def attached(tokengap: Path, workers: Workers, folder: Path) -> tuple[dict[str, dict], list[dict]]:
    """Attaches to both workers during a load. Returns the reports by side, and the clients' counts."""
    errors, truth = folder / "attach.err", folder / "truth.jsonl"
    pids = [word for side in ("prefill", "decode") for word in ("--pid", str(workers.processes[side].pid))]
    command = [str(tokengap), "attach", *pids, "--headless", "--json", "--slowest", "100000", "--record", str(folder / "run.tgap")]
    with open(folder / "report.json", "wb") as out, open(errors, "wb") as log:
        attach = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
    try:
        deadline = time.monotonic() + ATTACH_SECONDS
        while errors.read_text().count("attached to") < 2:
            if attach.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"attach did not find both workers: {errors.read_text()}")
            time.sleep(0.1)
        workers.load(truth, LOAD)
        time.sleep(1)
    finally:
        attach.send_signal(signal.SIGINT)
        attach.wait(60)
    runs = json.loads((folder / "report.json").read_text())["runs"]
    return {run["side"]: run["report"] for run in runs}, records(truth)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m testbed.pair.dynamo", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--home", type=Path, required=True, help="folder of the servers installed by install.sh")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the row's files")
    wanted = parser.parse_args()
    wanted.only = None
    lane, logs = Lane(wanted), Path(tempfile.mkdtemp(prefix="dynamo-", dir=wanted.keep))
    with Workers(wanted.home, logs) as workers:

        def run(folder: Path, checks: Checks) -> str:
            reports, truth = attached(lane.tokengap, workers, folder)
            prefill, decode = reports["prefill"], reports["decode"]
            tokens = sum(line["completion"] for line in truth)
            for side, report in reports.items():
                checks.equal(f"{side}: requests", len(truth), report["requests"]["seen"])
                checks.equal(f"{side}: observations missed", 0, report["self"]["events_missed"])
                expect_findings(checks, report, SLOW)
            checks.equal("prefill: tokens sent", len(truth), prefill["tokens"]["sent"])
            # Streams that do not identify their request are judged alone or not at all, so that fewer tokens count as delivered.
            answers, lost = decode["answers"], decode["chunks"]["tokens_lost"]
            checks.equal("decode: tokens sent, claimed, lost", [tokens, tokens, 0], [decode["tokens"]["sent"], answers["tokens_claimed"], lost])
            checks.equal("decode: responses", len(truth), answers["seen"])
            counts = [decode["pair"][name] for name in ("requests", "decode_only", "prefill_only", "requests_evicted")]
            checks.equal("requests joined, of one worker only, evicted", [len(truth), 0, 0, 0], counts)
            delivered = decode["tokens"]["delivered"]
            return f"{len(truth)} requests, {tokens} tokens, {delivered} of them delivered; {decode['pair']['headline']}; {decode['verdict'][:200]}"

        lane.row("Dynamo's prefill and decode workers", run)
    print(f"{lane.failed} rows failed")
    return 1 if lane.failed else 0


if __name__ == "__main__":
    sys.exit(main())
