"""`python -m testbed.real --tokengap FILE --home DIR`: rows that compare tokengap's report with the clients' counts.

Every number known to both must be equal. A failed row prints one line for each difference and keeps its files in --keep.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import nullcontext
from pathlib import Path

from .compare import (
    LOSES,
    SLOW,
    Checks,
    Predictions,
    compare,
    compare_predictions,
    compare_samples,
    compare_sent,
    expect_findings,
    lost,
    records,
    samples,
)
from .faults import draw_load, fault_rows, healthy_server, summarize
from .held import held_thread
from .refused import refused_rows
from .server import LOSSY, PATIENT, RUST, Server, free_port, stat
from .ttft import ttft_rows

ROOT = Path(__file__).parents[2]
# Finding that tokengap did not see everything.
MISSED = "missed-observations"
# Time for which a thread is stopped.
HELD_SECONDS = 4
# Time limit of a load.
LOAD_SECONDS = 300
# Loads of rows.
FEW = ["--streams", "8", "--seconds", "8"]
MANY = ["--streams", "64", "--seconds", "8"]
MIXED = [*("--streams", "32", "--seconds", "8", "--chat", "0.3", "--whole", "0.3", "--leave", "0.1")]
# The Rust server from 0.5.18 on. Some of these releases accept chats only for the model's name.
RUST_FLAGS = ["--incremental-streaming-output", "--enable-metrics", "--served-model-name", "m", "--skip-server-warmup"]
# Parts of a report that depend on the reporting process or its options.
OWN = {"self", "slowest", "source"}
# Minimum precision and recall of predicted token losses, by request over all rows and by position in the median row.
PREDICTION_TARGET = 0.95
# Number of lost tokens below which precision and recall are not checked.
MIN_LOST_FOR_TARGET = 1000
# Number of lost tokens below which one mispredicted burst would weigh too much in a row.
MIN_LOST_OF_ROW = 100


class Attach:
    """Runs `tokengap attach` on a server in a `with` block; its report is available afterwards."""

    def __init__(self, tokengap: Path, server: Server, folder: Path, *flags: str):
        self.recording = folder / "run.tgap"
        self.errors = folder / "attach.err"
        self.report_file = folder / "report.json"
        pid = str(server.pids()["tokenizer"])
        self.command = [
            *(str(tokengap), "attach", "--pid", pid, "--headless", "--json", "--slowest", "100000"),
            *("--duration", f"{LOAD_SECONDS + 60}s", "--record", str(self.recording), *flags),
        ]

    def __enter__(self):
        with open(self.report_file, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        deadline = time.monotonic() + 30
        while "attached to" not in self.errors.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"attach did not start: {self.errors.read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, kind, *_) -> None:
        time.sleep(1)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        if kind is None and code != 0:
            raise RuntimeError(f"attach exited with {code}: {self.errors.read_text()}")

    def report(self) -> dict:
        return json.loads(self.report_file.read_text())


def load(server: Server, truth: Path, *flags: str) -> list[dict]:
    command = [str(server.python), "-m", "testbed.real.load", "--url", server.url, "--truth", str(truth), *flags]
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=LOAD_SECONDS)
    counted = records(truth)
    server.truth += counted
    return counted


def replayed(checks: Checks, tokengap: Path, recording: Path, live: dict) -> None:
    """A replay of the recording gives the same report as the live run."""
    made = subprocess.run(
        [str(tokengap), "replay", str(recording), "--json", "--slowest", "100000"], check=True, capture_output=True
    )
    replay = json.loads(made.stdout)
    for name in sorted((live.keys() | replay.keys()) - OWN):
        checks.equal(f"replayed {name}", live.get(name), replay.get(name))


class Lane:
    def __init__(self, wanted: argparse.Namespace):
        self.wanted = wanted
        self.tokengap = wanted.tokengap.resolve()
        self.failed = 0
        # Recordings by row, with the number of tokens lost by its clients.
        self.recordings: dict[str, tuple[Path, int]] = {}
        self.predictions: list[Predictions] = []

    def row(self, name: str, run) -> None:
        if self.wanted.only and not re.search(self.wanted.only, name):
            return
        started = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="real-", dir=self.wanted.keep))
        checks = Checks()
        try:
            summary = run(folder, checks)
            if (recording := folder / "run.tgap").exists() and (folder / "truth.jsonl").exists():
                self.recordings[name] = (recording, lost(folder / "truth.jsonl"))
        except Exception as error:
            traceback.print_exc()
            summary, checks.failed = "", [*checks.failed, repr(error)]
        verdict = "FAILED" if checks.failed else "ok"
        self.failed += bool(checks.failed)
        print(f"{verdict:6} {time.monotonic() - started:5.0f} s  {name:44} {checks.made:4} checks  {summary}", flush=True)
        for line in checks.failed:
            print(f"         {line[:400]}")
        if checks.failed:
            print(f"         files: {folder}", flush=True)

    def attached(self, server: Server, flags: list[str], allowed: set[str], meanwhile=None, expected: frozenset[str] | set[str] = frozenset()):
        """A row that attaches during one load. One of `expected` is a required finding."""

        def run(folder: Path, checks: Checks) -> str:
            before = server.generated()
            with Attach(self.tokengap, server, folder) as attach:
                if meanwhile:
                    threading.Thread(target=meanwhile, args=(server,), daemon=True).start()
                truth = load(server, folder / "truth.jsonl", *flags)
            report = attach.report()
            if self.wanted.soak and MISSED in {f["kind"] for f in report["findings"]}:
                # tokengap had too little CPU and says so. Its counts are too low then, but its other findings must be true.
                expect_findings(checks, report, allowed | {MISSED})
                return f"{len(truth)} requests, observations missed: counts not compared"
            if samples(truth):
                compare_samples(checks, truth, report)
            else:
                compare(checks, truth, report, allowed)
            if not any(r["left"] or r["aborted"] for r in truth):
                checks.equal("tokens sent, by the engine's metrics", server.generated() - before, report["tokens"]["sent"])
            if expected:
                found = {f["kind"] for f in report["findings"]}
                checks.equal(f"one of {sorted(expected)}", True, bool(expected & found))
            replayed(checks, self.tokengap, attach.recording, report)
            sent, lost = report["tokens"]["sent"], report["chunks"]["tokens_lost"]
            summary = f"{len(truth)} requests, {sent} tokens sent, {lost} lost"
            if not samples(truth):
                compared = compare_predictions(truth, report)
                self.predictions.append(compared)
                summary += f", {compared.predicted} predicted, {compared.right_position} of them at the right positions"
            return summary

        return run

    def omitted(self, server: Server, flags: list[str]):
        """A row with a server that omits events of chats, each of which it has written to its file."""

        def run(folder: Path, checks: Checks) -> str:
            omitted = Path(server.env["LOST"])
            omitted.write_text("")
            with Attach(self.tokengap, server, folder) as attach:
                truth = load(server, folder / "truth.jsonl", *flags)
            report, lost = attach.report(), {}
            for line in records(omitted):
                lost[line["rid"]] = lost.get(line["rid"], 0) + line["tokens"]
            reported = {line["rid"]: line["tokens"] for line in report["losses"]["confirmed"]["lines"]}
            checks.equal("requests that lost text", lost.keys(), reported.keys())
            # Of two events with the same text in a row, either may be the omitted one, and one may have a token without text.
            for rid in lost.keys() & reported.keys():
                checks.equal(f"tokens lost by {rid}, {lost[rid]} +- 1", True, abs(lost[rid] - reported[rid]) <= 1)
            made = sum(r["completion"] for r in truth)
            checks.equal("tokens delivered", made - sum(reported.values()), report["tokens"]["delivered"])
            checks.equal("chunks unjudged", 0, report["chunks"]["unjudged"])
            checks.equal("finding dropped-chunks", True, "dropped-chunks" in {f["kind"] for f in report["findings"]})
            replayed(checks, self.tokengap, attach.recording, report)
            return f"{len(truth)} requests, {made} tokens sent, {sum(lost.values())} lost in {len(lost)} requests"

        return run

    def inside(self, server: Server, flags: list[str], held: str | None = None, full: bool = False):
        """A row with the Rust server, whose batches have no counts: streams that begin within the first 50 batches are not judged.

        The thread `held` of the server is stopped during the load for `HELD_SECONDS`, or if `full`, until the scheduler has waited for so
        long because the server's queue is full."""

        def run(folder: Path, checks: Checks) -> str:
            before = server.generated()
            holding = held_thread(server.pids()["scheduler"], held, HELD_SECONDS, full) if held else nullcontext({})
            with Attach(self.tokengap, server, folder) as attach:
                warm = load(server, folder / "warm.jsonl", "--streams", "1", "--seconds", "3", "--tokens", "32", "--seed", "50")
                with holding as times:
                    truth = load(server, folder / "truth.jsonl", *flags)
            report = attach.report()
            evidence = {f["kind"]: f["evidence"] for f in report["findings"]}
            late, blocked = evidence.get("late-delivery"), evidence.get("late-send")
            checks.equal("finding late-delivery", held is not None, late is not None)
            checks.equal("finding late-send", full, blocked is not None)
            if held and late:
                wait = max(late["first_token_max_ns"], late["stall_max_ns"]) / 1e9
                checks.near("wait for a delivery, the time of the stop", times["stopped"], wait)
            if full and blocked:
                checks.near("scheduler's wait", times["blocked"], blocked["send_wait_max_ns"] / 1e9)
            early = report["chunks"]["unjudged"]
            checks.equal("chunks unjudged, within the first batches", True, early <= sum(r["completion"] for r in warm))
            report["chunks"]["unjudged"] = 0
            if any(r["aborted"] for r in truth):
                # The server discards what the scheduler generates until it knows of the abort.
                discarded = report["tokens"]["sent"] - report["tokens"]["delivered"]
                checks.equal("chunks in flight, of aborted requests", discarded, report["chunks"]["in_flight"])
                report["chunks"]["in_flight"] = 0
            compare(checks, warm + truth, report, {"late-delivery", "late-send"})
            if before is not None and not any(r["left"] or r["aborted"] for r in truth):
                checks.equal("tokens sent, by the engine's metrics", server.generated() - before, report["tokens"]["sent"])
            hop = report["hops"][0]
            checks.equal("hops", ["scheduler->server"], [hop["name"] for hop in report["hops"]])
            checks.equal("frames received", None, hop["frames_received"])
            counts = [f"{len(truth)} requests", f"{report['tokens']['sent']} tokens sent", f"{early} chunks unjudged"]
            return ", ".join(counts + [f"{name} {seconds:.2f} s" for name, seconds in times.items()])

        return run

    def spliced(self, server: Server, flags: list[str]):
        """A row in which live hops are moved behind the relay and back, with load before, during and after."""

        def run(folder: Path, checks: Checks) -> str:
            report_file, errors = folder / "report.json", folder / "splice.err"
            before = load(server, folder / "before.jsonl", "--streams", "2", "--seconds", "1", "--seed", "90")
            command = [str(self.tokengap), "splice", "--pid", str(server.pids()["tokenizer"]), "--yes", "--json"]
            with open(report_file, "wb") as out, open(errors, "wb") as log:
                splice = subprocess.Popen(
                    [*command, "--duration", "60s"], stdin=subprocess.DEVNULL, stdout=out, stderr=log
                )
            time.sleep(4)
            truth = load(server, folder / "truth.jsonl", *flags)
            time.sleep(1)
            splice.send_signal(signal.SIGINT)
            checks.equal("exit code of splice", 0, splice.wait(60))
            after = load(server, folder / "after.jsonl", "--streams", "2", "--seconds", "1", "--seed", "91")
            report = json.loads(report_file.read_text())
            compare_sent(checks, truth, report)
            checks.equal("errors of clients", 0, sum(r["error"] is not None for r in before + truth + after))
            return f"{len(truth)} requests, {report['tokens']['sent']} tokens relayed"

        return run

    def tapped(self, server: Server, flags: list[str]):
        """A row with `tap` between the clients and the server. It judges each response by the counts in it."""

        def run(folder: Path, checks: Checks) -> str:
            report_file, errors, port = folder / "report.json", folder / "tap.err", free_port()
            pair = ["--listen", f"http://127.0.0.1:{port}", "--upstream", server.url]
            with open(report_file, "wb") as out, open(errors, "wb") as log:
                tap = subprocess.Popen([str(self.tokengap), "tap", *pair, "--json"], stdin=subprocess.DEVNULL, stdout=out, stderr=log)
            while "listening on" not in errors.read_text() and tap.poll() is None:
                time.sleep(0.05)
            truth = load(server, folder / "truth.jsonl", *flags, "--url", f"http://127.0.0.1:{port}")
            tap.send_signal(signal.SIGINT)
            tap.wait(60)
            answers = json.loads(report_file.read_text())["answers"]
            checks.equal("responses", len(truth), answers["judged_alone"])
            checks.equal("tokens", sum(r["ids"] for r in truth), answers["judged_alone_tokens"])
            checks.equal("tokens lost", sum(r["completion"] - r["ids"] for r in truth), answers["judged_alone_tokens_lost"])
            return f"{len(truth)} responses, {answers['judged_alone_tokens']} tokens, {answers['judged_alone_tokens_lost']} lost"

        return run

    def retried(self, server: Server):
        """A row with two requests of one rid after another. Only those are named that the engine aborts in place of the first."""

        def run(folder: Path, checks: Checks) -> str:
            truth = folder / "truth.jsonl"
            with Attach(self.tokengap, server, folder) as attach:
                clients = [str(server.python), "-m", "testbed.real.retries", "--url", server.url, "--truth", str(truth)]
                subprocess.run(clients, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=LOAD_SECONDS)
            report, pairs = attach.report(), records(truth)
            checks.equal("requests", 2 * len(pairs), report["requests"]["seen"])
            aborted = {pair["rid"] for pair in pairs if pair["kind"] == "at once" and pair["second"] == "abort"}
            found = [f["evidence"] for f in report["findings"] if f["kind"] == "aborted-retries"]
            named = [retry["rid"] for evidence in found for retry in evidence["latest"]]
            checks.equal("retries aborted in place of the first request", sorted(aborted), sorted(named))
            checks.equal("aborts by the clients", True, report["requests"]["aborted"] > len(aborted))
            return f"{len(pairs)} clients, {len(aborted)} of their second requests aborted"

        return run

    def predicted(self, _folder: Path, checks: Checks) -> str:
        """A row that checks the predictions of all previous rows."""
        every = sum(self.predictions, Predictions())
        summary = f"{every.lost} tokens lost, {every.predicted} predicted, {every.right_number} of them of the right requests"
        if every.lost >= MIN_LOST_FOR_TARGET:
            checks.equal(summary, True, every.right_number >= PREDICTION_TARGET * max(every.lost, every.predicted))
        # A misjudged wait of the receiver shifts the positions in a whole burst, so most rows must be right, not all.
        rows = [row.share_of_positions() for row in self.predictions if row.lost >= MIN_LOST_OF_ROW]
        if rows:
            middle = f"right positions in the median row {statistics.median(rows):.3f}, in the worst {min(rows):.3f}"
            checks.equal(middle, True, statistics.median(rows) >= PREDICTION_TARGET)
            summary += f", {middle}"
        return summary

    def compared(self, before: str, after: str, verdict: str):
        """A row that compares recordings of two previous rows."""

        def run(folder: Path, checks: Checks) -> str:
            (a, lost_a), (b, lost_b) = self.recordings[before], self.recordings[after]
            command = [str(self.tokengap), "diff", str(a), str(b), "--format", "json"]
            diff = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            outcome = diff["outcomes"][0]
            checks.equal("measure", "lost tokens", outcome["name"])
            counts = f"{lost_a:,} -> {lost_b:,}"
            # Shares come first if the loads of the two rows sent different numbers of tokens, as on a slow machine.
            is_compared = outcome["numbers"] == counts or outcome["numbers"].endswith(f" ({counts})")
            checks.equal(f"{counts} in {outcome['numbers']}", True, is_compared)
            checks.equal("state", verdict, outcome["state"])
            return diff["verdict"][:100]

        return run

    def relayed(self, server: Server, flags: list[str], report_file: Path):
        """A row with `tokengap run`, which reports after the server has exited."""

        def run(folder: Path, checks: Checks) -> str:
            load(server, folder / "truth.jsonl", *flags)
            server.__exit__()
            report = json.loads(report_file.read_text())
            compare_sent(checks, server.truth, report)
            hops = {"tokenizer->scheduler", "scheduler->detokenizer", "detokenizer->tokenizer"}
            checks.equal("hops", hops, {hop["name"] for hop in report["hops"]})
            return f"{len(server.truth)} requests, {report['tokens']['sent']} tokens relayed"

        return run


