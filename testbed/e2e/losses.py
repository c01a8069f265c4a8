"""Comparisons of reported deliveries and losses with each client's own count."""

from .checks import ABSENT, Checks, at, findings, number, same_bytes
from .session import Outcome, Truth

Places = dict[str, set[int]]


def missing(outcome: Outcome) -> Places:
    """Positions of the tokens that each client lost, 0-based, by request."""
    each = {
        client["rid"]: {place for first, after in client["missing"] or [] for place in range(first, after)}
        for client in (outcome.clients or outcome.receiver).clients
    }
    return {rid: places for rid, places in each.items() if places}


def listed(report: dict, kind: str) -> Places:
    """The same from the report's `losses`, which is 1-based."""
    lines = (report["losses"][kind] or {}).get("lines", [])
    each = {
        line["rid"]: {place for r in line["ranges"] for place in range(r["tokens"][0] - 1, r["tokens"][1])} for line in lines
    }
    return {rid: places for rid, places in each.items() if places}


def confirmed(checks: Checks, outcome: Outcome) -> None:
    """`losses.confirmed` lists exactly the tokens that clients lost."""
    checks.equal("lost tokens by request and position", missing(outcome), listed(outcome.report, "confirmed"))


def lost_by_client(truth: Truth) -> dict[str, int]:
    return {client["rid"]: client["lost"] for client in truth.clients if client["lost"]}


def lost_by_request(report: dict) -> dict[str, int]:
    """Lost tokens by request, according to the report."""
    return {line["rid"]: line["tokens_lost"] for line in report["slowest"] if line.get("tokens_lost")}


def dropped(report: dict) -> tuple[int, int]:
    """Requests and tokens in the finding of confirmed loss."""
    evidence = next((finding["evidence"] for finding in findings(report, "dropped-chunks")), {})
    return number(evidence, "requests"), number(evidence, "tokens_lost")


def delivered(checks: Checks, outcome: Outcome) -> None:
    report, clients = outcome.report, outcome.clients
    checks.equal("clients without ids", 0, clients.totals["clients_without_ids"])
    expected = {
        "tokens/delivered": sum(client["distinct_ids"] for client in clients.clients),
        "chunks/tokens_lost": clients.totals["lost"],
        "chunks/unjudged": 0,
        "chunks/in_flight": 0,
        "self/degraded": [],
        "answers/client_left": 0,
        "answers/server_left": 0,
    }
    checks.matches(report, expected)
    checks.equal("lost tokens by request", lost_by_client(clients), lost_by_request(report))
    loss = (clients.totals["clients_with_loss"], clients.totals["lost"])
    checks.equal("the finding's requests and tokens", loss, dropped(report))
    # Only some releases reply to requests dropped in the queue.
    checks.true("answers do not exceed clients", 0 < number(report, "answers/seen") <= len(clients.clients))


def stalled(checks: Checks, outcome: Outcome) -> None:
    """The stalls affect some requests, always through queued chunks."""
    report, totals = outcome.report, outcome.clients.totals
    # A release that merges may not have merged anything, if its event loop ran between the frames.
    if at(report, "source/waiter") == "keeps-last":
        checks.true("some clients lose tokens", totals["clients_with_loss"] > 0)
    # On an idle machine, a few of a hundred clients lose tokens; on a loaded one, more.
    checks.true("some clients lose none", totals["clients_with_loss"] < totals["finished"])
    wakeup = at(report, "hops/0/wakeup_frames_max")
    checks.true("several chunks per wakeup, if wakeups are observed", wakeup in (None, ABSENT) or wakeup >= 8)


def only_predicted(checks: Checks, outcome: Outcome) -> None:
    """Clients inside the engine's process: deliveries cannot be observed, so loss is predicted, never confirmed."""
    report, not_observed = outcome.report, ("delivered", "dropped_confirmed", "tokens_lost", "merged")
    checks.matches(report, dict.fromkeys(["tokens/delivered", *(f"chunks/{name}" for name in not_observed)]))
    checks.equal("answers", None, report.get("answers"))
    confirms = [f for f in findings(report) if f["kind"] == "short-answers" or "never delivered" in f["summary"]]
    checks.equal("findings that confirm unobserved losses", [], confirms)


