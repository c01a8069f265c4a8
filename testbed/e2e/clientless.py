"""Abandoned requests behind `tap`: the scheduler continues requests after their clients left, and the report has their number and tokens."""

import json
import signal
from pathlib import Path

from .checks import Checks, at, findings
from .process import endpoint, free_port
from .session import STARTUP, Run, Splice, Tap

# Time limit of the emulated engine, which sends for eight seconds.
PATIENCE = 60
# Tokens that a request may get between its client's exit and its observation.
LATE_TOKENS = 20


def abandoned(run: Run) -> str:
    tokenizer = Splice.new(run.relay, run.folder, "tokenizer", hop="scheduler->tokenizer")
    script = Path(__file__).with_name("clientless_engine.py")
    engine = run.start("engine", [run.options.python, script, "--bind", tokenizer.back, "--connect", tokenizer.front])
    port = engine.line("READY", STARTUP)
    relayed_port = free_port()
    http = Splice(f"http://127.0.0.1:{relayed_port}", f"http://127.0.0.1:{port}")
    tap = Tap(run, run.relay, "tap", [tokenizer, http], run.folder)
    engine.write_line(f"go {relayed_port}")
    truth = json.loads(engine.line("DONE", PATIENCE))
    engine.end_well(PATIENCE)
    report = tap.report(signal.SIGINT)
    return compare(run.checks, report, truth)


def compare(checks: Checks, report: dict, truth: dict) -> str:
    """Compares the report with the tokens of each request."""
    gone = {rid: request for rid, request in truth.items() if request["discarded"]}
    sent, delivered = (sum(request[of] for request in truth.values()) for of in ("sent", "delivered"))
    expected = {
        "tokens/sent": sent,
        "tokens/delivered": delivered,
        "answers/client_left": len(gone),
        "abandoned/requests": len(gone),
        "abandoned/by": "responses and frames",
    }
    checks.matches(report, expected)
    rows = report.get("abandoned", {}).get("longest", [])
    checks.equal("rids", sorted(gone), sorted(row["rid"] for row in rows))
    for row in rows:
        without_client = gone[row["rid"]]["sent"] - gone[row["rid"]]["delivered"]
        checks.true(f"tokens of {row}", without_client - LATE_TOKENS <= row["tokens"] <= without_client)
    checks.equal("their sum", sum(row["tokens"] for row in rows), at(report, "abandoned/tokens"))
    checks.equal("findings", ["abandoned-requests"], [finding["kind"] for finding in findings(report)])
    checks.true("headline", report["verdict"].startswith(f"WARNING: the scheduler continued {len(gone)} request"))
    return f"{len(gone)} of {len(truth)} requests abandoned, {at(report, 'abandoned/tokens')} of {sent} tokens generated for nobody"
