"""Failures that must not disturb the engine: a killed relay or attach, a peer that sends garbage, buffers that are too small."""

import json
import os
import random
import signal
import time
from pathlib import Path

from .checks import Checks, findings, messages, number, relayed_beside_strangers, same_bytes, sent, summary
from .kernel import objects_of, still_loaded
from .process import connect
from .session import MIXED, PLAIN, Outcome, Run, Session, Setting, Watch

# Seconds between the end of one relay and the start of the next.
CLOSED = 0.3
# Maximum nanoseconds from the second relay's start until the path is open again. libzmq reconnects about every 100 ms.
REOPENED = 1_500_000_000
# A message sent at least this many nanoseconds before the kill must have left the relay.
IN_FLIGHT = 500_000_000
# Findings that the engine loses or reorders tokens.
LOSS_FINDINGS = {
    *("dropped-chunks", "wire-loss", "wire-arithmetic", "short-answers"),
    *("inflation", "out-of-order", "stalled-stream", "rid-changed-worker"),
}


def steady(rounds: int, **more) -> Setting:
    """Rounds of 8 requests with a frame about every 1.3 ms. A round takes an eighth of a second."""
    return Setting(**dict(plan=PLAIN | dict(requests=8, rounds=rounds), gap_ms=1) | more)


def relay_killed(run: Run, tcp: bool) -> str:
    """The relay is killed during a run and replaced. A relay that only copies is tested the same way for comparison."""
    losses = []
    for name, relay in (("ours", run.relay), ("plain", run.options.xtask)):
        session = Session(run, steady(40, tcp=tcp), relay, run.place(name))
        session.go()
        time.sleep(1)
        killed, replaced = session.replace_tap(CLOSED)
        losses.append(count_losses(run.checks, session.finish(), killed, replaced))
    (lost, all_), (plain, all_plain) = losses
    return f"lost {lost} of {all_}; with a plain relay {plain} of {all_plain}"


def count_losses(checks: Checks, outcome: Outcome, killed: int, replaced: int) -> tuple[int, int]:
    """Only messages in flight at the kill may be lost. Returns the number of lost and of sent messages."""
    received = {message["hash"] for message in outcome.receiver.received}
    output, known = messages(outcome, "output"), {message["hash"] for message in messages(outcome)}
    lost = [message for message in output if message["hash"] not in received]
    checks.equal("messages at the tokenizer that were never sent", 0, len(received - known))
    before = sum(message["sent_ns"] < killed for message in output)
    after = sum(message["sent_ns"] > replaced + REOPENED for message in output)
    checks.true("messages were sent before and after the kill", before > 50 and after > 50)
    early = sum(message["sent_ns"] + IN_FLIGHT < killed for message in lost)
    checks.equal("lost messages that were sent well before the kill", 0, early)
    late = sum(message["sent_ns"] > replaced + REOPENED for message in lost)
    checks.equal("lost messages after the path was open again", 0, late)
    if report := outcome.report:
        # Frames already written by the first tap arrive from the receiver's buffers for a moment after the kill.
        closed = killed + CLOSED * 1e9 / 2
        through = sum(message["received_ns"] > closed for message in outcome.receiver.received)
        checks.equal("frames in the second tap's report", through, sum(hop["frames_sent"] for hop in report["hops"]))
        checks.matches(report, {"self/frames_undecoded": 0})
    return len(lost), len(output)


def malformed_inputs() -> list[bytes]:
    """Malformed input. The first byte must be 0xff. Otherwise it would be ZMTP 1.0, which has no handshake, and libzmq would deliver the
    bytes to the application as messages, with or without a relay."""
    noise = random.Random(7).randbytes
    signature = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1])
    greeting = (signature + b"NULL").ljust(64, b"\0")
    handshake = greeting + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
    return [
        # An unknown security mechanism.
        signature + noise(65_536),
        # No READY after the greeting.
        greeting + noise(65_536),
        # A frame that announces 2^62 bytes.
        handshake + b"\x02" + (1 << 62).to_bytes(8) + noise(100_000),
        # A truncated frame.
        handshake + bytes([0, 200]) + noise(100),
        # No bytes.
        b"",
    ]


