"""Rows that compare each request's time to first token with the clock of its client's kernel: `python -m testbed.real --ttft`."""

import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .compare import Checks, records
from .server import Server

ROOT = Path(__file__).parents[2]
# Largest difference between the client's time and the reported one, in ns.
MEDIAN_NS = 200_000
P99_NS = 1_000_000
# Largest difference between the sums of all times, for each request.
SUM_NS_PER_REQUEST = 1_000_000
STREAMS = [8, 64, 256]
LOADS = {
    "short answers": ["--tokens", "16"],
    "long answers": ["--tokens", "128"],
    "long prompts": ["--words", "400", "--tokens", "32"],
}
SECONDS = "8"
SERVERS = {"0.5.9": ["--stream-output", "--enable-metrics"], "0.5.23": ["--enable-metrics"]}


def percentile(values: list[int], share: float) -> int:
    """
    >>> percentile([3, 1, 2], 0.5), percentile([1, 2], 0.99)
    (2, 2)
    """
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(server, truth: Path, engine: str, *flags: str) -> list[dict]:
    command = [sys.executable, "-m", "testbed.first_tokens", "--url", server.url, "--engine", engine, "--truth", str(truth), *flags]
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=300)
    return records(truth)


def compare_times(checks: Checks, truth: list[dict], report: dict) -> str:
    """Compares request by request, and the sums. Returns the differences in words."""
    reported = {line["rid"]: line["ttft_ns"] for line in report["slowest"] if line.get("ttft_ns") is not None}
    clients = {record["id"]: record["first_ns"] - record["sent_ns"] for record in truth if record["status"] == 200 and record["first_ns"] is not None}
    rejected = Counter(str(record["status"]) for record in truth if record["status"] >= 400)
    checks.equal("responses rejected, by status", dict(rejected), report.get("rejected", {}))
    checks.equal("requests", set(), clients.keys() ^ reported.keys())
    differences = [abs(clients[rid] - reported[rid]) for rid in clients.keys() & reported.keys()]
    if not differences:
        checks.equal("requests with a first token", True, False)
        return "no request"
    middle, high, most = statistics.median(differences), percentile(differences, 0.99), max(differences)
    checks.equal(f"median difference {middle / 1e6:.3f} ms within {MEDIAN_NS / 1e6} ms", True, middle <= MEDIAN_NS)
    checks.equal(f"p99 of the difference {high / 1e6:.3f} ms within {P99_NS / 1e6} ms", True, high <= P99_NS)
    total, total_reported = sum(clients.values()), sum(reported.values())
    limit = SUM_NS_PER_REQUEST * len(clients)
    checks.equal(f"sums differ by {(total_reported - total) / 1e6:.3f} ms, within {limit / 1e6} ms", True, abs(total_reported - total) <= limit)
    return (
        f"{len(differences)} requests, client's median {statistics.median(clients.values()) / 1e6:.1f} ms, difference: median {middle / 1e6:.3f}, "
        f"p99 {high / 1e6:.3f}, largest {most / 1e6:.3f} ms; sums {total / 1e9:.3f} and {total_reported / 1e9:.3f} s"
    )


def ttft_rows(lane, attach, home: Path, logs: Path) -> None:
    """One row for each release, number of streams and load. `attach` runs the program on a server."""
    for release, flags in SERVERS.items():
        with Server(home, release, flags, logs / f"ttft-{release}.log") as server:
            measure(server, logs / "warm.jsonl", "sglang", "--streams", "4", "--seconds", "2")
            for streams in STREAMS:
                for name, options in LOADS.items():

                    def run(folder: Path, checks: Checks) -> str:
                        with attach(lane.tokengap, server, folder) as attached:
                            truth = measure(
                                server, folder / "clients.jsonl", "sglang", "--streams", str(streams), "--seconds", SECONDS, *options
                            )
                        return compare_times(checks, truth, attached.report())

                    lane.row(f"ttft: {release}, {streams} streams, {name}", run)
