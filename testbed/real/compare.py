"""Comparisons of a report with the counts of clients."""

import json
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path

# Findings expected of a release that loses tokens under load, and of a loaded machine.
LOSES = {"dropped-chunks"}
SLOW = {
    *("first-token-gap", "backlog", "consumer-cpu-bound", "consumer-starved", "consumer-cpu-logged", "io-thread-starved"),
    *("merged-chunks", "late-read", "late-dispatch", "late-receive", "late-intake", "queued", "slow-prefill", "slow-first-token"),
}


class Checks:
    """Comparisons of one row."""

    def __init__(self):
        self.made = 0
        self.failed: list[str] = []

    def equal(self, name: str, truth, reported) -> None:
        self.made += 1
        if truth != reported:
            self.failed.append(f"{name}: expected {truth}, got {reported}")

    def near(self, name: str, truth: float, reported: float) -> None:
        """Compares seconds, of which clocks read the ends at slightly different times."""
        self.equal(f"{name}, {reported:.2f} of {truth:.2f} s", True, abs(truth - reported) < 0.5)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(checks: Checks, truth: list[dict], report: dict, allowed: set[str], has_router: bool = False) -> None:
    """Compares the numbers that clients know. Clients that left do not know what was sent afterwards. A router closes connections itself."""
    checks.equal("requests without an error", len(truth), sum(r["error"] is None for r in truth))
    checks.equal("requests", len(truth), report["requests"]["seen"])
    if not has_router:
        compare_ends(checks, truth, report)
    stayed = [r for r in truth if not r["left"]]
    if len(stayed) == len(truth) and not any(r["aborted"] for r in truth):
        checks.equal("tokens sent", sum(r["completion"] for r in truth), report["tokens"]["sent"])
    streams = [r for r in stayed if r["kind"] == "stream"]
    if len(stayed) == len(truth):
        # The text of a chat is complete in these releases, because a server that has several chunks sends the growth of the whole text.
        delivered = sum(r["completion"] if r["kind"] == "chat" else r["ids"] for r in truth)
        checks.equal("tokens delivered", delivered, report["tokens"]["delivered"])
        checks.equal("chunks unjudged", 0, report["chunks"]["unjudged"])
        checks.equal("chunks in flight", 0, report["chunks"]["in_flight"])
    lost = {r["rid"]: r["completion"] - r["ids"] for r in streams if r["completion"] > r["ids"]}
    confirmed = report["losses"]["confirmed"]
    left = {r["rid"] for r in truth if r["left"]}
    if confirmed is None:
        # Deliveries could not be counted, because no answer had token ids.
        checks.equal("streams of token ids", [], streams)
        checks.equal("tokens lost", None, report["chunks"]["tokens_lost"])
    else:
        reported = {line["rid"]: line["tokens"] for line in confirmed["lines"]}
        stayed_lost = {rid: tokens for rid, tokens in reported.items() if rid not in left}
        if len(reported) < confirmed["requests"]:
            # The report lists only the first thousand.
            lost_listed = {rid: tokens for rid, tokens in lost.items() if rid in stayed_lost}
            checks.equal("tokens lost by listed request", lost_listed, stayed_lost)
            if not left:
                checks.equal("requests that lost tokens", len(lost), confirmed["requests"])
                checks.equal("tokens lost", sum(lost.values()), report["chunks"]["tokens_lost"])
        else:
            checks.equal("tokens lost by request", lost, stayed_lost)
            checks.equal("tokens lost", sum(reported.values()), report["chunks"]["tokens_lost"])
    compare_first_tokens(checks, truth, report)
    expect_findings(checks, report, allowed)


def compare_ends(checks: Checks, truth: list[dict], report: dict) -> None:
    """The responses that were rejected, by status, and those whose clients left."""
    rejected = Counter(str(r["status"]) for r in truth if (r["status"] or 0) >= 400)
    checks.equal("responses rejected, by status", dict(rejected), report.get("rejected", {}))
    # Of responses over gRPC, which have no status, the end is not compared.
    if report.get("answers") and all(r["status"] for r in truth):
        checks.equal("responses whose clients left", sum(r["left"] for r in truth), report["answers"]["client_left"])


