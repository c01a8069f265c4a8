"""Comparisons of a report with the truth, including those for every relayed run."""

import re
from collections import Counter

HOPS = ("scheduler->detokenizer", "detokenizer->tokenizer")
# Hop of the path without a detokenizer, as named by a tap that sees only the sender.
ONLY_HOP = "scheduler->upstream"
# Findings caused by a process that is too slow for its load or lacks CPU, and by the resulting merging.
SLOW = {
    *("first-token-gap", "backlog", "consumer-cpu-bound", "consumer-starved"),
    *("consumer-asleep", "io-thread-starved", "merged-chunks"),
}
# Findings of tokens lost to clients.
LOSS = {"dropped-chunks", "dropped-chunks-predicted", "short-answers"}
# Value of a path that does not exist.
ABSENT = "(absent)"


class Checks:
    """Comparisons of one row."""

    def __init__(self):
        self.made = 0
        self.failed: list[str] = []
        # Lines of the score table.
        self.scores: list[str] = []

    def equal(self, what: str, expected, got) -> None:
        self.made += 1
        if expected != got or type(expected) is not type(got):
            self.failed.append(f"{what}: expected {expected!r}, got {got!r}")

    def true(self, what: str, got: bool) -> None:
        self.equal(what, True, bool(got))

    def none_of(self, count: int, what: str, wrong: list) -> None:
        """Records `count` comparisons, of which those in `wrong` failed."""
        self.made += count
        if wrong:
            self.failed.append(f"of {count}, {len(wrong)} {what}, such as {wrong[:5]}")

    def matches(self, report: dict, expected: dict, where: str = "report") -> None:
        """Compares values of the report, by path."""
        for path, value in expected.items():
            self.equal(f"{where} {path}", value, at(report, path))


def at(value, path: str):
    """The value at a path such as `hops/0/chunks`."""
    for key in path.split("/"):
        if isinstance(value, list) and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return ABSENT
    return value


def number(value, path: str) -> int:
    """The number at a path, or 0."""
    found = at(value, path)
    return found if isinstance(found, int) else 0


def findings(report: dict, kind: str | None = None) -> list[dict]:
    return [finding for finding in report["findings"] if kind in (None, finding["kind"])]


def by_name(lines: list[dict], name: str) -> dict:
    """The entry with this name, or an empty one."""
    return next((line for line in lines if line["name"] == name), {})


def degraded(report: dict) -> str:
    return "\n".join(report["self"]["degraded"])


def sent(outcome, socket: str) -> Counter:
    """Sums over the schedulers' totals of one socket."""
    return sum((Counter(sender.totals[socket]) for sender in outcome.senders), Counter())


def messages(outcome, socket: str | None = None) -> list[dict]:
    """Messages that the schedulers sent, on one socket or all."""
    return [message for sender in outcome.senders for message in sender.sent if socket in (None, message["on"])]


def summary(outcome) -> str:
    """The engine's own counts."""
    output, client = sent(outcome, "output"), outcome.receiver.totals
    lost = f"lost {client['lost']} of {client['completion_tokens']} tokens"
    if client["clients_without_ids"]:
        lost = "without ids to detect loss"
    return (
        f"{client['frames']} frames, {output['chunks']} chunks, {output['tokens']} tokens; "
        f"{client['finished']} clients got {client['outputs']} outputs, {lost}"
    )


def relayed(checks: Checks, outcome) -> None:
    """An undisturbed run: every byte arrives, and the report counts exactly the sent messages and no more losses than the clients have."""
    check_delivery_and_counts(checks, outcome)
    if outcome.report:
        checks.matches(outcome.report, {"self/events_missed": 0})
        # The finding's limit is 1 s from the send to the client's connection, most of which is the wait for the receiver's start.
        late = {"late-delivery"} if longest_wait_ns(outcome) >= 500_000_000 else set()
        verdicts(checks, outcome.report, outcome.lost, late)


def longest_wait_ns(outcome) -> int:
    """Longest time from the send of a message to the tokenizer until its receiver had it, by their own timestamps."""
    senders = [outcome.detokenizer] if outcome.detokenizer else outcome.senders
    sent_ns = {message["hash"]: message["sent_ns"] for sender in senders for message in sender.sent}
    waits = [frame["received_ns"] - sent_ns[frame["hash"]] for frame in outcome.receiver.received if frame["hash"] in sent_ns]
    return max(waits, default=0)


def relayed_beside_strangers(checks: Checks, outcome, strangers: int) -> None:
    """The same with invalid peers: the tap may report only their connections as unreadable."""
    check_delivery_and_counts(checks, outcome)
    if report := outcome.report:
        missed = at(report, "self/events_missed")
        checks.true("at most the invalid peers were not observed", missed <= strangers)
        checks.matches(report, {"self/missed_by_cause/unframed": missed})
        verdicts(checks, report, outcome.lost, {"missed-observations"})