def strangers(run: Run, tcp: bool) -> str:
    session = Session(run, steady(20, tcp=tcp), run.relay)
    session.go()
    time.sleep(0.5)
    for bytes_ in malformed_inputs():
        with connect(session.splices[0].front) as peer:
            # The tap may close the connection at any point.
            try:
                peer.sendall(bytes_)
                peer.settimeout(0.2)
                peer.recv(64)
            except OSError:
                pass
    outcome = session.finish()
    relayed_beside_strangers(run.checks, outcome, len(malformed_inputs()))
    return summary(outcome)


def tiny_queue(run: Run) -> str:
    narrow = run.folder / "narrow"
    narrow.write_text(f"#!/bin/sh\nexec '{run.program}' \"$@\" --queue-frames 2\n")
    narrow.chmod(0o755)
    session = Session(run, NARROW, narrow)
    session.go()
    return missed(run.checks, session.finish())


def tiny_ring(run: Run) -> str:
    session = Session(run, NARROW, None)
    watch = Watch(run, session.receiver.pid, "--ring", "65536")
    session.go()
    # Pause the reader so that the ring buffer overflows.
    time.sleep(0.2)
    watch.process.signal(signal.SIGSTOP)
    time.sleep(0.6)
    watch.process.signal(signal.SIGCONT)
    outcome = session.finish()
    outcome.report = watch.report()
    return missed(run.checks, outcome)


NARROW = steady(12, plan=PLAIN | dict(requests=16, rounds=12), gap_ms=0)


def missed(checks: Checks, outcome: Outcome) -> str:
    """Observations were missed, and the report does not attribute them to the engine."""
    same_bytes(checks, outcome)
    report, lost = outcome.report, outcome.lost
    missed = number(report, "self/events_missed")
    checks.true("missed observations are counted", missed + number(report, "self/frames_unannounced") > 0)
    tokens, reported = sent(outcome, "output")["tokens"], number(report, "tokens/sent")
    checks.true("reported tokens do not exceed sent ones", reported <= tokens)
    checks.equal("tokens reported missing on the wire", 0, number(report, "tokens/missing_on_wire"))
    checks.true("reported token losses do not exceed those of the clients", number(report, "chunks/tokens_lost") <= lost)
    kinds = {finding["kind"] for finding in findings(report)}
    unexpected = kinds & (LOSS_FINDINGS - {"dropped-chunks"} if lost else LOSS_FINDINGS)
    checks.equal("accusations", set(), unexpected)
    checks.true("a finding reports the missed observations", "missed-observations" in kinds)
    return f"{missed} observations missed, {reported} of {tokens} tokens observed; {summary(outcome)}"


def attach_killed(run: Run) -> str:
    """SIGKILL of attach during a run: the engine continues, and the kernel frees all of attach's objects."""
    session = Session(run, steady(20, gap_ms=2), None)
    watch = Watch(run, session.receiver.pid)
    session.go()
    time.sleep(1)
    held = objects_of(watch.process.pid)
    if not any(held.values()):
        raise RuntimeError("attach holds no program, link or map")
    run.checks.equal("programs, links and maps of attach in the kernel while it runs", held, still_loaded(run, held))
    watch.process.kill_running()
    ends = time.monotonic() + 10
    while any((left := still_loaded(run, held)).values()) and time.monotonic() < ends:
        time.sleep(0.05)
    run.checks.equal("programs, links and maps left behind", {kind: set() for kind in held}, left)
    outcome = session.finish()
    same_bytes(run.checks, outcome)
    run.checks.equal("clients with a finish", 8 * 20, outcome.receiver.totals["finished"])
    freed = ", ".join(f"{len(ids)} {kind}" for kind, ids in held.items())
    return f"{freed} freed; {summary(outcome)}"


