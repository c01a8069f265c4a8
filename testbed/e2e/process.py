"""Child processes of a row, and the endpoints that connect them."""

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def until(done, seconds: float, what: str, pause: float = 0.02):
    """Waits until `done()` returns a true value, and returns that value."""
    ends = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > ends:
            raise RuntimeError(f"timed out after {seconds} s: {what}")
        time.sleep(pause)
    return found


class Process:
    """A running child. Standard output is read line by line; standard error goes to a file in `folder`."""

    def __init__(self, name: str, command: list, folder: Path, env: dict[str, str] = {}, cwd: Path = ROOT):
        self.name = name
        self.stderr = folder / f"{name}.stderr"
        # Importing hundreds of modules takes seconds without cached bytecode.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | env
        with open(self.stderr, "wb") as errors:
            self.child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=cwd,
                text=True,
                bufsize=1,
            )
        self.lines: queue.SimpleQueue = queue.SimpleQueue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        for line in self.child.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    @property
    def pid(self) -> int:
        return self.child.pid

    def line(self, word: str, seconds: float) -> str:
        """Waits for a line of standard output that begins with `word`; returns the rest of the line."""
        ends = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0, ends - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"{self.name} did not print {word} within {seconds} s{self.stderr_tail()}") from None
            if line is None:
                raise RuntimeError(f"{self.name} exited before it printed {word}{self.stderr_tail()}")
            if line.startswith(word):
                return line[len(word) :].strip()

    def wait_for_stderr(self, word: str, seconds: float, times: int = 1) -> None:
        """Waits until standard error contains `word` the given number of times."""

        def contains() -> bool:
            if self.stderr.read_text().count(word) >= times:
                return True
            self.check()
            return False

        until(contains, seconds, f"{self.name} did not log {word!r}")

    def write_line(self, word: str) -> None:
        try:
            self.child.stdin.write(f"{word}\n")
            self.child.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"sending {word} to {self.name}: {error}{self.stderr_tail()}") from None

    def stop(self) -> None:
        """Asks it to stop; it may have exited already."""
        try:
            self.write_line("stop")
        except RuntimeError:
            pass

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def check(self) -> None:
        """Fails if it has exited."""
        if self.child.poll() is not None:
            raise RuntimeError(f"{self.name} exited with {self.child.returncode}{self.stderr_tail()}")

    def end(self, seconds: float) -> tuple[int, list[str]]:
        """Waits for its exit; returns its status and the unread lines of standard output."""
        try:
            status = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.name} did not exit within {seconds} s{self.stderr_tail()}") from None
        self.reader.join()
        lines = []
        while not self.lines.empty():
            lines.append(self.lines.get())
        return status, [line for line in lines if line is not None]

    def end_well(self, seconds: float) -> str:
        """Waits for its exit and expects success; returns its output."""
        status, lines = self.end(seconds)
        if status != 0:
            raise RuntimeError(f"{self.name} exited with {status}{self.stderr_tail()}")
        return "\n".join(lines)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def kill_running(self) -> None:
        """Kills it with SIGKILL and checks that the signal caused the exit."""
        self.kill()
        if self.child.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{self.name} exited with {self.child.returncode} before it was killed{self.stderr_tail()}")

    def stderr_tail(self) -> str:
        tail = self.stderr.read_text(errors="replace").splitlines()[-12:]
        return "; it said:\n    " + "\n    ".join(tail) if tail else ""


def free_port() -> int:
    """A port that is free now. Another process is unlikely to get it before it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def endpoint(folder: Path, name: str, tcp: bool = False) -> str:
    """A new endpoint; `name` is unique within `folder`."""
    return f"tcp://127.0.0.1:{free_port()}" if tcp else f"ipc://{folder / name}"


def is_bound(where: str) -> bool:
    """Returns whether the endpoint has a listener, without connecting, because a connection would count as traffic."""
    scheme, _, address = where.partition("://")
    if scheme == "ipc":
        # Flags 00010000: accepting connections. A socket file without a listener is not in this list.
        lines = Path("/proc/net/unix").read_text().splitlines()
        return any(line.endswith(f" {address}") and " 00010000 " in line for line in lines)
    port = f":{int(address.rpartition(':')[2]):04X}"
    # Fields of a line: number, local address, remote address, state (0A: listening).
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(field[1].endswith(port) and field[3] == "0A" for field in fields)


def wait_until_bound(where: str, by: Process) -> None:
    def bound() -> bool:
        by.check()
        return is_bound(where)

    until(bound, 10, f"no listener on {where}", 0.005)


def connect(where: str) -> socket.socket:
    """Connects a plain socket to a ZMQ endpoint."""
    scheme, _, address = where.partition("://")
    if scheme == "ipc":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(address)
        return peer
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))
