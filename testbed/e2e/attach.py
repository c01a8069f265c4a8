"""Comparisons of attach's report with the engine's timestamps.

Each event happens between two timestamps, before and after the call. Such a pair is a range in nanoseconds of CLOCK_MONOTONIC.
"""

from dataclasses import dataclass

from . import checks as compare
from .checks import Checks, at, by_name, findings, messages, number, sent
from .session import Outcome

# Tolerance of a gap in nanoseconds: the engine's process can be descheduled between the call and the timestamp.
TOLERANCE_NS = 1_000_000


@dataclass
class Expected:
    """Timestamps of one request."""

    # Range of the scheduler's send of the first chunk, and of the tokenizer's receive.
    first_sent: tuple[int, int]
    first_received: tuple[int, int] | None = None
    chunks: int = 0
    tokens: int = 0
    finish: str | None = None

    @property
    def gap(self) -> int:
        """The gap from the timestamp before the send call to the one after the receive call."""
        return self.first_received[1] - self.first_sent[0] if self.first_received else 0


def exact(checks: Checks, outcome: Outcome) -> str:
    """Compares a completely observed run; returns the accuracy of the report."""
    compare.same_bytes(checks, outcome)
    report = outcome.report
    totals(checks, outcome)
    backlog = hops(checks, outcome)
    accuracy = requests(checks, outcome)
    compare.release_is_right(checks, outcome)
    # Every hop has one receiver, regardless of the number of sockets of the scheduler.
    checks.equal("imbalance findings with a single worker", [], findings(report, "worker-imbalance"))
    compare.verdicts(checks, report, outcome.lost, compare.SLOW)
    return f"{accuracy}; {backlog}"


def totals(checks: Checks, outcome: Outcome) -> None:
    output, control = sent(outcome, "output"), sent(outcome, "control")
    to_tokenizer = outcome.detokenizer.totals["output"] if outcome.detokenizer else output
    expected = {
        "requests/seen": output["requests"] + control["abort_messages"],
        "requests/finished": output["finishes"],
        "requests/aborted": output["aborts"] + control["abort_messages"],
        "requests/live": 0,
        "tokens/sent": output["tokens"],
        "tokens/received": output["tokens"],
        "chunks/sent": output["chunks"],
        "chunks/received": to_tokenizer["chunks"],
        "self/events_missed": 0,
        "self/frames_undecoded": 0,
        "self/frames_unannounced": 0,
    }
    checks.matches(outcome.report, expected)


def hops(checks: Checks, outcome: Outcome) -> str:
    detokenizer, receiver = outcome.detokenizer, outcome.receiver.received
    if detokenizer:
        ends = {
            "detokenizer->tokenizer": (detokenizer.sent, receiver),
            "scheduler->detokenizer": (messages(outcome, "output"), detokenizer.received),
            "scheduler->tokenizer": (messages(outcome, "control"), receiver),
        }
    else:
        ends = {"scheduler->tokenizer": (messages(outcome), receiver)}
    ends = {name: crossing for name, crossing in ends.items() if crossing[0]}
    lines = outcome.report["hops"]
    checks.equal("hops", sorted(ends), sorted(hop["name"] for hop in lines))
    backlog, exactly = 0, True
    for name, (sends, receives) in ends.items():
        line, hashes = by_name(lines, name), {message["hash"] for message in sends}
        receives = [message for message in receives if message["hash"] in hashes]
        expected = {"frames_sent": len(sends), "frames_received": len(receives), "backlog_frames": 0}
        checks.matches(line, expected, f"hop {name}")
        low, high = peak(sends, receives)
        reported = number(line, "backlog_max_frames")
        checks.true(f"hop {name}: backlog_max_frames {reported} is from {low} to {high}", low <= reported <= high)
        backlog, exactly = max(backlog, reported), exactly and low == high
    outcome.backlog = backlog
    return f"backlog {backlog}{'' if exactly else ' (timestamps overlap)'}"


