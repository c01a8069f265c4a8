"""Helpers of the whole-program benchmarks: processes, their cost from /proc, tmux, and results with their aims."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aims import AIMS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FIXTURE = ROOT / "zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl"
FRAME = ROOT / "engines/benches/decode/frame.py"
# Time limit of every wait, generous for a busy machine.
PATIENCE = 30
median = statistics.median


class Skipped(Exception):
    """The benchmark cannot run on this machine. The message gives the reason and what to install."""


def cargo(*words):
    subprocess.run(["cargo", *words], cwd=ROOT, check=True)


# The profile close to the shipped program's. Its results lie in the folder of `release`.
PROFILE = ("--profile", "bench")


def tokengap():
    cargo("build", "--quiet", *PROFILE, "--package", "tokengap")
    return TARGET / "release/tokengap"


def example(package, name):
    cargo("build", "--quiet", *PROFILE, "--package", package, "--example", name)
    return TARGET / "release/examples" / name


def compile_c(source, folder):
    """Compiles a peer in C, to exclude the overhead of a binding from the measurement."""
    program = Path(folder) / "peer"
    built = subprocess.run(["cc", "-O2", "-Wall", "-o", program, HERE / source, "-lzmq", "-pthread"], stderr=subprocess.DEVNULL)
    if built.returncode:
        raise Skipped("the peers need a C compiler and libzmq's headers: apt-get install gcc libzmq3-dev")
    return program


def python(*packages):
    """Python of a virtual environment with these packages, created on first use."""
    home = TARGET / "bench-venv"
    program = home / "bin/python"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [program, "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages]
    if subprocess.run(pip).returncode:
        raise Skipped(f"cannot install {' '.join(packages)}")
    return program


def root():
    if os.geteuid():
        raise Skipped("attaching to processes needs root")


class Process:
    """A child process with piped input and output, killed at the end of its block."""

    def __init__(self, *words, quiet=False):
        err = subprocess.DEVNULL if quiet else None
        words = [str(word) for word in words]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True)
        self.pid = self.child.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()

    def line(self):
        return self.child.stdout.readline().strip()

    def expect(self, word):
        line = self.line()
        if word not in line:
            raise RuntimeError(f"{self.child.args} printed {line!r} instead of {word!r}")
        return self

    def ask(self, words):
        self.write_line(words)
        return self.line()

    def write_line(self, words):
        self.child.stdin.write(f"{words}\n")
        self.child.stdin.flush()

    def interrupt(self):
        """Stops the process with SIGINT; returns its remaining output."""
        self.child.send_signal(signal.SIGINT)
        return self.child.communicate(timeout=PATIENCE)[0]


def attached(program, *words):
    """`tokengap attach` without a screen, once it has attached."""
    log = tempfile.NamedTemporaryFile("r", prefix="attach", suffix=".log")
    command = f'exec "$@" 2>{log.name}'
    process = Process("sh", "-c", command, "sh", program, "attach", "--headless", "--json", *words)
    until(lambda: "attached to" in Path(log.name).read_text() or process.child.poll() is not None, "attach")
    if process.child.poll() is not None:
        raise Skipped(Path(log.name).read_text().strip())
    return process


def until(condition, what):
    """Waits until the condition holds; returns its value and the seconds waited."""
    begun = time.monotonic()
    while not (value := condition()):
        if time.monotonic() > begun + PATIENCE:
            raise RuntimeError(f"timed out after {PATIENCE} s: {what}")
        time.sleep(0.002)
    return value, time.monotonic() - begun


def tree(pid):
    """A process and its children."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return [pid]


def cpu(pid, thread=None):
    """CPU seconds of a process and its children, or of their threads with one name, from the kernel scheduler's accounting."""
    tasks = [task for one in tree(pid) for task in Path(f"/proc/{one}/task").iterdir()]
    tasks = [task for task in tasks if thread is None or (task / "comm").read_text().strip() == thread]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_mib(pid, field="VmHWM"):
    """Peak resident memory of a process and its children."""
    status = [Path(f"/proc/{one}/status").read_text() for one in tree(pid)]
    return sum(int(text.split(f"{field}:")[1].split()[0]) for text in status if field in text) / 1024


def share(pid, seconds):
    """CPU use of a process in percent of a core, while this process sleeps."""
    before, begun = cpu(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu(pid) - before) / (time.monotonic() - begun) * 100


class Tmux:
    """A program in a separate tmux server."""

    def __init__(self, command, columns=200, rows=50):
        self.folder = tempfile.TemporaryDirectory()
        self.run("new-session", "-d", "-x", columns, "-y", rows, f"export LC_ALL=C.UTF-8; exec {command}")
        self.pid = int(self.run("display-message", "-p", "#{pane_pid}"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["tmux", "-S", f"{self.folder.name}/tmux", "kill-server"], stderr=subprocess.DEVNULL)
        self.folder.cleanup()

    def run(self, *words):
        command = ["tmux", "-S", f"{self.folder.name}/tmux", "-f", "/dev/null", *map(str, words)]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except FileNotFoundError:
            raise Skipped("no tmux: apt-get install tmux") from None

    def press(self, key):
        self.run("send-keys", key)

    def shows(self, condition):
        """Waits until the pane's text satisfies or contains `condition`; returns the seconds waited."""
        wanted = condition if callable(condition) else lambda pane: condition in pane
        return until(lambda: wanted(self.run("capture-pane", "-p")), f"the pane with {condition}")[1]


def number(value):
    """Three significant digits."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def result(key, value, **beside):
    """Prints a measurement with its aim, and keeps it for the table."""
    what, bound, limit, unit = AIMS[key]
    met = value <= limit if bound == "at most" else value >= limit
    others = "; ".join(f"{name.replace('_', ' ')} {number(other)}" for name, other in beside.items() if other is not None)
    print(f"aim: {what}: {number(value)} {unit}, {'met' if met else 'MISSED'} ({bound} {number(limit)}){', ' if others else ''}{others}")
    cells = [what, f"{bound} {number(limit)}", f"{number(value)} {unit}", "met" if met else "**missed**", others]
    RESULTS[key] = f"| {' | '.join(cells)} |"


RESULTS = {}


def table():
    """The table of all aims; those without a result are marked."""
    lines = ["| what | aim | measured | | for comparison, in the same run |", "|---|---|---|---|---|"]
    for key, (what, bound, limit, _) in AIMS.items():
        lines.append(RESULTS.get(key, f"| {what} | {bound} {number(limit)} | not measured | | |"))
    return "\n".join(lines)
