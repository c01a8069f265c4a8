"""Runs a real `python -m sglang.launch_server`."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
# Everything runs on the CPU with one thread, without network access.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "all",
    "PYTHONPATH": str(HERE / "stubs"),
}
# Serves from threads of the scheduler, without ZMQ (0.5.17 and later).
RUST = {"SGLANG_RUST_SERVER": "1"}
# For several tokenizer workers.
PATIENT = {"PYTHONPATH": f"{HERE / 'stubs'}:{HERE / 'patient'}"}
# Omits events of chats.
LOSSY = {"PYTHONPATH": f"{HERE / 'stubs'}:{HERE / 'lossy'}"}
FLAGS = [
    *("--load-format", "dummy", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--dtype", "float32", "--disable-cuda-graph", "--host", "127.0.0.1"),
    *("--mem-fraction-static", "0.6", "--max-total-tokens", "60000", "--max-running-requests", "256"),
]
START_SECONDS = 400
STOP_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> str | None:
    fields = stat(pid)
    return fields[19] if fields else None


class Server:
    """A server that runs inside a `with` block. `wrap` precedes its command, and `env` is added to its environment."""

    def __init__(
        self, home: Path, release: str, flags: list[str], log: Path, wrap: list[str] = [], env: dict[str, str] = {}
    ):
        self.python = home / f"venv-{release}" / "bin" / "python"
        self.port = free_port()
        self.env = env
        self.log = log
        # Counts of its clients so far.
        self.truth: list[dict] = []
        self.command = [
            *wrap,
            *(str(self.python), "-m", "sglang.launch_server", "--model-path", str(home / "model"), *FLAGS),
            *("--port", str(self.port), *flags),
        ]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **ENVIRONMENT, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server exited with {self.process.returncode}: see {self.log}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"the server did not start within {START_SECONDS} s: see {self.log}")

    def generated(self) -> int | None:
        """Generated tokens according to the engine's metrics, which need `--enable-metrics`; `None` if the server has none (the Rust server
        before 0.5.23)."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
                lines = response.read().decode().splitlines()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None
        values = [line.split()[-1] for line in lines if line.startswith("sglang:generation_tokens_total{")]
        return int(sum(map(float, values)))

    def __exit__(self, *_) -> None:
        family = self.family()
        for how in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
            except ProcessLookupError:
                pass
            try:
                self.process.wait(STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        # Leave no process behind: the next search for an engine would find it.
        for pid, began in family.items():
            if started(pid) == began:
                os.kill(pid, signal.SIGKILL)

    def family(self) -> dict[int, str]:
        """The server's process and all its descendants, each with its start time."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := stat(int(entry.name))):
                parents[int(entry.name)] = int(fields[1])
        family = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return {pid: began for pid in family if (began := started(pid))}

    def pids(self) -> dict[str, int]:
        """Process ids by role, from SGLang's process titles."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.getpgid(int(entry.name)) != self.process.pid:
                    continue
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            for role in ("scheduler", "detokenizer", "tokenizer_worker"):
                if title.startswith(f"sglang::{role}"):
                    found[role] = int(entry.name)
            # Only the server itself matches: child processes have other titles, and a wrapper is not Python.
            if title.startswith(str(self.python)) and "-m sglang.launch_server" in title:
                found["tokenizer"] = int(entry.name)
        return found