# Tolerance of two readings of the same clock.
CLOCK_NS = 200_000


def compare_first_tokens(checks: Checks, truth: list[dict], report: dict) -> None:
    """The listed requests: their legs sum to their time, which lies within the client's."""
    clients = {r["rid"]: r["first_ns"] - r["sent_ns"] for r in truth if r["kind"] == "stream" and r.get("first_ns")}
    for line in report["slowest"]:
        if line.get("ttft_ns") is None:
            continue
        legs = sum(leg["ns"] for leg in line["ttft_legs"])
        checks.equal(f"sum of the legs of {line['rid']}", line["ttft_ns"], legs)
        if line["rid"] in clients:
            within = line["ttft_ns"] <= clients[line["rid"]] + CLOCK_NS
            checks.equal(f"time to first token of {line['rid']}, {line['ttft_ns']} of {clients[line['rid']]} ns", True, within)


def expect_findings(checks: Checks, report: dict, allowed: set[str]) -> None:
    for finding in report["findings"]:
        if finding["severity"] != "info":
            checks.equal(f"finding {finding['kind']}: {finding['summary']}", True, finding["kind"] in allowed)


def places(losses: dict | None) -> set[tuple[str, int]]:
    """Pairs of request and token number."""
    lines = losses["lines"] if losses else []
    return {
        (line["rid"], number)
        for line in lines
        for part in line["ranges"]
        for number in range(part["tokens"][0], part["tokens"][1] + 1)
    }


@dataclass
class Predictions:
    """Tokens that clients lost, as confirmed and as predicted."""

    lost: int = 0
    predicted: int = 0
    # Lost and predicted, by request: the smaller of both numbers.
    right_number: int = 0
    # Lost and predicted at the same positions of a response.
    right_position: int = 0

    def __add__(self, other: "Predictions") -> "Predictions":
        return Predictions(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other))))

    def share_of_positions(self) -> float:
        """The smaller of precision and recall, by position."""
        return self.right_position / max(1, self.lost, self.predicted)


def compare_predictions(truth: list[dict], report: dict) -> Predictions:
    """Compares predicted with confirmed losses. Ignores clients that left or aborted."""
    excluded = {r["rid"] for r in truth if r["left"] or r["aborted"]}
    confirmed, predicted = places(report["losses"]["confirmed"]), places(report["losses"]["predicted"])
    lost, predicted = ({place for place in them if place[0] not in excluded} for them in (confirmed, predicted))
    same_number = Counter(rid for rid, _ in lost) & Counter(rid for rid, _ in predicted)
    return Predictions(len(lost), len(predicted), same_number.total(), len(lost & predicted))


def lost(truth: Path) -> int:
    """Number of tokens that clients of a load did not receive, of those clients that counted tokens."""
    return sum(r["completion"] - r["ids"] for r in records(truth) if r.get("kind") == "stream" and not r["left"])


def samples(truth: list[dict]) -> bool:
    return any(r["answers"] for r in truth)


def compare_samples(checks: Checks, truth: list[dict], report: dict) -> None:
    """For the engine, every answer is a request. Each client request adds one more, which warms up the prefix cache."""
    answers = sum(len(r["answers"]) for r in truth)
    checks.equal("requests", answers + len(truth), report["requests"]["seen"])
    made = sum(r["completion"] for r in truth)
    # The warm-up request generates at most one token, which no client receives.
    checks.equal("tokens sent", True, made <= report["tokens"]["sent"] <= made + len(truth))
    checks.equal("tokens delivered and lost", made, report["tokens"]["delivered"] + report["chunks"]["tokens_lost"])


def compare_sent(checks: Checks, truth: list[dict], report: dict) -> None:
    checks.equal("tokens sent", sum(r["completion"] for r in truth), report["tokens"]["sent"])
    checks.equal("requests", len(truth), report["requests"]["seen"])
    checks.equal("mode", "incremental", report["source"]["mode"])
    for finding in report["findings"]:
        if finding["severity"] != "info":
            checks.equal(f"finding {finding['kind']}: {finding['summary']}", True, finding["kind"] in SLOW)
