"""One run of the engine: starts and stops its processes in order, with a relay, with attach, or unobserved."""

import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from .process import Process, endpoint, free_port, wait_until_bound

# Time limit: importing a release takes seconds on a busy machine.
STARTUP = 120
# Time limit of every process of a run.
DEADLINE = 90
# Time limit: scanning the processes of a busy machine and attaching to each takes seconds.
ATTACHING = 60
# One sender, no special cases: see testbed/plan.py for the meaning of each number.
PLAIN = dict(senders=1, requests=64, tokens=100, rounds=1, burst=1, stagger=0, stops=0, aborts=0, queued_aborts=0, unary=0)
# All stream variants: staggered starts, bursts, stops, aborts, and requests that do not stream.
MIXED = PLAIN | dict(requests=40, tokens=80, rounds=2, burst=3, stagger=1, stops=5, aborts=4, queued_aborts=3, unary=6)
# Attach reports every request. The duration is only a safety limit.
REPORTED = ("--headless", "--json", "--slowest", "100000", "--duration", "300s")


@dataclass(frozen=True)
class Engine:
    """A release and its wire format."""

    release: str
    msgpack: bool = False

    @property
    def name(self) -> str:
        return self.release + ("-msgpack" if self.msgpack else "")


@dataclass(frozen=True)
class Setting:
    """Default: one sender directly to the tokenizer over ipc, with every kind of request."""

    plan: dict = field(default_factory=lambda: MIXED)
    tcp: bool = False
    # Put a detokenizer into the path, which adds a second hop.
    detokenizer: bool = False
    # Start receiving only after everything has been sent.
    backlog: bool = False
    # Run a scheduler step only when all clients have the output of the previous one (`Session.walk`).
    lockstep: bool = False
    # Pause between two scheduler steps.
    gap_ms: int = 2
    # Run clients in a separate process that uses HTTP.
    http: bool = False
    # Start them last, because some releases write the head of a response at once, which attach then does not observe.
    late_clients: bool = False
    # Relay the HTTP responses as well.
    http_relayed: bool = False
    # Further options of `python -m testbed ... receive`, `send` and `client`.
    receiver: tuple = ()
    sender: tuple = ()
    clients: tuple = ()


class Truth:
    """The truth file of one process; see testbed/truth.py."""

    def __init__(self, path: Path):
        self.sent: list[dict] = []
        self.received: list[dict] = []
        self.clients: list[dict] = []
        self.totals: dict = {}
        lists = {"sent": self.sent, "received": self.received, "client": self.clients}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            kind = record.pop("kind")
            if kind == "totals":
                self.totals = record
            else:
                lists[kind].append(record)
        if not self.totals:
            raise RuntimeError(f"{path} has no totals: its process did not exit properly")


@dataclass
class Outcome:
    senders: list[Truth]
    detokenizer: Truth | None
    receiver: Truth
    # The HTTP clients.
    clients: Truth | None
    # Report of the last tap or of attach, if any.
    report: dict | None

    @property
    def lost(self) -> int:
        """Tokens lost by clients, according to their own counts."""
        return (self.clients or self.receiver).totals["lost"]


class Run:
    """Context of a row: its folder, checks and programs. Ends every process that it started."""

    def __init__(self, options, engine: Engine, name: str, folder: Path, checks):
        self.options, self.engine, self.name, self.folder, self.checks = options, engine, name, folder, checks
        # The program under test; `None` with a relay that only copies.
        self.program: Path | None = options.tokengap
        self.relay: Path = options.tokengap or options.xtask
        # Further environment variables of the harness's processes.
        self.variables: dict[str, str] = {}
        self.started: list[Process] = []

    def start(self, name: str, command: list, folder: Path | None = None, **more) -> Process:
        process = Process(name, command, folder or self.folder, **more)
        self.started.append(process)
        return process

    def place(self, name: str) -> Path:
        """A new folder below the row's own."""
        (place := self.folder / name).mkdir()
        return place

    def role(self, role: str, name: str, options: list, folder: Path | None = None, truth: bool = True, under=(), **more) -> Process:
        """Starts a process of the harness, with its truth in `NAME.truth`, as an argument of the command `under`."""
        release = self.engine.release
        # The server's command line shows the streaming mode, and that consumers are in the same process.
        launched = role == "receive" and "--stream-output" in options
        command = [self.options.python, *(["testbed/sglang/launch_server.py"] if launched else ["-m", "testbed"]), release, role]
        command += ["--wait-go", "--deadline", DEADLINE, *options]
        if truth:
            command += ["--truth", (folder or self.folder) / f"{name}.truth"]
        return self.start(name, [*under, *command], folder, env=self.environment(), **more)

    def environment(self) -> dict[str, str]:
        # Use the path of a real installation, because attach detects the release from it.
        source = self.options.engines / self.engine.release
        return {"PYTHONPATH": str(source), "SGLANG_USE_PICKLE_IPC": "0" if self.engine.msgpack else "1", **self.variables}

    def close(self) -> None:
        for process in self.started:
            process.kill()


