"""Rows whose clients are refused, or leave: `python -m testbed.real --refused`."""

from collections import Counter
from pathlib import Path

from .compare import Checks, compare_ends
from .server import Server

# Few enough that most clients find the queue full.
QUEUE = ["--max-running-requests", "4", "--max-queued-requests", "4"]
# Of a stream, a refusal is an event with status 200.
LOAD = ["--streams", "20", "--seconds", "8", "--tokens", "64", "--whole", "0.6", "--too-long", "0.1", "--leave", "0.3", "--chat", "0.2"]
TOO_LONG, QUEUE_FULL = "400", "503"


def refused_rows(lane, attach, load, home: Path, logs: Path) -> None:
    """`attach` and `load` are those of the other rows."""
    with Server(home, "0.5.23", ["--enable-metrics", *QUEUE], logs / "refused.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")

        def run(folder: Path, checks: Checks) -> str:
            with attach(lane.tokengap, server, folder) as attached:
                truth = load(server, folder / "truth.jsonl", "--cumulative", *LOAD)
            report, statuses = attached.report(), Counter(str(r["status"]) for r in truth)
            compare_ends(checks, truth, report)
            answers, rejected = report["answers"], sum(report.get("rejected", {}).values())
            failed = [r for r in truth if r["status"] == 200 and r["error"]]
            # A stream of /generate that is refused before its dispatch has status 200 and no id, only an event with the error.
            unnamed = sum(r["kind"] == "stream" for r in failed)
            checks.equal("responses", len(truth), answers["seen"] + rejected)
            checks.equal("responses with an error in place of an event", len(failed), answers["failed"])
            left = sum(r["left"] for r in truth)
            checks.equal("all kinds occurred", True, min(statuses[TOO_LONG], statuses[QUEUE_FULL], left, len(failed)) > 0)
            return f"{len(truth)} requests, by status {dict(statuses)}, {len(failed)} errors in a stream ({unnamed} without an id), {left} clients left"

        lane.row("0.5.23, refused requests and clients that leave", run)
