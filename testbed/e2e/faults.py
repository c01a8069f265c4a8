"""`python -m testbed.e2e.faults`: faults of the relay and its environment. Real peers on both sides compare received and sent bytes.

Prints a line of JSON for each fault, for `cargo xtask faults`.
"""

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from .checks import Checks, at, degraded, number
from .peers import GREETING, HANDSHAKE, Arrived, Load, Receiver, Sender, claim, reset, send_raw, send_more
from .process import endpoint, until, wait_until_bound
from .session import Engine, Run
from .soak import Resources

# Time limit for exit. Draining takes at most 2.5 s; the rest allows for a busy machine.
ENDING = 60
STEADY = Load()
SMALL = Load(sizes="small")
# Bytes that the tap buffers for each connection (`zmq_tap::relay::Options::buffer_bytes`).
BUFFER = 128 << 10
# Limit of the tap's memory above its idle use in KiB: the byte budget, the queue, and allocator slack.
BUDGET = 160 << 10
RECORDED = ("--record", "run.tgap")


@dataclass(frozen=True)
class Environment:
    """Environment of the relay."""

    # Further options of `tokengap tap`.
    options: tuple[str, ...] = ()
    # Shell command to run first in the same process, for example to set limits.
    before: str = "true"
    # Use a separate mount namespace.
    own_mounts: bool = False
    # Injected fault (`trace::fault`); needs the fault-injection build.
    fault: str = ""


class Line:
    """Senders, a tap and a receiver that are connected."""

    def __init__(self, run: Run, loads: tuple[Load, ...], environment: Environment, tcp: bool):
        self.run, self.folder = run, run.folder
        self.front, back = endpoint(run.folder, "front", tcp), endpoint(run.folder, "back", tcp)
        self.receiver = Receiver(run, back, max(load.hwm for load in loads), run.folder)
        self.tap = tap(run, "tap", self.front, back, environment, run.folder)
        self.senders = [self.join(load) for load in loads]

    def join(self, load: Load) -> Sender:
        """Starts a sender process, which begins at once."""
        return Sender(self.run, f"sender{load.first}", self.front, load, self.folder)

    def resources(self) -> Resources:
        return Resources.at(self.tap.pid, 0)

    def end(self) -> tuple[Arrived, dict]:
        """Stops the senders, then the tap; returns the received messages and the report."""
        sent = {}
        for sender in self.senders:
            sent |= sender.end()
        arrived = self.receiver.end(sent)
        self.tap.signal(signal.SIGTERM)
        return arrived, json.loads(self.tap.end_well(ENDING))


def tap(run: Run, name: str, front: str, back: str, environment: Environment, folder: Path):
    """Starts `tokengap tap` and waits until it listens; `name` is unique within `folder`."""
    shell = ["unshare", "--mount", "sh"] if environment.own_mounts else ["sh"]
    program = run.options.faulty if environment.fault else run.options.tokengap
    command = [*shell, "-c", f'{environment.before} && exec "$0" "$@"', program, "tap", "--headless", "--json", "--duration", "900s"]
    command += ["--listen", front, "--upstream", back, *environment.options]
    process = run.start(name, command, folder, env={"TOKENGAP_FAULT": environment.fault} if environment.fault else {}, cwd=folder)
    wait_until_bound(front, process)
    return process


def unobserved(report: dict) -> int:
    """Messages that the report counts as missed, without unframed bytes from invalid peers."""
    return number(report, "self/events_missed") - number(report, "self/missed_by_cause/unframed")