def check_delivery_and_counts(checks: Checks, outcome) -> None:
    same_bytes(checks, outcome)
    # Some releases also answer requests aborted in the queue.
    finished = outcome.receiver.totals["finished"]
    checks.true("every client of a finished request received its finish", finished >= sent(outcome, "output")["finishes"])
    if outcome.clients:
        given = {name: outcome.receiver.totals[name] for name in CLIENT_TOTALS}
        received = {name: outcome.clients.totals[name] for name in CLIENT_TOTALS}
        checks.equal("HTTP responses received and sent", given, received)
    if outcome.report:
        counts(checks, outcome)
        release_is_right(checks, outcome)


CLIENT_TOTALS = ("finished", "outputs", "ids", "completion_tokens", "lost", "clients_without_ids", "clients_with_loss")


def same_bytes(checks: Checks, outcome) -> None:
    """Each process received exactly the messages sent to it, in order within their connection."""

    def connections(socket: str) -> list[list[str]]:
        return [[m["hash"] for m in sender.sent if m["on"] == socket] for sender in outcome.senders]

    if outcome.detokenizer:
        arrived(checks, "detokenizer", connections("output"), outcome.detokenizer.received)
        relayed_on = [message["hash"] for message in outcome.detokenizer.sent if message["on"] == "output"]
        arrived(checks, "tokenizer", [*connections("control"), relayed_on], outcome.receiver.received)
    else:
        both = connections("output") + connections("control")
        arrived(checks, "tokenizer", both, outcome.receiver.received)


def arrived(checks: Checks, where: str, connections: list[list[str]], messages: list[dict]) -> None:
    expected = Counter(hash for connection in connections for hash in connection)
    received = Counter(message["hash"] for message in messages)
    checks.equal(f"messages that did not reach the {where}", 0, (expected - received).total())
    checks.equal(f"messages at the {where} that were never sent", 0, (received - expected).total())
    for index, connection in enumerate(connections):
        left = (message["hash"] for message in messages)
        checks.true(f"connection {index} to the {where} preserved its order", all(hash in left for hash in connection))


def counts(checks: Checks, outcome) -> None:
    report, output, control = outcome.report, sent(outcome, "output"), sent(outcome, "control")
    hops = {ONLY_HOP: output + control}
    if outcome.detokenizer:
        hops = {HOPS[0]: output, HOPS[1]: Counter(outcome.detokenizer.totals["output"]) + control}
    for name, count in hops.items():
        expected = {"frames_sent": count["frames"], "frames_forwarded": count["frames"]}
        expected |= {"chunks": count["chunks"], "bytes": count["bytes"]}
        checks.matches(by_name(report["hops"], name), expected, f"report hop {name}")
    if len(outcome.senders) > 1:
        ranks(checks, outcome)
    expected = {
        "chunks/sent": output["chunks"],
        "tokens/sent": output["tokens"],
        "requests/seen": output["requests"] + control["abort_messages"],
        "requests/finished": output["finishes"],
        "requests/aborted": output["aborts"] + control["abort_messages"],
        "self/frames_undecoded": 0,
    }
    checks.matches(report, expected)


def ranks(checks: Checks, outcome) -> None:
    """The scheduler's hop has a connection for each data-parallel rank, with the frames and chunks that the rank sent."""
    each = [[sender.totals["output"][count] for count in ("frames", "chunks")] for sender in outcome.senders]
    # Hops are listed in order of first observation.
    hop = next((hop for hop in outcome.report["hops"] if hop["name"].startswith("scheduler->")), {})
    lanes = [[lane["frames"], lane["chunks"]] for lane in hop.get("lanes", [])]
    checks.equal("frames and chunks of each rank's connection", sorted(each), sorted(lanes))


def release_is_right(checks: Checks, outcome) -> None:
    """The release that tap inferred or attach detected is the running one, or a range that includes it."""
    ran, reported = outcome.senders[0].totals["release"], outcome.report["source"]["engine_version"] or ""
    first, _, last = reported.partition("..")
    contains = order(first) <= order(ran) <= order(last or first)
    checks.true(f"{ran} is in the recognised release range, {reported!r}", contains)


def order(release: str) -> list[int]:
    """Sort key of a release: `0.5.10rc0` < `0.5.10` < `0.5.10.post1`."""
    spaced = release.replace("rc", ".-1.").replace("post", "1.") if re.search("rc|post", release) else f"{release}.0"
    return [int(part) for part in spaced.split(".") if re.fullmatch(r"-?\d+", part)]


def verdicts(checks: Checks, report: dict, lost: int, allowed: set[str] = frozenset()) -> None:
    """The report has only warnings of `allowed` kinds, and of lost tokens only if clients lost some. If deliveries are observed, the loss
    must be critical and listed first. Each warning has advice."""
    warnings = [finding for finding in findings(report) if finding["severity"] != "info"]
    known = allowed | LOSS if lost else allowed
    unexpected = [f"{w['kind']}: {w['summary']}" for w in warnings if w["kind"] not in known]
    checks.equal("unexpected warnings", [], unexpected)
    checks.equal("warnings without advice", [], [w["kind"] for w in warnings if not isinstance(w.get("advice"), str)])
    if lost and isinstance(at(report, "chunks/tokens_lost"), int):
        first = warnings[0] if warnings else {"severity": None, "kind": None}
        checks.equal("severity of the headline", "critical", first["severity"])
        checks.true(f"the headline is the loss, not {first['kind']}", first["kind"] in LOSS)