def another_machine(run: Run) -> str:
    """The scheduler is on another machine, as attach sees it: in a PID namespace without it. Receives and deliveries are exact, and sends
    and queue wait are `null`."""
    # The namespace outlives the receiver, so that attach can report.
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; sleep 5', "sh"]
    setting = Setting(plan=PLAIN, tcp=True, http=True, late_clients=True, receiver=("--stream-output",))
    session = Session(run, setting, None, receiver_under=apart)

    def child(pid: int) -> str:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]

    watch = Watch(run, 2, under=["nsenter", "--target", child(session.receiver.pid), "--mount", "--pid"])
    session.go()
    for sender in session.senders:
        sender.end_well(60)
    session.clients.end_well(60)
    session.receiver.stop()
    os.kill(int(child(watch.process.pid)), signal.SIGINT)
    report = json.loads(watch.process.end_well(60))
    outcome = session.finish()
    made = sent(outcome, "output")
    run.checks.matches(
        report,
        {
            "tokens/sent": made["tokens"],
            "tokens/received": made["tokens"],
            "tokens/delivered": made["tokens"] - outcome.lost,
            "chunks/tokens_lost": outcome.lost,
            "answers/uncounted": 0,
        },
    )
    hop = report["hops"][0]
    run.checks.equal("what only the sender's machine shows", [None, None], [hop["frames_sent"], hop["queue_wait_ns"]])
    accusations = {finding["kind"] for finding in findings(report)} & LOSS_FINDINGS
    run.checks.equal("accusations", {"dropped-chunks"} if outcome.lost else set(), accusations)
    return summary(outcome)


def three_lifetimes(run: Run) -> str:
    """`attach --follow`, started before the first engine, counts the frames of three engines."""
    follow = run.start("follow", [run.program, "attach", "--follow", "--headless", "--json", "-v", "--duration", "300s"])
    chunks = 0
    for lifetime in (1, 2, 3):
        session = Session(run, Setting(plan=PLAIN), None, run.place(f"life{lifetime}"))
        follow.wait_for_stderr("attached to", 60, lifetime)
        session.go()
        chunks += sent(session.finish(), "output")["chunks"]
        follow.wait_for_stderr("the engine exited", 60, lifetime)
    follow.signal(signal.SIGINT)
    report = json.loads(follow.end_well(60))
    run.checks.matches(report, {"chunks/sent": chunks})
    run.checks.true("the report says how often the engine exited", "it exited 3 times" in "\n".join(report["self"]["degraded"]))
    return f"{chunks} chunks of 3 engines"


LOCKSTEP = Setting(plan=MIXED | dict(rounds=1), gap_ms=0, lockstep=True)


def unchanged(run: Run) -> str:
    """Messages and client outputs are equal with and without attach. The run is in lockstep, because otherwise timing decides which of
    several queued chunks a client gets."""
    outcomes = {}
    for name in ("without", "with"):
        session = Session(run, LOCKSTEP, None, run.place(name))
        watch = Watch(run, session.receiver.pid, "--python-stacks", "100", folder=session.folder) if name == "with" else None
        session.go()
        session.walk()
        outcomes[name] = session.finish()
        outcomes[name].report = watch and watch.report()
        same_bytes(run.checks, outcomes[name])
    without, attached = outcomes.values()
    for what, of in {
        "messages with their chunks": lambda o: [(m["on"], m["chunks"]) for m in messages(o)],
        "outputs of each client": lambda o: sorted(map(client_output, o.receiver.clients), key=str),
        "frames that the tokenizer received": lambda o: o.receiver.totals["frames"],
    }.items():
        run.checks.equal(what, of(without), of(attached))
    run.checks.matches(attached.report, {"hops/0/frames_received": attached.receiver.totals["frames"]})
    return summary(attached)


def client_output(client: dict) -> list:
    """A client's record without its times."""
    return sorted((name, value) for name, value in client.items() if not name.endswith("_ns"))