@dataclass(frozen=True)
class Fault:
    """One row: setup, fault, and comparisons. In every row all bytes must arrive."""

    name: str
    what: str
    # Injects the fault under load; returns text to print.
    action: Callable[[Line, Checks], str | None]
    loads: tuple[Load, ...] = (STEADY,)
    environment: Environment = Environment()
    tcp: bool = False
    # Compares the report, and returns text to print.
    compare: Callable[[Checks, dict, Arrived, Run], str | None] = lambda checks, report, arrived, run: None
    # Whether the report must count every message, as observed or missed.
    counted: bool = True

    def run(self, run: Run) -> tuple[int, str]:
        checks, line = run.checks, Line(run, self.loads, self.environment, self.tcp)
        outcomes = [self.action(line, checks)]
        arrived, report = line.end()
        arrived.check_exact(checks)
        if self.counted:
            seen = sum(hop["frames_sent"] for hop in report["hops"])
            checks.equal("messages observed or counted as missed", arrived.messages, seen + unobserved(report))
        outcomes.append(self.compare(checks, report, arrived, run))
        return arrived.messages, "; ".join(filter(None, [str(arrived), *outcomes]))


def wait(seconds: float):
    def action(line: Line, checks: Checks) -> None:
        time.sleep(seconds)

    return action


def nothing(line: Line, checks: Checks) -> None:
    """Does nothing, because the loads end by themselves."""


def count_unobserved(checks: Checks, report: dict, arrived: Arrived, run: Run) -> str:
    return f"{unobserved(report)} not observed, but counted"


def names_shortage(shortage: str):
    """Checks that the report's list of degraded parts names the shortage."""

    def compare(checks: Checks, report: dict, arrived: Arrived, run: Run) -> str:
        checks.true(f"the report names {shortage!r}: {report['self']['degraded']}", shortage in degraded(report))
        return "reported"

    return compare


def tap_stopped(line: Line, checks: Checks) -> str:
    """SIGSTOP and later SIGCONT for the tap: messages that libzmq queued meanwhile arrive."""
    pause_s = 60 if line.run.options.long else 10
    time.sleep(1)
    line.tap.signal(signal.SIGSTOP)
    time.sleep(pause_s)
    line.tap.signal(signal.SIGCONT)
    time.sleep(1)
    return f"stopped for {pause_s} s"


def receiver_stopped(line: Line, checks: Checks) -> str:
    """SIGSTOP for the receiver: queues fill up to the senders, which block; the tap holds only its buffers."""
    time.sleep(1)
    line.receiver.process.signal(signal.SIGSTOP)
    time.sleep(1)
    before = line.resources().memory
    time.sleep(60 if line.run.options.long else 4)
    grown = line.resources().memory - before
    line.receiver.process.signal(signal.SIGCONT)
    time.sleep(1)
    checks.true(f"memory does not accumulate ({grown} KiB)", grown < 4 << 10)
    return f"the tap grew by {grown} KiB"


def analysis_blocked(line: Line, checks: Checks) -> None:
    """The ledger is blocked for some seconds: the queue and the budget fill, and dropped observations are counted."""
    idle = line.resources().memory
    time.sleep(3)
    grown = line.resources().memory - idle
    checks.true(f"memory is bounded ({grown} KiB)", grown < BUDGET)


def dropped(checks: Checks, report: dict, arrived: Arrived, run: Run) -> str:
    checks.true("observations were dropped", unobserved(report) > 0)
    return count_unobserved(checks, report, arrived, run)


def strangers(strange: Callable[[Line, Checks], str | None]):
    """Invalid peers besides normal traffic. Only their own connections may be affected; memory and open files do not grow."""

    def action(line: Line, checks: Checks) -> str | None:
        time.sleep(1)
        before = line.resources()
        outcome = strange(line, checks)
        # A connection broken on one side may linger on the other for two seconds, and a refused one may still be in the backlog. Wait until
        # the counts stay stable.
        ends, calm = time.monotonic() + 10, 0
        while calm < 10 and time.monotonic() < ends:
            time.sleep(0.05)
            calm = 0 if line.resources().files > before.files else calm + 1
        after = line.resources()
        checks.equal("files that invalid peers left open in the tap", before.files, after.files)
        grown = after.memory - before.memory
        checks.true(f"memory is released ({grown} KiB)", grown < 96 << 10)
        checks.equal("threads", before.threads, after.threads)
        return outcome

    return action


