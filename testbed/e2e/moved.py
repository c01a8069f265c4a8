"""`tokengap run` and `tokengap splice` on the real engine: every message arrives once and in order, even if tokengap is killed."""

import json
import os
import signal
import subprocess
import time

from .accidents import steady
from .checks import at, messages, same_bytes, sent, verdicts
from .process import Process, until
from .session import MIXED, PLAIN, Outcome, Run, Session, Truth, plan_options

PATIENCE = 90
# Exit code of the engine, which tokengap must pass through.
EXIT = 7
# Number of times that the same run is spliced.
TIMES = 5


def under_run(run: Run, command: list) -> Process:
    """Starts a command under `tokengap run`, with a TMPDIR for its folder, so that leftovers can be detected."""
    options = ["run", "--headless", "--json", "--report", run.folder / "report.json", "--"]
    environment = run.environment() | {"TMPDIR": str(run.place("tmp"))}
    return run.start("run", [run.program, *options, run.options.python, *command], env=environment)


def launched(run: Run, plan: dict) -> Process:
    command = ["-m", "testbed", run.engine.release, "launch", "--detokenizer", "--gap", "1e-3", "--deadline", 60]
    return under_run(run, [*command, "--exit", EXIT, "--truths", run.folder, *plan_options(plan)])


def reported(run: Run) -> dict:
    return json.loads((run.folder / "report.json").read_text())


def complete_run(run: Run) -> str:
    """Relays a run from the first frame to the exit code."""
    checks, process = run.checks, launched(run, MIXED | dict(rounds=3))
    process.line("LAUNCHED", PATIENCE)
    status, _ = process.end(PATIENCE)
    checks.equal("the engine's exit code", EXIT, status)
    report = reported(run)
    sender, detokenizer, receiver = (Truth(run.folder / f"{name}.truth") for name in ("sender0", "detokenizer", "receiver"))
    outcome = Outcome([sender], detokenizer, receiver, None, None)
    same_bytes(checks, outcome)
    frames = sum(totals["frames"] for totals in (sender.totals["output"], sender.totals["control"], detokenizer.totals["output"]))
    checks.equal("frames observed since the first", frames, sum(hop["frames_sent"] for hop in report["hops"]))
    expected = {
        "requests/finished": sent(outcome, "output")["finishes"],
        "self/frames_undecoded": 0,
        "source/wire/run/sockets_relayed": 2,
        "source/wire/run/past_the_relay": [],
    }
    checks.matches(report, expected)
    verdicts(checks, report, outcome.lost)
    checks.equal("folders left behind", [], os.listdir(run.folder / "tmp"))
    return f"{frames} frames of 2 sockets relayed from the start, exit code {EXIT}"


# Connects to its own sockets immediately, some before any relay can exist, and holds all for two seconds.
EAGER = """
import os, socket, tempfile, time
held = []
for number in range(8):
    listener, peer = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    path = os.path.join(tempfile.gettempdir(), f'eager{number}')
    listener.bind(path)
    listener.listen()
    peer.connect(path)
    held.append((listener, peer, listener.accept()))
time.sleep(2)
"""


def connected_early(run: Run) -> str:
    """A connection that exists before the relay is detected and reported."""
    checks = run.checks
    status, _ = under_run(run, ["-c", EAGER]).end(PATIENCE)
    checks.equal("exit code of a run that relayed nothing", 2, status)
    report = reported(run)
    past = at(report, "source/wire/run/past_the_relay")
    checks.true("some connection bypassed the relay", past)
    unnamed = [one for one in past if not (one.startswith("eager") and ": process " in one and "relay" in one)]
    checks.equal("connections reported without their process", [], unnamed)
    checks.equal("connections not listed in `degraded`", [], [one for one in past if one not in report["self"]["degraded"]])
    return f"{len(past)} of 8 connections existed before the relay; each is reported"


