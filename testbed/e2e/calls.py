"""Comparisons of reported tool calls with the arguments that each client received."""

from collections import Counter

from .. import call_text
from .checks import Checks, same_bytes
from .session import PLAIN, Outcome

# Sixteen chats with two tool calls each. Steps are slow, so that each event has the text of few tokens.
SETTING = dict(
    plan=PLAIN | dict(requests=16, tokens=call_text.TOKENS, stops=16, text="calls"),
    http=True,
    late_clients=True,
    detokenizer=True,
    gap_ms=10,
    clients=("--openai",),
)

# Faults in the rows that test another release or the other way to observe.
SOME = (None, "call-drop", "call-omit")


def served(parser: str, fault: str | None = None) -> dict:
    """A server with this parser, whose responses have this fault."""
    return SETTING | dict(receiver=("--openai", "--tool-call-parser", parser, *(("--fault", fault) if fault else ())))


def judged(fault: str | None):
    """Compares with the clients of the harness, whose tokenizer gives the position of each token."""

    def judge(checks: Checks, outcome: Outcome) -> str:
        same_bytes(checks, outcome)
        clients = {client["rid"]: client["calls"] for client in outcome.clients.clients}
        checks.equal("clients", 16, len(clients))
        return compare(checks, outcome.report, clients, fault, call_text.tokens_of)

    return judge


def compare(checks: Checks, report: dict, clients: dict[str, dict[str, str]], fault: str | None, tokens_of=None) -> str:
    """Each response has the outcome of its fault, with the part that turns the engine's arguments into those of the client. `clients`:
    arguments of each call, by request."""
    lines = {line["rid"]: line for line in (report.get("tool_calls") or {}).get("lines", [])}
    checks.equal("responses with tool calls", sorted(clients), sorted(lines))
    expected, by, change = FAULTS[fault]
    if change is None and any(len(calls) < len(call_text.CALLS) for calls in clients.values()):
        # The parser of 0.5.9 leaves out every call behind the first.
        expected, by = "absent", None
    checks.equal("outcomes", {expected: len(clients)}, dict(Counter(line["outcome"] for line in lines.values())))
    findings = [finding for finding in report["findings"] if finding["kind"] == "damaged-tool-calls"]
    checks.equal("damaged-tool-calls findings", int(change is not None), len(findings))
    for rid, line in lines.items():
        checks.equal(f"{rid}: by", by, line["by"])
        received = clients[rid].get("0", "")
        if change is None:
            checks.equal(f"{rid}: arguments", call_text.ARGUMENTS[0], received)
            checks.equal(f"{rid}: absent calls", 2 - len(clients[rid]), line["absent"])
            continue
        sent, part = call_text.ARGUMENTS[0], line["part"]
        checks.equal(f"{rid}: call", 1, line["call"])
        checks.true(f"{rid}: the client's arguments differ", received != sent)
        begin, end = part["at"] - 1, part["at"] - 1 + part["chars"]
        explains = change(sent[:begin], sent[begin:end], sent[end:], received)
        checks.true(f"{rid}: {part} explains {received}", explains)
        if tokens_of:
            checks.equal(f"{rid}: tokens", tokens_of(0, begin, end), part["tokens"])
    return f"e.g. {next(iter(lines.values()), None)}"


def exchanged(before: str, part: str, after: str, received: str) -> bool:
    return any(before + part[at:] + part[:at] + after == received for at in range(1, len(part)))


def incomplete(before: str, part: str, after: str, received: str) -> bool:
    replaced = received[len(before) : len(received) - len(after)]
    return received.startswith(before) and received.endswith(after) and "\ufffd" in replaced and not part.isascii()


# Outcome, party at fault, and whether a part explains the difference.
FAULTS = {
    None: ("complete", "nobody", None),
    "join": ("complete", "nobody", None),
    "call-drop": ("missing", "serving-process", lambda before, part, after, received: before + after == received),
    "call-repeat": ("repeated", "serving-process", lambda before, part, after, received: before + part + part + after == received),
    "call-swap": ("swapped", "serving-process", exchanged),
    "call-eat": ("missing", "parser", lambda before, part, after, received: before + after == received and part == "}"),
    "call-cut": ("garbled", "serving-process", incomplete),
    "call-omit": ("absent", None, None),
}