# Findings of a run in which the process of a role is stopped: at least one of them.
STOPPED = {"tokenizer": {"consumer-stopped"}, "detokenizer": {"consumer-stopped"}, "scheduler": {"engine-silent", "consumer-stopped"}}


def stopped(role: str):
    """Stops the process of a role for three seconds under load."""

    def stop(server: Server) -> None:
        pid = server.pids()[role]
        time.sleep(3)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)

    return stop


def rust_rows(lane: Lane, server: Server, release: str) -> None:
    """Rows that the Rust server of every release can run."""
    for name, flags, held in [
        ("8 streams", FEW, None),
        ("64 streams", [*MANY, "--seed", "2"], None),
        ("mixed", MIXED, None),
        ("a detokenizer stopped", FEW, "detokenizer"),
    ]:
        lane.row(f"{release} Rust server, {name}", lane.inside(server, flags, held))


def rows(lane: Lane, home: Path, logs: Path, quick: bool) -> None:
    """Rows by server. Each start takes one to three minutes of two cores, so `quick` leaves out servers that differ in one flag."""
    few, many, mixed = FEW, MANY, MIXED
    incremental = ["--stream-output", "--enable-metrics"]
    with Server(home, "0.5.9", incremental, logs / "incremental.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2")
        lane.row("0.5.9 incremental, 8 streams", lane.attached(server, few, LOSES | SLOW))
        lane.row("0.5.9 incremental, 64 streams", lane.attached(server, [*many, "--seed", "2"], LOSES | SLOW))
        most = ["--streams", "256", "--seconds", "8", "--seed", "6"]
        lane.row("0.5.9 incremental, 256 streams", lane.attached(server, most, LOSES | SLOW))
        lane.row("0.5.9 incremental, mixed", lane.attached(server, mixed, LOSES | SLOW))
        chat = ["--streams", "32", "--seconds", "8", "--chat", "1", "--seed", "14"]
        lane.row("0.5.9 incremental, chat", lane.attached(server, chat, SLOW))
        aborts = ["--streams", "16", "--seconds", "8", "--abort", "0.3", "--seed", "7"]
        lane.row("0.5.9 incremental, aborts by id", lane.attached(server, aborts, LOSES | SLOW))
        answers = ["--streams", "8", "--seconds", "8", "--samples", "2", "--seed", "8"]
        lane.row("0.5.9 incremental, two answers a request", lane.attached(server, answers, LOSES | SLOW))
        for seed, role in enumerate(["tokenizer", "detokenizer", "scheduler"], 3):
            # A stopped scheduler sends nothing, so no frame waits.
            expected = STOPPED[role]
            flags, allowed = [*many, "--seed", str(seed)], LOSES | SLOW | {"consumer-stopped"} | expected
            row = lane.attached(server, flags, allowed, stopped(role), expected)
            lane.row(f"0.5.9 incremental, {role} stopped", row)
        lane.row("0.5.9 incremental, two requests with one rid", lane.retried(server))
        lane.row("0.5.9 incremental, tap of HTTP", lane.tapped(server, [*few, "--seed", "15"]))
        lane.row("0.5.9 incremental, spliced", lane.spliced(server, [*few, "--seed", "9"]))
    with Server(home, "0.5.9", ["--enable-metrics"], logs / "whole.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")
        lane.row("0.5.9 cumulative, 64 streams", lane.attached(server, [*many, "--cumulative", "--seed", "2"], SLOW))
        lane.row("0.5.9 cumulative, mixed", lane.attached(server, [*mixed, "--cumulative"], SLOW))
    lane.row(
        "diff: 0.5.9 incremental to cumulative",
        lane.compared("0.5.9 incremental, 64 streams", "0.5.9 cumulative, 64 streams", "fixed"),
    )
    msgpack = {"SGLANG_USE_PICKLE_IPC": "0"}
    grpc = free_port()
    flags = ["--enable-metrics", "--grpc-port", str(grpc)]
    with Server(home, "0.5.23", flags, logs / "msgpack.log", env=msgpack) as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")
        lane.row("0.5.23 msgpack, 8 streams", lane.attached(server, [*few, "--cumulative"], SLOW))
        lane.row("0.5.23 msgpack, mixed", lane.attached(server, [*mixed, "--cumulative"], SLOW))
        lane.row("0.5.23 msgpack, chat", lane.attached(server, [*chat, "--cumulative"], SLOW))
        lane.row("0.5.23 msgpack, two requests with one rid", lane.retried(server))
        over_grpc = ["--cumulative", "--grpc", f"127.0.0.1:{grpc}"]
        lane.row("0.5.23 gRPC, 8 streams", lane.attached(server, [*few, *over_grpc], SLOW))
        lane.row("0.5.23 gRPC, mixed", lane.attached(server, [*mixed, *over_grpc], SLOW))
    if quick:
        print("SKIPPED: two workers, without tokenizer, 0.5.23 with pickle, with its Rust server, and under run: they need more server starts (FULL=1)")
        lane.row("predictions of all rows", lane.predicted)
        return
    lossy = LOSSY | {"LOST": str(logs / "lost.jsonl")}
    with Server(home, "0.5.9", ["--enable-metrics"], logs / "lossy.log", env=lossy) as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")
        lane.row("0.5.9 cumulative, events of chats omitted", lane.omitted(server, [*chat, "--tokens", "128"]))
    workers = [*incremental, "--tokenizer-worker-num", "2"]
    # The kernel assigns connections to either worker, and clients keep them.
    shared = LOSES | SLOW | {"worker-imbalance"}
    with Server(home, "0.5.9", workers, logs / "workers.log", env=PATIENT) as server:
        load(server, logs / "warm.jsonl", "--streams", "8", "--seconds", "2")
        some = ["--streams", "32", "--seconds", "8", "--seed", "11"]
        lane.row("0.5.9 two workers, 32 streams", lane.attached(server, some, shared))
        lane.row("0.5.9 two workers, mixed", lane.attached(server, [*mixed, "--seed", "12"], shared))
        flags, allowed = [*many, "--seed", "13"], shared | {"consumer-stopped"}
        row = lane.attached(server, flags, allowed, stopped("tokenizer_worker"), "consumer-stopped")
        lane.row("0.5.9 two workers, one stopped", row)
    ids = ["--ids", "--streams", "64", "--seconds", "8", "--seed", "10"]
    with Server(home, "0.5.9", [*incremental, "--skip-tokenizer-init"], logs / "ids.log") as server:
        load(server, logs / "warm.jsonl", "--ids", "--streams", "4", "--seconds", "2")
        lane.row("0.5.9 without tokenizer, 64 streams", lane.attached(server, ids, LOSES | SLOW))
        ids += ["--leave", "0.1", "--abort", "0.2"]
        lane.row("0.5.9 without tokenizer, aborts", lane.attached(server, ids, LOSES | SLOW))
    with Server(home, "0.5.23", RUST_FLAGS, logs / "rust.log", env=RUST) as server:
        rust_rows(lane, server, "0.5.23")
        lane.row("0.5.23 Rust server, aborts by id", lane.inside(server, aborts))
    # One request at a time, so that these have more batches than the 8,192 that the server's queue holds.
    with Server(home, "0.5.23", [*RUST_FLAGS, "--max-running-requests", "1"], logs / "full.log", env=RUST) as server:
        long = ["--streams", "6", "--seconds", "1", "--tokens", "2600"]
        lane.row("0.5.23 Rust server, its queue full", lane.inside(server, long, "from-scheduler", full=True))
    with Server(home, "0.5.23", ["--enable-metrics"], logs / "cumulative.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")
        lane.row("0.5.23, 8 streams", lane.attached(server, [*few, "--cumulative"], SLOW))
        lane.row("0.5.23, mixed", lane.attached(server, [*mixed, "--cumulative"], SLOW))
    refused_rows(lane, Attach, load, home, logs)
    report = logs / "run.json"
    wrap = [str(lane.tokengap), "run", "--json", "--report", str(report), "--"]
    with Server(home, "0.5.9", [*incremental, "--skip-server-warmup"], logs / "run.log", wrap) as server:
        attached = lane.attached(server, ["--streams", "32", "--seconds", "8", "--seed", "5"], LOSES | SLOW)
        lane.row("0.5.9 under run, attached", attached)
        lane.row("predictions of all rows", lane.predicted)
        lane.row("0.5.9 under run, 32 streams", lane.relayed(server, ["--streams", "32", "--seconds", "8"], report))