def dead_in_mid_frame(line: Line, checks: Checks) -> str:
    """Sends half a message, then closes or resets the connection."""
    for index in range(100):
        peer = send_raw(line.front, HANDSHAKE + claim(1 << 20) + bytes([7]) * index * 5000)
        time.sleep(0.005)
        if index % 2 == 0:
            reset(peer)
        peer.close()
    return "100 such peers"


def garbage(line: Line, checks: Checks) -> str:
    """Random bytes with a fixed seed, after a signature, a greeting and a handshake; every truncation of a handshake; no bytes."""
    noise = random.Random(7).randbytes
    # The first byte must be 0xff. Anything else is ZMTP 1.0 without a handshake, and libzmq would accept the rest as messages with or without a
    # relay.
    payloads = [GREETING[:12] + noise(65_536), GREETING + noise(65_536), HANDSHAKE + claim(1 << 62) + noise(100_000), b""]
    payloads += [HANDSHAKE[:cut] for cut in range(1, len(HANDSHAKE))]
    for payload in payloads:
        send_raw(line.front, payload).close()
    return f"{len(payloads)} such peers"


def claimed_gigabyte(line: Line, checks: Checks) -> str:
    """Announces 1 GiB, sends part of it, then pauses."""
    before, peak = line.resources().memory, 0
    claimers = [send_raw(line.front, HANDSHAKE + claim(1 << 30) + bytes(60_000)) for _ in range(20)]
    for _ in range(20):
        time.sleep(0.05)
        for claimer in claimers:
            send_more(claimer, bytes(10_000))
        peak = max(peak, line.resources().memory - before)
    for claimer in claimers:
        claimer.close()
    checks.true(f"announced bytes are not buffered ({peak} KiB)", peak < 96 << 10)
    return f"20 such messages took {peak} KiB of the tap"


def thousand_connections(line: Line, checks: Checks) -> None:
    """Opens many connections at full speed, then drops them: silent, within the greeting, within a message, or with a reset."""
    payloads = [b"", HANDSHAKE[:30], HANDSHAKE, HANDSHAKE + claim(5_000) + bytes(100)]
    for _ in range(20 if line.run.options.long else 1):
        peers = [send_raw(line.front, payloads[index % len(payloads)]) for index in range(1000)]
        for index, peer in enumerate(peers):
            if index % 3 == 0:
                reset(peer)
            peer.close()


def huge(line: Line, checks: Checks) -> str:
    """Messages larger than the tap's whole memory budget."""
    peak, ends = 0, time.monotonic() + 3
    while time.monotonic() < ends:
        peak = max(peak, line.resources().memory)
        time.sleep(0.02)
    checks.true(f"the tap buffers less than one message ({peak} KiB)", peak < 200 << 10)
    return f"the tap held {peak >> 10} MiB at most"


def out_of_files(line: Line, checks: Checks) -> None:
    """Opens connections until file descriptors run out. Open ones continue, and waiting ones are accepted later."""
    time.sleep(1)
    # Each accepted connection uses two descriptors of the tap. The rest wait in the kernel.
    guests = [send_raw(line.front, HANDSHAKE) for _ in range(100)]
    time.sleep(1)
    # Messages of a sender that connects now are relayed later.
    line.senders.append(line.join(Load(first=10, connections=2)))
    time.sleep(1)
    for guest in guests:
        guest.close()
    time.sleep(2)


# Beginning of the message about a crashed analysis, which stops all counting.
ANALYSIS = "analysis crashed"


def panicked(part: str):
    """The report names the disabled part; unless that is the analysis, it counts every message."""

    def compare(checks: Checks, report: dict, arrived: Arrived, run: Run) -> str:
        said = report["self"]["degraded"]
        line = next((line for line in said if line.startswith(part)), None)
        checks.true(f"the report says: {said}", line)
        return f'says "{line}"'

    return compare