def plan_options(plan: dict) -> list[str]:
    return [word for name, value in plan.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def pairs(flag: str, values: list) -> list:
    return [word for value in values for word in (flag, value)]


@dataclass
class Splice:
    """Endpoints of a relay: senders connect to `front`, the receiver binds `back`."""

    front: str
    back: str
    # Hop name for the tap, which otherwise knows only the sender.
    hop: str | None = None

    @classmethod
    def new(cls, relay, folder: Path, name: str, tcp: bool = False, hop: str | None = None):
        back = endpoint(folder, name, tcp)
        return cls(endpoint(folder, f"{name}.tap", tcp) if relay else back, back, hop)


class Tap:
    """A running relay: `tokengap tap`, or `xtask plain-relay`, which copies without a report."""

    def __init__(self, run: Run, relay: Path, name: str, splices: list[Splice], folder: Path):
        self.plain = relay == run.options.xtask
        command = [relay, "plain-relay"] if self.plain else [relay, "tap", *REPORTED]
        for splice in splices:
            command += ["--listen", splice.front, "--upstream", splice.back, *(["--hop", splice.hop] if splice.hop else [])]
        self.process = run.start(name, command, folder)
        for splice in splices:
            wait_until_bound(splice.front, self.process)

    def report(self, number: int) -> dict | None:
        """Stops it with a signal and returns its report."""
        if self.plain:
            return self.process.kill_running()
        self.process.signal(number)
        return json.loads(self.process.end_well(15))


class Watch:
    """A running `tokengap attach` with its probes attached."""

    def __init__(self, run: Run, pid: int, *flags: str, folder: Path | None = None, under=()):
        def attach(name: str, *which) -> Process:
            process = run.start(name, [*under, run.program, "attach", *REPORTED, *which, *flags], folder)
            process.wait_for_stderr("attached to", ATTACHING)
            return process

        self.process = attach("attach")
        if " engines: " in self.process.stderr.read_text():
            # Another engine runs on this machine: pass one pid of this run, from which attach must find the others.
            self.process.kill_running()
            self.process = attach("attach-pid", "--pid", str(pid))

    def report(self) -> dict:
        self.process.signal(signal.SIGINT)
        return json.loads(self.process.end_well(ATTACHING))


class Session:
    """A run with all processes connected, before anything is sent. `relay` is a program, or `None` for direct connections."""

    def __init__(self, run: Run, setting: Setting, relay: Path | None, folder: Path | None = None, receiver_under=()):
        self.run, self.setting, self.relay, self.folder = run, setting, relay, folder or run.folder
        plan = plan_options(setting.plan)
        both = [*(["--detokenizer"] if setting.detokenizer else []), *(["--lockstep"] if setting.lockstep else []), *plan]
        tokenizer = self.splice("tokenizer", "detokenizer->tokenizer")
        into, self.splices, self.detokenizer, self.clients = tokenizer, [tokenizer], None, None
        http = ["--http"] if setting.http else []
        options = ["--bind", tokenizer.back, *setting.receiver, *http, *both]
        self.receiver = run.role("receive", "receiver", options, self.folder, under=receiver_under)
        if setting.detokenizer:
            into = self.splice("detokenizer", "scheduler->detokenizer")
            self.splices.insert(0, into)
            ends = ["--bind", into.back, "--connect", tokenizer.front, *plan]
            self.detokenizer = self.role("detokenize", "detokenizer", ends)
        # Format: READY pid endpoint url
        url = self.receiver.line("READY", STARTUP).split()[-1]
        if relay and setting.http_relayed:
            self.splices.append(Splice(f"http://127.0.0.1:{free_port()}", url))
            url = self.splices[-1].front
        if self.detokenizer:
            self.detokenizer.line("READY", STARTUP)
        self.taps, self.tap = 0, None
        self.start_tap()
        self.url = url
        if setting.http and not setting.late_clients:
            self.start_clients()
        options = ["--connect", into.front, "--control", tokenizer.front, "--health-every", 25]
        options += ["--gap", f"{setting.gap_ms}e-3", *setting.sender, *both]
        numbers = range(setting.plan["senders"])
        self.senders = [self.role("send", f"sender{n}", [*options, "--sender", n]) for n in numbers]
        for sender in self.senders:
            sender.line("READY", STARTUP)

    def start_clients(self) -> None:
        options = ["--url", self.url, *self.setting.clients, *plan_options(self.setting.plan)]
        self.clients = self.role("client", "clients", options)
        self.clients.line("READY", STARTUP)

    def role(self, role: str, name: str, options: list) -> Process:
        return self.run.role(role, name, options, self.folder)

    def splice(self, name: str, hop: str) -> Splice:
        hop = hop if self.setting.detokenizer else None
        return Splice.new(self.relay, self.folder, name, self.setting.tcp, hop)

    def start_tap(self) -> None:
        if self.relay:
            self.tap = Tap(self.run, self.relay, f"tap{self.taps}", self.splices, self.folder)
            self.taps += 1

    def go(self) -> None:
        """Starts the senders, and the receiver unless the setting wants a backlog."""
        if self.setting.http and not self.clients:
            self.start_clients()
        receiver = [] if self.setting.backlog else [self.receiver]
        detokenizer = [self.detokenizer] if self.detokenizer else []
        for process in [*receiver, *detokenizer, *self.senders]:
            process.write_line("go")

    def walk(self) -> None:
        """Runs the only scheduler step by step, each step after all earlier frames have reached their clients. The clients' outputs then do
        not depend on timing."""
        received, left = 0, 1
        while left:
            self.senders[0].write_line("step")
            total, left = map(int, self.senders[0].line("STEPPED", STARTUP).split())
            for received in range(received, total):
                self.receiver.line("TOOK", STARTUP)
            received = total

    def replace_tap(self, pause: float) -> tuple[int, int]:
        """Kills the tap with SIGKILL, waits, and starts another. Returns both times (CLOCK_MONOTONIC, ns)."""
        self.tap.process.kill_running()
        killed = time.monotonic_ns()
        time.sleep(pause)
        self.start_tap()
        return killed, time.monotonic_ns()

    def finish(self) -> Outcome:
        """Waits for the senders, drains the path, stops every process and reads the truth files."""
        patience = DEADLINE + 15
        # Detect a receiver that fails early; otherwise the senders would wait until their deadline.
        while any(sender.child.poll() is None for sender in self.senders):
            self.receiver.check()
            time.sleep(0.02)
        for sender in self.senders:
            sender.end_well(patience)
        if self.detokenizer:
            self.detokenizer.stop()
            self.detokenizer.end_well(patience)
        if self.setting.backlog:
            # Everything has been sent: wait until the last frames have crossed the relay into the receiver's queue.
            time.sleep(0.3)
            self.receiver.write_line("go")
        if self.clients:
            self.clients.end_well(patience)
        self.receiver.stop()
        self.receiver.end_well(patience)
        # SIGTERM as by a supervisor, or SIGINT as by a terminal: both must drain and report.
        report = self.tap.report(signal.SIGINT if self.setting.tcp else signal.SIGTERM) if self.tap else None
        truth = {process.name: Truth(self.folder / f"{process.name}.truth") for process in self.processes()}
        senders = [truth.pop(sender.name) for sender in self.senders]
        return Outcome(senders, truth.get("detokenizer"), truth["receiver"], truth.get("clients"), report)

    def processes(self) -> list[Process]:
        return [p for p in (*self.senders, self.detokenizer, self.receiver, self.clients) if p]


def tapped(run: Run, setting: Setting) -> Outcome:
    """A complete run through relays."""
    session = Session(run, setting, run.relay)
    session.go()
    return session.finish()


def attached(run: Run, setting: Setting, *flags: str) -> Outcome:
    """A complete run under attach."""
    session = Session(run, setting, None)
    watch = Watch(run, session.receiver.pid, *flags)
    session.go()
    outcome = session.finish()
    outcome.report = watch.report()
    return outcome