def soak(lane: Lane, home: Path, logs: Path, seconds: float, seed: int) -> None:
    """Random mixed load on each server in turn. A row fails if neither the clients' counts nor a stopped process explain a finding."""
    draw = random.Random(seed)
    servers = [
        ("0.5.9", ["--stream-output", "--enable-metrics"], LOSES | SLOW, []),
        ("0.5.23", ["--enable-metrics"], SLOW, ["--cumulative"]),
    ]
    for release, flags, allowed, cumulative in servers:
        with Server(home, release, flags, logs / f"soak-{release}.log") as server:
            load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", *cumulative)
            ends = time.monotonic() + seconds / len(servers)
            while time.monotonic() < ends:
                drawn = draw_load(draw, [2, 8, 16, 32, 64, 128, 256])
                role = draw.choice([None, None, None, "tokenizer", "detokenizer", "scheduler"])
                summary = summarize(drawn)
                row = lane.attached(
                    server,
                    [*cumulative, *(str(word) for flag in drawn.items() for word in flag)],
                    allowed | {"consumer-stopped"} | STOPPED[role] if role else allowed,
                    stopped(role) if role else None,
                )
                lane.row(f"{release}, {role or 'nothing'} stopped, {summary}", row)
    lane.row("predictions of all rows", lane.predicted)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's threads so far, in user and kernel mode."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(lane: Lane, home: Path, logs: Path, pairs: int) -> None:
    """CPU time of attach at the start and at rest, and of the tokenizer per token, alternately with and without attach."""
    flags = ["--streams", "64", "--seconds", "8", "--tokens", "64"]
    with Server(home, "0.5.9", ["--stream-output", "--enable-metrics"], logs / "cost.log") as server:
        load(server, logs / "warm.jsonl", *flags, "--seed", "1")
        tokenizer = server.pids()["tokenizer"]

        def per_token(seed: int) -> float:
            before = cpu_seconds(tokenizer)
            counted = load(server, logs / "truth.jsonl", *flags, "--seed", str(seed))
            return (cpu_seconds(tokenizer) - before) / sum(r["completion"] for r in counted)

        starts, rests, ratios = [], [], []
        for pair in range(pairs):
            cpu_per_token = {}
            # Use the same requests in both, in alternating order.
            for attached in [False, True] if pair % 2 else [True, False]:
                if not attached:
                    cpu_per_token[False] = per_token(pair)
                    continue
                with Attach(lane.tokengap, server, Path(tempfile.mkdtemp(dir=logs))) as attach:
                    starts.append(cpu_seconds(attach.process.pid))
                    time.sleep(5)
                    began, cpu = time.monotonic(), cpu_seconds(attach.process.pid)
                    time.sleep(10)
                    rests.append((cpu_seconds(attach.process.pid) - cpu) / (time.monotonic() - began))
                    cpu_per_token[True] = per_token(pair)
            ratios.append(cpu_per_token[True] / cpu_per_token[False])
            without, with_attach = (cpu_per_token[attached] * 1e6 for attached in (False, True))
            print(f"pair {pair + 1}: tokenizer CPU per token {without:.1f} us without attach, {with_attach:.1f} us with it", flush=True)
    for name, values, unit in [
        ("attach, start until attached", starts, " s of CPU"),
        ("attach at rest", [rest * 100 for rest in rests], " % of a core"),
        ("tokenizer CPU per token, with attach over without", ratios, ""),
    ]:
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name}: median {middle:.3f}{unit} ({low:.3f} to {high:.3f})")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.real", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--home", type=Path, required=True, help="folder of the servers installed by install.sh")
    parser.add_argument("--only", metavar="REGEX", help="run only rows whose name it matches")
    parser.add_argument("--quick", action="store_true", help="start three servers instead of eleven")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the rows' files")
    parser.add_argument("--rust", metavar="RELEASE", help="run the rows of this release's Rust server instead")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="run random load for this time instead of the rows")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random load")
    parser.add_argument("--ttft", action="store_true", help="compare times to first token instead; the machine must be otherwise idle")
    parser.add_argument("--faults", type=int, metavar="N", help="inject each fault N times instead of running the rows")
    parser.add_argument("--healthy", type=float, metavar="SECONDS", help="run moderate random load for this time, without a finding")
    parser.add_argument("--refused", action="store_true", help="run only the row whose clients are refused, or leave")
    parser.add_argument("--cost", type=int, metavar="PAIRS", help="measure the cost of attach instead of running the rows")
    wanted = parser.parse_args()
    lane = Lane(wanted)
    logs = Path(tempfile.mkdtemp(prefix="real-servers-", dir=wanted.keep))
    if wanted.soak:
        soak(lane, wanted.home, logs, wanted.soak, wanted.seed)
    elif wanted.ttft:
        ttft_rows(lane, Attach, wanted.home, logs)
    elif wanted.faults:
        fault_rows(lane, Attach, load, stopped, wanted.home, logs, wanted.faults)
    elif wanted.refused:
        refused_rows(lane, Attach, load, wanted.home, logs)
    elif wanted.healthy:
        healthy_server(lane, Attach, load, wanted.home, logs, wanted.healthy, wanted.seed)
    elif wanted.rust:
        with Server(wanted.home, wanted.rust, RUST_FLAGS, logs / "rust.log", env=RUST) as server:
            rust_rows(lane, server, wanted.rust)
    elif wanted.cost:
        cost(lane, wanted.home, logs, wanted.cost)
        return 0
    else:
        rows(lane, wanted.home, logs, wanted.quick)
    print(f"{lane.failed} rows failed")
    return 1 if lane.failed else 0


if __name__ == "__main__":
    sys.exit(main())
