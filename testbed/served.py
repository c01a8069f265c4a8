"""An engine that serves HTTP clients until it is stopped, as a target for checks of `attach`."""

import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLAN = "--senders 1 --requests 8 --tokens 100 --rounds 0 --burst 1 --stagger 0".split()


class Served:
    """Tokenizer, clients and scheduler of `release`, with 8 requests at a time and a step every 5 ms.

    `wrapper` precedes every command line. Standard error goes to files in `folder`."""

    def __init__(self, release, folder, wrapper=(), deadline_s=300):
        self.release, self.folder, self.wrapper, self.deadline_s = release, Path(folder), wrapper, deadline_s
        self.processes = []

    def __enter__(self):
        endpoint = f"ipc://{self.folder}/tokenizer"
        try:
            receiver, ready = self._start("receive", "--bind", endpoint, "--http")
            self.pid = receiver.pid
            self._start("client", "--url", ready.split()[-1])
            sender, _ = self._start("send", "--connect", endpoint, "--control", endpoint, "--sender", "0",
                                    "--health-every", "25", "--gap", "5e-3")  # fmt: skip
            for process in (receiver, sender):
                print("go", file=process.stdin, flush=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self, role, *options):
        command = [*self.wrapper, str(ROOT / ".venv-testbed/bin/python"), "-m", "testbed", self.release, role]
        command += ["--wait-go", "--deadline", str(self.deadline_s), *PLAN, *options]
        # attach detects the release from the path.
        env = os.environ | {"PYTHONPATH": str(ROOT / ".engine" / self.release), "SGLANG_USE_PICKLE_IPC": "1"}
        with open(self.folder / f"{role}.stderr", "w") as errors:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, text=True)  # fmt: skip
        self.processes.append(process)
        for line in process.stdout:
            if line.startswith("READY"):
                return process, line
        raise SystemExit(f"the engine's {role} exited: {(self.folder / f'{role}.stderr').read_text()[-2000:]}")


def shared_folder():
    """A temporary folder that engines of other users can write to."""
    folder = tempfile.TemporaryDirectory()
    os.chmod(folder.name, 0o777)
    return folder