def peak(sends: list[dict], receives: list[dict]) -> tuple[int, int]:
    """Bounds of the peak backlog. The maximum assumes the earliest sends and the latest receives; the minimum the reverse. They are equal unless
    a send and a receive overlap while the backlog peaks."""

    def highest(sent: str, received: str) -> int:
        # At equal times, sends sort first.
        steps = sorted([(s[sent], -1) for s in sends] + [(t[received], 1) for t in receives])
        now = most = 0
        for _, step in steps:
            now -= step
            most = max(most, now)
        return most

    # Every sent frame waits at least briefly, so the peak is at least 1.
    return max(1, highest("accepted_ns", "called_ns")), highest("sent_ns", "received_ns")


def expectations(outcome: Outcome) -> dict[str, Expected]:
    """All requests with a chunk, by request id."""
    requests: dict[str, Expected] = {}
    output = messages(outcome, "output")
    for message in output:
        for rid, _, completion, finish in message["chunks"]:
            request = requests.setdefault(rid, Expected((message["sent_ns"], message["accepted_ns"])))
            request.chunks += 1
            request.tokens = request.tokens if completion is None else completion
            request.finish = finish or request.finish
    to_tokenizer = outcome.detokenizer.sent if outcome.detokenizer else output
    chunks = {message["hash"]: message["chunks"] for message in to_tokenizer}
    for received in outcome.receiver.received:
        for rid, *_ in chunks.get(received["hash"], []):
            if rid in requests and not requests[rid].first_received:
                requests[rid].first_received = (received["called_ns"], received["received_ns"])
    return requests


def requests(checks: Checks, outcome: Outcome) -> str:
    expected, report = expectations(outcome), outcome.report
    start = report["window_mono_ns"][0]
    lines = {line["rid"]: line for line in report["slowest"]}
    wrong: dict[str, list] = {"first send": [], "first receive": [], "gap": [], "counts": []}
    worst = 0

    def is_within(at_ns: int | None, stamps: tuple[int, int] | None) -> bool:
        return at_ns is not None and stamps is not None and stamps[0] <= at_ns + start <= stamps[1]

    for rid, truth in expected.items():
        line = lines.get(rid)
        if not line:
            wrong["counts"].append((rid, "is not listed"))
            continue
        sent_ns, received_ns, gap = (line.get(key) for key in ("first_sent_ns", "first_received_ns", "gap_ns"))
        # Widen the tolerance where the engine's own timestamps are further apart.
        uncertainty = sum(stamps[1] - stamps[0] for stamps in (truth.first_sent, truth.first_received) if stamps)
        error = abs(gap - truth.gap) if gap is not None and truth.first_received else None
        counts = [line.get(key) for key in ("chunks_sent", "tokens_sent", "tokens_received", "finish")]
        for what, good, reported in (
            ("first send", is_within(sent_ns, truth.first_sent), (sent_ns, truth.first_sent)),
            ("first receive", is_within(received_ns, truth.first_received), (received_ns, truth.first_received)),
            ("gap", error is not None and error <= max(TOLERANCE_NS, uncertainty), (gap, truth.gap)),
            ("counts", counts == [truth.chunks, truth.tokens, truth.tokens, truth.finish], (counts, truth)),
        ):
            if not good:
                wrong[what].append((rid, *reported))
        worst = max(worst, error or 0)
    for what, requests_ in wrong.items():
        checks.none_of(len(expected), f"requests whose {what} does not match the timestamps", requests_)
    checks.matches(report, {"gap_ns/count": len(expected)})
    longest = max((truth.gap for truth in expected.values()), default=0)
    return f"{len(expected)} gaps up to {longest / 1e6:.0f} ms, each within {worst / 1e6:.3f} ms"


def slow(checks: Checks, outcome: Outcome) -> None:
    """Many frames waited, and the report attributes long first-token gaps only to the busy receiver's hop."""
    checks.true("at least fifty frames waited at once", outcome.backlog >= 50)
    for gap in findings(outcome.report, "first-token-gap")[:1]:
        sender = "detokenizer" if outcome.detokenizer else "scheduler"
        checks.equal("the hop that first tokens wait on", f"{sender}->tokenizer", gap["hop"])


def without_wakeups(checks: Checks, outcome: Outcome) -> None:
    """`--no-wakeups`: values derived from wakeups are null, and all others are present."""
    hidden = ("chunks/dropped_predicted", "hops/0/wakeup_frames_max", "hops/0/wakeup_frames")
    checks.matches(outcome.report, dict.fromkeys(hidden))
    checks.true("the report gives the reason", "(--no-wakeups)" in compare.degraded(outcome.report))