def unread(words: str):
    """Responses that cannot be read: their deliveries are unknown, and the report says why and what to do."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        report = outcome.report
        checks.matches(report, {"tokens/delivered": None, "chunks/tokens_lost": None})
        checks.true(f"the report has {words!r}", any(words in line for line in report["self"]["degraded"]))

    return judge


def some_predicted(checks: Checks, outcome: Outcome) -> None:
    # Releases from 0.5.10 on lose nothing.
    keeps_last = at(outcome.report, "source/waiter") == "keeps-last"
    checks.equal("loss is predicted", keeps_last, number(outcome.report, "chunks/dropped_predicted") > 0)


def clients_left(checks: Checks, outcome: Outcome) -> None:
    """Tokens of clients that disconnect or stop reading, three of each kind, do not count as lost in the engine."""
    same_bytes(checks, outcome)
    report, each = outcome.report, 3
    expected = {
        "answers/client_left": 3 * each,
        "answers/server_left": 0,
        "self/events_missed": 0,
        "chunks/unjudged": 0,
    }
    checks.matches(report, expected)
    checks.true("stopped readers were detected", number(report, "answers/short_writes") >= each)
    # Clients that stayed know their losses. For clients that left, the server knows which chunks it skipped.
    stayed = [client for client in outcome.clients.clients if not client.get("left")]
    checks.equal("clients that stayed", len(outcome.clients.clients) - 3 * each, len(stayed))
    checks.equal("clients", 12, len(outcome.clients.clients))
    skipped, reported = lost_by_client(outcome.receiver), lost_by_request(report)
    for client in stayed:
        checks.equal(f"tokens lost by {client['rid']}", client["lost"] or 0, reported.get(client["rid"], 0))
    unexplained = {rid: lost for rid, lost in reported.items() if lost > skipped.get(rid, 0)}
    checks.equal("losses not caused by the engine", {}, unexplained)
    checks.equal("the finding's requests and tokens", (len(reported), sum(reported.values())), dropped(report))
    checks.true("unwritten chunks are in flight", number(report, "chunks/in_flight") > 0)


def texts(checks: Checks, outcome: Outcome) -> None:
    """Events of the OpenAI endpoints carry text and no counts, so their tokens are counted by their text. Nothing is lost, except by
    `/v1/completions` of 0.5.10 to 0.5.16 with incremental output: it cuts new text by the length of the text before."""
    same_bytes(checks, outcome)
    report, clients, totals = outcome.report, outcome.clients.clients, outcome.clients.totals
    checks.matches(report, {"answers/seen": len(clients), "answers/client_left": 0, "answers/server_left": 0})
    made = len(clients) * 100
    checks.equal("tokens in the clients' usage", made, totals["completion_tokens"])
    # Words equal tokens here, so the clients can count them.
    delivered = {"tokens/delivered": totals["ids"], "tokens/uncounted": 0, "chunks/in_flight": 0, "chunks/unjudged": 0}
    checks.matches(report, delivered | {"chunks/tokens_lost": made - totals["ids"]})
    lost = {client["rid"]: client["lost"] for client in clients if client["lost"]}
    checks.equal("tokens lost by request", lost, lost_by_request(report))
    checks.equal("clients", 16, len(clients))


def damaged(lost: range):
    """Text that differs from what was sent is unjudged. Text that is missing is lost if no parser can have removed it, in completions, which
    are half of the requests, and if the response was observed from its head, which the server may have sent before `attach` starts. `lost`:
    expected numbers of requests that lost tokens."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        same_bytes(checks, outcome)
        report, clients = outcome.report, outcome.clients.clients
        reported = lost_by_request(report)
        checks.true(f"{len(reported)} requests lost tokens, expected {lost}", len(reported) in lost)
        # An event may have the text of several chunks.
        for client in clients:
            if client["rid"] in reported:
                checks.equal(f"tokens lost by {client['rid']}", client["lost"], reported[client["rid"]])
        checks.matches(report, {"answers/seen": len(clients), "chunks/in_flight": 0})
        checks.equal("the finding of confirmed loss", (len(reported), sum(reported.values())), dropped(report))
        checks.true("chunks are unjudged", number(report, "chunks/unjudged") >= len(clients) - len(reported))
        checks.true("chunks before the damage were delivered", number(report, "tokens/delivered") >= len(clients))

    return judge


def scored(outcome: Outcome) -> str:
    """Table cells with precision and recall of predicted drops: by request, by tokens of each request, and by token position."""
    lost, predicted = missing(outcome), listed(outcome.report, "predicted")
    both = lost.keys() & predicted.keys()
    tokens = [sum(map(len, places.values())) for places in (lost, predicted)]
    common = sum(min(len(lost[rid]), len(predicted[rid])) for rid in both)
    right = sum(len(lost[rid] & predicted[rid]) for rid in both)

    def share(part: int, whole: int) -> str:
        return f"{part / whole:.3f}" if whole else "-"

    cells = [tokens[0], tokens[1], share(len(both), len(predicted)), share(len(both), len(lost))]
    cells += [share(common, tokens[1]), share(common, tokens[0]), share(right, tokens[1])]
    return " | ".join(map(str, cells))


def predictions(setting):
    """Where nothing can be lost, nothing is predicted. Confirmed losses equal the truth. Predicted tokens match exactly for a consumer
    without extra event-loop turns, which cannot be observed from outside."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        lost, predicted = missing(outcome), listed(outcome.report, "predicted")
        checks.scores.append(scored(outcome))
        if at(outcome.report, "source/waiter") != "keeps-last" or "--cumulative" in setting.receiver:
            checks.equal("tokens predicted to be lost by a release that loses none", {}, predicted)
            checks.equal("tokens lost by a release that loses none", {}, lost)
            return
        checks.matches(outcome.report, {"source/mode": "incremental"})
        if setting.http:
            confirmed(checks, outcome)
        if not {"--turns", "--other-thread"} & set(setting.receiver):
            checks.equal("predicted tokens by request and position", lost, predicted)

    return judge