def run_killed(run: Run) -> str:
    """tokengap is killed during a run: the guard restores the sockets, and the engine continues without it."""
    process = launched(run, PLAIN | dict(requests=8, rounds=40))
    launcher = int(process.line("LAUNCHED", PATIENCE).split()[0])

    def size(name: str) -> int:
        truth = run.folder / f"{name}.truth"
        return truth.stat().st_size if truth.exists() else 0

    temporary = run.folder / "tmp"
    try:
        until(lambda: size("sender0") >= 100_000, PATIENCE, "nothing was sent")
        process.kill_running()
        # A killed relay loses its buffered frames, so the tokenizer may wait for a finish until its deadline. Check only that traffic
        # continues.
        before, received = size("sender0"), size("receiver")
        until(lambda: size("receiver") >= received + 100_000, PATIENCE, "nothing was received after tokengap was killed")
        (folder,) = temporary.iterdir()
        leftovers = [name for name in os.listdir(folder) if ".engine-" in name or ".tokengap" in name]
        run.checks.equal("leftover notes and moved sockets", [], leftovers)
    finally:
        try:
            os.kill(launcher, signal.SIGTERM)
        except ProcessLookupError:
            pass
    until(lambda: not os.listdir(temporary), PATIENCE, "the guard did not remove the run's folder")
    return f"killed after {before} bytes of truth; the engine continued by itself"


def splice(run: Run, session: Session, name: str, *flags: str) -> Process:
    command = [run.program, "splice", "--headless", "--json", "--pid", session.receiver.pid, "--yes", *flags]
    return run.start(name, command)


def spliced(run: Run) -> str:
    """Repeatedly splices and restores, by timeout and by SIGTERM, and checks the refusal above the limit. Nothing may be lost."""
    checks = run.checks
    # A frame about every 3 ms on each of two hops for the whole test.
    session = Session(run, steady(160, detokenizer=True, gap_ms=2), None)
    session.go()
    time.sleep(0.5)
    status, _ = splice(run, session, "refused", "--max-rate", "20").end(30)
    checks.equal("splice is refused above the limit", 2, status)
    frames, away, rate = 0, [], 0
    for index in range(TIMES):
        process = splice(run, session, f"splice{index}", "--duration", "1s")
        if index % 2:
            process.wait_for_stderr("moved; connections", 30)
            time.sleep(0.3)
            process.signal(signal.SIGTERM)
        report = json.loads(process.end_well(30))
        moved = at(report, "source/wire/splice")
        checks.matches(moved, {"doubts": [], "continuity/broken": [], "continuity/messages_unread": 0}, "splice")
        checks.true("requests continued across the move", at(moved, "continuity/requests_across") > 0)
        through = sum(hop["frames_sent"] for hop in report["hops"])
        checks.true("frames passed through the relay", through > 50)
        frames += through
        away.append(moved["moved_in_ms"])
        rate = max(rate, moved["messages_per_second"])
    same_bytes(checks, session.finish())
    return (
        f"{TIMES} splices at up to {rate} messages per second, each for {min(away)} to {max(away)} ms, "
        f"{frames} frames through the relay, none lost"
    )


def splice_killed(run: Run) -> str:
    """tokengap is killed while the hops are moved: the guard restores them, and later frames arrive."""
    checks, session = run.checks, Session(run, steady(30, detokenizer=True, gap_ms=2), None)
    session.go()
    time.sleep(0.5)
    process = splice(run, session, "splice")
    process.wait_for_stderr("moved; connections", 30)
    time.sleep(1)
    process.kill_running()
    restored = subprocess.run([run.program, "splice", "--restore", "--folder", run.folder], capture_output=True)
    checks.equal("restoring can be requested again", 0, restored.returncode)
    outcome = session.finish()
    output = [message["hash"] for message in messages(outcome, "output")]
    received = [message["hash"] for message in outcome.detokenizer.received]
    lost = len(set(output) - set(received))
    checks.true("a killed relay loses fewer than 50 messages", lost < 50)
    checks.equal("the last message arrives without tokengap", output[-1], received[-1])
    return f"killed while moved: {lost} of {len(messages(outcome))} messages lost, the rest arrived through the engine's own sockets"