def panics(name: str, what: str, fault: str, part: str) -> Fault:
    """Injects a panic into a part of the analysis. The analysis is disabled, and relaying continues without loss."""
    environment = Environment(options=RECORDED, fault=fault)
    return Fault(name, what, wait(3), (SMALL,), environment, compare=panicked(part), counted=part != ANALYSIS)


def replays(checks: Checks, report: dict, arrived: Arrived, run: Run) -> str:
    """A shifted wall clock changes only the clock anchors of the recording."""
    command = [run.program, "replay", run.folder / "run.tgap", "--json"]
    replay = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    parts = ("requests", "tokens", "chunks", "hops", "gap_ns", "findings")
    checks.matches(replay, {part: report[part] for part in parts}, "replayed")
    first, last = report["window_ns"]
    checks.true("no jump in the run's time", last - first < 60_000_000_000)
    return "replay and live report are equal"


@dataclass(frozen=True)
class Broken:
    """The tap exits several times, which breaks every connection. A plain relay loses messages in kernel queues and libzmq; in addition,
    tokengap may lose only its buffer at each break."""

    name: str
    what: str
    end: Callable
    tcp: bool = False

    def run(self, run: Run) -> tuple[int, str]:
        breaks, load = 30 if run.options.long else 3, Load(rate=3_000)
        ours, plain = (self.one(run, name, breaks, load) for name in ("ours", "plain"))
        (sent, lost, bytes_), (plain_sent, plain_lost, plain_bytes) = ours, plain
        buffered = BUFFER * load.connections * breaks
        what = f"lost at most {buffered} bytes, the relay's buffer, more than a plain relay ({bytes_} and {plain_bytes})"
        run.checks.true(what, bytes_ <= plain_bytes + buffered)
        return sent + plain_sent, f"lost {lost} of {sent} messages at {breaks} breaks; a plain relay {plain_lost} of {plain_sent}"

    def one(self, run: Run, name: str, breaks: int, load: Load) -> tuple[int, int, int]:
        folder = run.place(name)
        front, back = endpoint(folder, "front", self.tcp), endpoint(folder, "back", self.tcp)

        def start(index: int):
            if name == "ours":
                return tap(run, f"relay{index}", front, back, Environment(), folder)
            relay = run.start(f"relay{index}", [run.options.xtask, "plain-relay", "--listen", front, "--upstream", back], folder)
            wait_until_bound(front, relay)
            return relay

        receiver, relay = Receiver(run, back, 0, folder), start(0)
        sender = Sender(run, "sender", front, load, folder)
        for index in range(breaks):
            time.sleep(0.9)
            self.end(relay)
            time.sleep(0.3)
            relay = start(index + 1)
        time.sleep(0.9)
        files = Resources.at(relay.pid, 0).files
        run.checks.true(f"the last relay has few open files besides two for each connection ({files})", files < 32)
        arrived = receiver.end(sender.end())
        lost, bytes_ = arrived.losses_at_breaks(breaks, run.checks)
        relay.kill_running()
        return arrived.messages, lost, bytes_


