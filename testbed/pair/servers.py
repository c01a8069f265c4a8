"""A prefill and a decode server behind a router."""

import os
import signal
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from ..mixed import IDLE, Sglang
from ..real.server import HERE as REAL
from ..real.server import free_port

ROOT = Path(__file__).parents[2]
HOOKS = Path(__file__).parent / "hooks"
ROUTERS = {"sglang-router": ["--policy", "round_robin"], "mini-lb": ["--mini-lb"]}
# With more streams, requests wait in the decode server's queue.
DECODE_RUNNING = 16
FLAGS = [
    *("--disaggregation-transfer-backend", "mooncake", *IDLE),
    # For long prompts.
    *("--context-length", "16384"),
    # Times in the messages, and the same in the log.
    *("--enable-metrics", "--enable-request-time-stats-logging"),
]
DECODE_FLAGS = ["--disaggregation-mode", "decode", "--max-running-requests", str(DECODE_RUNNING)]
# The backup of retracted requests would be pinned memory, which needs a GPU.
DECODE_FLAGS_OF = {"0.5.23": ["--disaggregation-decode-retraction-backup", "cpu_tensor"]}
ENVIRONMENT = {
    **{"MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "WARNING"},
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
    **{"SGLANG_LOCAL_IP_NIC": "lo", "SGLANG_HOST_IP": "127.0.0.1", "HOST_IP": "127.0.0.1"},
    # Early transfers of cached prefixes need a GPU.
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
}
START_SECONDS = 60


class Router:
    """A router that runs inside a `with` block."""

    def __init__(self, command: list[str], port: int, packages: Path, log: Path):
        self.port, self.log = port, log
        self.command = [*command, "--host", "127.0.0.1", "--port", str(port)]
        self.env = {**os.environ, "PYTHONPATH": str(packages)}

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.2)
        self.__exit__()
        raise RuntimeError(f"the router did not start: see {self.log}")

    def __exit__(self, *_) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Pair:
    """Both servers and their router, which run inside a `with` block."""

    def __init__(self, home: Path, release: str, router: str, logs: Path):
        self.release, self.router_kind = release, router
        bootstrap, packages = str(free_port()), home / "pair"
        self.delay = logs / "delay"
        self.delay_transfers(0)
        env = {**ENVIRONMENT, "PYTHONPATH": f"{HOOKS}:{REAL / 'stubs'}:{packages}", "TRANSFER_DELAY": str(self.delay)}
        prefill = [*FLAGS, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", bootstrap]
        self.prefill = Sglang(home, release, prefill, logs / "prefill.log", env=env)
        decode = [*FLAGS, *DECODE_FLAGS, *DECODE_FLAGS_OF.get(release, [])]
        self.decode = Sglang(home, release, decode, logs / "decode.log", env=env)
        command = [
            *(str(self.prefill.python), "-m", "sglang_router.launch_router", "--pd-disaggregation"),
            *("--prefill", self.prefill.url, bootstrap, "--decode", self.decode.url, *ROUTERS[router]),
        ]
        self.router = Router(command, free_port(), packages, logs / "router.log")

    def __enter__(self):
        with ExitStack() as started:
            with ThreadPoolExecutor() as starting:
                list(starting.map(started.enter_context, self.servers()))
            started.enter_context(self.router)
            self.running = started.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self.running.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    def servers(self) -> list[Sglang]:
        return [self.prefill, self.decode]

    def side(self, name: str) -> Sglang:
        return {"prefill": self.prefill, "decode": self.decode}[name]

    def delay_transfers(self, milliseconds: int) -> None:
        self.delay.write_text(str(milliseconds))

    def run(self, module: str, truth: Path, *flags: str) -> None:
        """Runs clients of the router, which write what they counted."""
        clients = [str(self.prefill.python), "-m", module, "--url", self.url, "--truth", str(truth), *flags]
        subprocess.run(clients, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=300)

    def load(self, truth: Path, *flags: str) -> None:
        self.run("testbed.real.load", truth, "--cumulative", *flags)
