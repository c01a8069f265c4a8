"""Runs a real vLLM server, or a Dynamo worker with vLLM."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from ..real.server import free_port

HERE = Path(__file__).parent
RELEASE = "0.32.0"
# Dynamo's release, and the release of vLLM that it needs.
DYNAMO, DYNAMO_VLLM = "1.6.1", "0.31.0"
START_SECONDS, LOAD_SECONDS = 300, 300
FLAGS = [
    *("--served-model-name", "m", "--host", "127.0.0.1", "--load-format", "dummy", "--enforce-eager"),
    *("--distributed-executor-backend", "sleeping_executor.SleepingExecutor"),
    *("--max-model-len", "4096", "--max-num-seqs", "256"),
]
ENVIRONMENT = {
    **{"VLLM_TARGET_DEVICE": "cpu", "VLLM_PLUGINS": "delays", "PYTHONPATH": f"{HERE / 'plugins'}:{HERE.parents[1]}"},
    **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    **{"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
}


class NotUp(Exception):
    """The server did not start."""


class Server:
    """A server that runs inside a `with` block."""

    def __init__(self, home: Path, log: Path, flags: list[str], env: dict[str, str], under: list[str] = [], model: Path | None = None):
        self.python, self.log, self.port = home / f"venv-{RELEASE}/bin/python", log, free_port()
        vllm = home / f"venv-{RELEASE}/bin/vllm"
        self.command = [*under, str(self.python), str(vllm), "serve", str(model or home / "model"), *FLAGS, "--port", str(self.port), *flags]
        self.env = {**os.environ, **ENVIRONMENT, **env}

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = self.start(self.command, log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.is_up():
                    return self
            except OSError:
                pass
            time.sleep(0.5)
        ended = self.process.poll()
        self.__exit__()
        raise NotUp(f"not within {START_SECONDS} s" if ended is None else f"it exited with {ended}")

    def start(self, command: list[str], log) -> subprocess.Popen:
        return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def is_up(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
            return True

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def load(self, truth: Path, load: list[str], port: int | None = None, env: dict[str, str] = {}):
        """Runs the clients, which write their counts to `truth`. `env` is added to their environment."""
        if load[0] == "calls":
            command = [str(self.python), "-m", "testbed.vllm.calls", f"http://127.0.0.1:{port or self.port}", str(truth), load[1]]
            subprocess.run(command, cwd=HERE.parents[1], check=True, timeout=LOAD_SECONDS)
            return
        if load[0] == "first_tokens":
            options = ["--url", f"http://127.0.0.1:{self.port}", "--engine", "vllm", "--truth", str(truth), *load[1:]]
            subprocess.run([sys.executable, "-m", "testbed.first_tokens", *options], cwd=HERE.parents[1], check=True, timeout=LOAD_SECONDS)
            return
        clients = [str(self.python), str(HERE / "load.py"), f"http://127.0.0.1:{port or self.port}", str(truth), *load]
        subprocess.run(clients, env=os.environ | env, check=True, timeout=LOAD_SECONDS)

    def pid(self, title: str) -> int:
        """The server's process with this title or name."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().rstrip(b"\0").decode()
                if title in (command, (folder / "comm").read_text().strip()) and os.getpgid(int(folder.name)) == self.process.pid:
                    return int(folder.name)
            except OSError:
                continue
        raise RuntimeError(f"no process with the title {title}")


class DynamoWorker(Server):
    """A Dynamo worker with vLLM, and a frontend on `port`."""

    def __init__(self, home: Path, log: Path):
        super().__init__(home, log, [], {"PYTHONPATH": f"{home / f'dynamo-{DYNAMO}'}:{HERE / 'plugins'}", "DYN_FILE_KV": str(log.parent / "kv")})
        self.python = home / f"venv-{DYNAMO_VLLM}/bin/python"
        found = ["--discovery-backend", "file"]
        flags = [flag for flag in FLAGS if flag not in ("--host", "127.0.0.1")]
        self.command = [str(self.python), "-m", "dynamo.vllm", *found, "--model", str(home / "model"), *flags]
        self.frontend = [str(self.python), "-m", "dynamo.frontend", *found, "--http-host", "127.0.0.1", "--http-port", str(self.port)]

    def __enter__(self):
        with open(self.log.with_suffix(".frontend"), "wb") as log:
            self.front = self.start(self.frontend, log)
        return super().__enter__()

    def is_up(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5) as models:
            return bool(json.load(models)["data"])

    def __exit__(self, *_):
        self.front.kill()
        self.front.wait()
        super().__exit__()