def starve(relay) -> None:
    """Limits memory until the relay aborts, as when a pod exceeds its limit. If it survives, nothing was lost, and the relay is killed."""
    resource.prlimit(relay.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    try:
        until(lambda: relay.child.poll() is not None, 1, "")
    except RuntimeError:
        relay.kill_running()


def killed(relay) -> None:
    relay.kill_running()


TRAFFIC = (fast := Load(count=60_000, long=1_000_000, rate=0, sizes="small"), replace(fast, first=4))
HUGE = (Load(count=5_000, long=100_000, rate=2_000), Load(first=10, connections=1, count=2, long=16, rate=0, sizes="huge"))
BLOCKED = (Load(rate=20_000, sizes="small", count=30_000, long=200_000),)
PRESSED = (Load(rate=0, count=6_000, long=50_000),)
FULL = Environment(("--record", "disk/run.tgap"), "mkdir disk && mount -t tmpfs -o size=64k none disk", True)
LITTLE = Environment(RECORDED, "ulimit -d 196608", fault="ledger=block:2@500")
KILLED = "SIGKILL for the tap and a restart, 3 times (30 with --long); the same with a relay that only copies"

FAULTS = [
    Fault("traffic ipc", "none, at full speed", nothing, TRAFFIC, compare=count_unobserved),
    Fault("traffic tcp", "none, at full speed", nothing, TRAFFIC, tcp=True, compare=count_unobserved),
    Broken("killed ipc", KILLED, killed),
    Broken("killed tcp", "the same", killed, tcp=True),
    Fault("stopped tap", "SIGSTOP for the tap", tap_stopped, (Load(rate=4_000),)),
    Fault("stopped receiver", "SIGSTOP for the receiver under full load", receiver_stopped, (Load(hwm=1_000, rate=0),), tcp=True),
    Fault(
        "blocked analysis",
        "the ledger is blocked for some seconds, under full load",
        analysis_blocked,
        BLOCKED,
        Environment(fault="ledger=block:4@500"),
        compare=dropped,
    ),
    Fault(
        "dead in mid-frame", "peers that die in the middle of a message", strangers(dead_in_mid_frame), tcp=True, counted=False
    ),
    Fault("garbage", "peers that send invalid or truncated ZMTP", strangers(garbage), counted=False),
    Fault("claimed gigabyte", "messages that announce 1 GiB but are never completed", strangers(claimed_gigabyte), counted=False),
    Fault("real 256 MiB", "messages of 256 MiB among others", huge, HUGE),
    Fault(
        "1,000 connections", "opened at once and dropped in various states", strangers(thousand_connections), tcp=True, counted=False
    ),
    Fault(
        "no files left",
        "connections reach RLIMIT_NOFILE",
        out_of_files,
        environment=Environment(before="ulimit -n 64"),
        compare=names_shortage("open files"),
    ),
    Fault(
        "little memory",
        "RLIMIT_DATA of 192 MiB, under full load, recording, with a blocked analysis",
        nothing,
        PRESSED,
        LITTLE,
        compare=count_unobserved,
    ),
    Broken("no memory left", "a memory limit below current use: the tap aborts and is restarted", starve),
    Fault("full disk", "recording to a disk of 64 KiB", wait(4), (SMALL,), FULL, compare=names_shortage("No space left on device")),
    Fault(
        "clock jumps",
        "the wall clock jumps back a day, and forward ten years, while recording",
        wait(3),
        (SMALL,),
        Environment(RECORDED, fault="clock=jump"),
        tcp=True,
        compare=replays,
    ),
    panics("ledger panics", "a panic in the ledger", "ledger=panic@2000", ANALYSIS),
    panics("detector panics", "a panic in a detector", "detectors=panic@3", ANALYSIS),
    panics("decoder panics", "a panic in the decoder", "decoder=panic@2000", ANALYSIS),
    panics("recorder panics", "a panic in the recorder", "recorder=panic@2000", "recording crashed"),
    panics("disk thread panics", "a panic in the thread that writes the recording", "writer=panic@2", "recording stopped:"),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.e2e.faults", description=__doc__)
    parser.add_argument("--xtask", type=Path, required=True, help="path of the xtask program")
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--faulty", type=Path, required=True, help="a build that injects faults")
    parser.add_argument("--long", action="store_true", help="run overnight loads")
    parser.add_argument("--only", default="", help="only faults whose name contains this")
    options = parser.parse_args()
    options.python = Path(sys.executable)
    for fault in FAULTS:
        if options.only not in fault.name:
            continue
        started, checks, messages, outcome = time.monotonic(), Checks(), 0, "did not complete"
        with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
            run = Run(options, Engine(""), fault.name, Path(folder), checks)
            try:
                messages, outcome = fault.run(run)
            except Exception as error:
                checks.failed.append(repr(error))
            finally:
                run.close()
        row = {"name": fault.name, "what": fault.what, "seconds": time.monotonic() - started, "made": checks.made}
        print(json.dumps(row | {"failed": checks.failed, "messages": messages, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    main()
