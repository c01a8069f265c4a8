"""`python -m testbed.vllm --tokengap FILE --home DIR`: compares reports about a real vLLM server with the clients' counts.

Every number known to both must be equal. A failed row prints one line for each difference. `install.sh DIR RELEASE` creates DIR.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

from ..e2e.calls import FAULTS
from ..real.__main__ import Lane
from ..real.compare import Checks
from ..real.server import free_port
from ..real.ttft import LOADS, SECONDS, STREAMS, compare_times
from . import calls
from .disaggregated import disaggregated_row
from .faults import fault_rows, healthy_server
from .server import DYNAMO, RELEASE, DynamoWorker, NotUp, Server

ATTACH_SECONDS = 60
# Findings expected on a loaded machine.
SLOW = {"merged-chunks", "burst", "first-token-gap", "backlog", "consumer-cpu-bound", "consumer-starved"} | {
    *("io-thread-starved", "late-frames", "late-delivery", "late-send", "worker-imbalance", "late-read", "late-dispatch", "late-receive"),
    *("late-intake", "queued", "slow-prefill", "slow-first-token"),
}
# Findings that tokens wait in the API server's process, or in its inbox while its event loop is busy.
WAITS = {"late-delivery", "first-token-gap", "backlog"}


def attached(tokengap: Path, server: Server, folder: Path, load: list[str], during=None, late: float = 0, beside: list[Server] = []) -> tuple[dict, list[dict]]:
    """Attaches, loads the server and detaches. Returns the report and the clients' counts. `late`: seconds from the begin of the load to the
    attach. `beside`: servers to which it attaches, too."""
    truth, errors = folder / "truth.jsonl", folder / "attach.err"
    clients = threading.Thread(target=server.load, args=(truth, load))
    if late:
        clients.start()
        time.sleep(late)
    with open(folder / "report.json", "wb") as report, open(errors, "wb") as log:
        pids = [word for each in (server, *beside) for word in ("--pid", str(each.process.pid))]
        command = [str(tokengap), "attach", *pids, "--json", "--slowest", "100000"]
        attach = subprocess.Popen([*command, "--record", str(folder / "run.tgap")], stdout=report, stderr=log)
        try:
            marked(attach, errors, b"attached to", 1 + len(beside))
            if during:
                threading.Thread(target=during, daemon=True).start()
            if not late:
                clients.start()
            clients.join()
            # The engine stops the requests of departed clients a few steps later.
            time.sleep(1)
        finally:
            attach.send_signal(signal.SIGINT)
            attach.wait(30)
    return json.loads((folder / "report.json").read_text()), [json.loads(line) for line in truth.read_text().splitlines()]


def unequal(counts: dict[str, tuple]) -> list[str]:
    """Descriptions of the counts whose reported and true values differ."""
    return [f"{what}: {reported}, expected {true}" for what, (reported, true) in counts.items() if reported != true]


def marked(process: subprocess.Popen, errors: Path, mark: bytes, times: int = 1):
    """Waits until a command has written `mark` to its standard error, this many times."""
    deadline = time.monotonic() + ATTACH_SECONDS
    while errors.read_bytes().count(mark) < times:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{mark.decode()!r} was not logged: {errors.read_text()}")
        time.sleep(0.1)


def spliced(tokengap: Path, server: Server, folder: Path, streams: str) -> list[str]:
    """Moves the hops of a server behind the relay and back twice: while clients stream, and around a load. Returns the errors."""
    report, errors, truth = folder / "report.json", folder / "splice.err", folder / "truth.jsonl"
    command = [str(tokengap), "splice", "--pid", str(server.process.pid), "--yes", "--json"]

    def during(load: list[str], across: bool) -> tuple[dict, list[dict]]:
        clients = threading.Thread(target=server.load, args=(truth, load))
        if across:
            clients.start()
            time.sleep(1)
        with open(report, "wb") as out, open(errors, "wb") as log:
            process = subprocess.Popen(command, stdout=out, stderr=log)
        try:
            marked(process, errors, b"moved; connections")
            if across:
                time.sleep(2)
            else:
                clients.start()
                clients.join()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        clients.join()
        return json.loads(report.read_text()), [json.loads(line) for line in truth.read_text().splitlines()]

    def moved(got: dict) -> dict:
        wire = got["source"]["wire"]["splice"]
        return {
            "doubts": (wire["doubts"], []),
            "lost or reordered": (wire["continuity"]["broken"], []),
            "messages unread": (wire["continuity"]["messages_unread"], 0),
            "hops": ({hop["name"] for hop in got["hops"]}, {"engine-core->api-server"}),
            "findings": ([f["kind"] for f in got["findings"] if f["kind"] != "worker-imbalance"], []),
            "frames undecoded": (got["self"]["frames_undecoded"], 0),
        }

    got, clients = during([streams, "8", "64", "0", "9"], across=True)
    counts = moved(got)
    counts["requests across the move"] = (got["source"]["wire"]["splice"]["continuity"]["requests_across"] > 0, True)
    counts["tokens of the clients"] = (sum(r["received"] for r in clients), sum(r["completion"] or 0 for r in clients))
    wrong = [f"across: {line}" for line in unequal(counts)]
    got, clients = during([streams, "4", "64", "0", "10"], across=False)
    counts = moved(got)
    counts["requests"] = ([got["requests"]["seen"], got["requests"]["finished"]], [len(clients)] * 2)
    counts["tokens"] = (got["tokens"]["sent"], sum(r["received"] for r in clients))
    wrong += [f"between: {line}" for line in unequal(counts)]
    server.load(truth, [streams, "1", "16", "0", "11"])
    return wrong


def tapped(tokengap: Path, server: Server, folder: Path, load: list[str]) -> tuple[dict, list[dict]]:
    """Relays only the clients' connections. Returns the report and the clients' counts."""
    report, errors, truth, port = folder / "report.json", folder / "tap.err", folder / "truth.jsonl", free_port()
    pair = ["--listen", f"http://127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{server.port}"]
    with open(report, "wb") as out, open(errors, "wb") as log:
        process = subprocess.Popen([str(tokengap), "tap", *pair, "--json"], stdout=out, stderr=log)
    try:
        marked(process, errors, b"listening on")
        server.load(truth, load, port)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    return json.loads(report.read_text()), [json.loads(line) for line in truth.read_text().splitlines()]


def judged_alone(got: dict, clients: list[dict]) -> list[str]:
    """Differences between a report without frames and the clients' counts."""
    counts = {
        "responses": (got["answers"]["judged_alone"], len(clients)),
        "tokens": (got["answers"]["judged_alone_tokens"], sum(r["received"] for r in clients)),
        "tokens lost": (got["answers"]["judged_alone_tokens_lost"], 0),
        "findings": (got["findings"], []),
    }
    return unequal(counts)


def relayed(tokengap: Path, home: Path, log: Path, folder: Path, flags: list[str], load: list[str]) -> list[str]:
    """Starts the server with `tokengap run`, loads and stops it. Returns differences between the report and the clients' counts."""
    report, truth = folder / "report.json", folder / "truth.jsonl"
    under = [str(tokengap), "run", "--json", "--report", str(report), "--"]
    with Server(home, log, flags, {}, under) as server:
        server.load(truth, load)
        server.process.send_signal(signal.SIGINT)
        try:
            server.process.wait(60)
        except subprocess.TimeoutExpired:
            # In about one of seven runs, the launcher of several API servers did not exit.
            subprocess.run(["pkill", "-KILL", "-P", str(server.process.pid)], check=True)
            server.process.wait(30)
    got, clients = json.loads(report.read_text()), [json.loads(line) for line in truth.read_text().splitlines()]
    received = sum(r["received"] for r in clients)
    counts = {
        "requests": (got["requests"]["finished"], len(clients)),
        "tokens": (got["tokens"]["sent"], received),
        "tokens of the hop": (sum(h["tokens"] for h in got["hops"] if h["name"] == "engine-core->api-server"), received),
        "frames undecoded": (got["self"]["frames_undecoded"], 0),
        # With few connections, all may reach the same API server.
        "findings": ([f["kind"] for f in got["findings"] if f["kind"] != "worker-imbalance"], []),
    }
    return unequal(counts)


# Requests of a load that the engine may have finished when their client left.
MAX_ENDED_BEFORE_ABORT = 2


def differences(report: dict, truth: list[dict], load: list[str], required: list[set[str]]) -> list[str]:
    """Differences between the report and the clients' counts. The report must have one finding of each set in `required`."""
    rejected = Counter(str(r["status"]) for r in truth if r["status"] != 200)
    truth = [r for r in truth if r["status"] == 200]
    complete, left = [r for r in truth if not r["left"]], [r for r in truth if r["left"]]
    received = sum(r["received"] for r in truth)
    tokens, chunks, requests = report["tokens"], report["chunks"], report["requests"]
    wrong = [f"{r['id']}: {r['completion']} tokens and {r['received']} received" for r in complete if r["completion"] != r["received"]]

    def equal(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got}, but the clients counted {want}")

    equal("requests", [requests["seen"], requests["aborted"]], [len(truth), len(left)])
    # The engine may send the end of a request just before the abort of a client that left.
    if not len(complete) <= requests["finished"] <= len(complete) + MAX_ENDED_BEFORE_ABORT:
        equal("requests finished", requests["finished"], len(complete))
    equal("responses rejected, by status", report.get("rejected", {}), dict(rejected))
    equal("responses whose clients left", (report["answers"] or {}).get("client_left"), len(left))
    equal("requests joined late or live", [requests["joined_late"], requests["live"]], [0, 0])
    equal("tokens lost", [chunks["tokens_lost"], chunks["dropped_confirmed"], tokens["missing_on_wire"]], [0, 0, 0])
    equal("tokens received by the API servers", tokens["received"], tokens["sent"])
    if left:
        # Written tokens count as delivered even if a client left without reading them.
        if not received <= tokens["delivered"] <= tokens["sent"]:
            wrong.append(f"tokens delivered: {tokens['delivered']} of {tokens['sent']} sent, but the clients counted {received}")
    else:
        equal("tokens", [tokens["sent"], tokens["delivered"]], [received, received])
        events, by_text = sum(r["events"] for r in truth), "text" in load
        # A chunk without text, such as a part of a character, is delivered with the next text. The clients do not see how many have none.
        if not events <= chunks["delivered"] <= (events * 1.05 if by_text else events):
            wrong.append(f"chunks delivered: {chunks['delivered']}, but the clients counted {events} events")
        equal("chunks merged", chunks["merged"], received - chunks["delivered"])
        equal("chunks in flight or unjudged", [chunks["in_flight"], chunks["unjudged"]], [0, 0])
        silence = max(r["silence_s"] for r in truth)
        measured = report["itl_ns"]["delivered"]["max"] / 1e9
        # A client reads an event some time after the server wrote it, at most as late as its process woke.
        delay = max(r["delay_s"] for r in truth)
        if abs(measured - silence) > 0.25 + delay:
            wrong.append(f"longest time between events: {measured:.3f} s, but {silence:.3f} s at the clients, which were up to {delay:.3f} s late")
    kinds = {finding["kind"] for finding in report["findings"]}
    wrong += [f"finding {kind}" for kind in kinds - SLOW.union(*required)]
    wrong += [f"no finding {' or '.join(sorted(either))}, only {sorted(kinds)}" for either in required if not kinds & either]
    equal("frames undecoded", report["self"]["frames_undecoded"], 0)
    waits = [hop["send_wait_ns"] for hop in report["hops"] if hop["name"] == "engine-core->api-server"]
    # The output thread has nothing else to do.
    if not all(wait and wait["p50"] < 100e6 for wait in waits):
        wrong.append(f"time from the engine's timestamps to the sends: {waits}")
    return wrong


def failure(report: dict, truth: list[dict], streams: int) -> list[str]:
    """Errors in the report of an engine that failed under load."""
    found = [finding for finding in report["findings"] if finding["kind"] == "engine-failed"]
    if len(found) != 1:
        return [f"{len(found)} engine-failed findings, expected 1"]
    wrong, live, received = [], found[0]["evidence"]["live_requests"], sum(r["received"] for r in truth)
    if not 0 < live <= streams:
        wrong.append(f"{live} live requests, expected {streams}")
    if not received <= report["tokens"]["sent"]:
        wrong.append(f"{report['tokens']['sent']} tokens sent, but the clients counted {received}")
    if report["chunks"]["dropped_confirmed"] or report["self"]["frames_undecoded"]:
        wrong.append(f"{report['chunks']['dropped_confirmed']} dropped, {report['self']['frames_undecoded']} undecoded")
    return wrong


def rust_frontend(report: dict, truth: list[dict], longest_wait: float | None = None) -> list[str]:
    """Errors in the report of a server whose API server has no libzmq, so that its receives are observed as socket reads. `longest_wait`:
    time for which it was stopped, in seconds."""
    received, tokens, own = sum(r["received"] for r in truth), report["tokens"], report["self"]
    reasons = [reason for reason in own["degraded"] if "frames are observed when the process reads them" in reason]
    (hop,) = [hop for hop in report["hops"] if hop["name"] == "engine-core->api-server"]
    findings = SLOW | ({"consumer-stopped"} if longest_wait else set())
    counts = {
        "requests": ([report["requests"]["seen"], report["requests"]["finished"]], [len(truth)] * 2),
        # A response may end in a part of a character, which this frontend writes as another character.
        "tokens": ([tokens["sent"], tokens["received"], tokens["delivered"] + tokens["uncounted"]], [received] * 3),
        "frames received": (hop["frames_received"], hop["frames_sent"]),
        "queue waits": (hop["queue_wait_ns"]["count"], hop["frames_sent"]),
        "frames queued": (hop["backlog_frames"], 0),
        "processing": (hop["processing_ns"], None),
        "reasons": (len(reasons), 1),
        "observed by": ({side["process"]: side["by"] for side in report["source"]["wire"]["observed"]}.get("api-server"), "socket reads"),
        "tokens lost": (report["chunks"]["tokens_lost"], 0),
        "findings": ([f["kind"] for f in report["findings"] if f["kind"] not in findings], []),
        "frames undecoded": (own["frames_undecoded"], 0),
        "observations missed": (own["events_missed"], 0),
    }
    wrong, wait = unequal(counts), hop["queue_wait_ns"]["max"] / 1e9
    if longest_wait is None:
        # A reader that is not stopped reads at once, on a busy machine a little later.
        return wrong + ([f"longest wait: {wait:.3f} s"] if wait > 1 else [])
    if abs(wait - longest_wait) > 0.3:
        wrong.append(f"longest wait: {wait:.3f} s, but the process was stopped for {longest_wait} s")
    if hop["send_wait_ns"]["p99"] > 0.5e9:
        wrong.append(f"the engine's wait until the send: {hop['send_wait_ns']}")
    return wrong


def lossy(report: dict, truth: list[dict], omitted: list[dict]) -> list[str]:
    """Errors in the report of a server that omitted some outputs. A token that is a part of a character has no text: by request, one token
    more or less for each omission may count as lost."""
    lost, times = Counter(), Counter()
    for line in omitted:
        lost[line["id"]] += line["tokens"]
        times[line["id"]] += 1
    of_chats = sum(tokens for rid, tokens in lost.items() if rid.startswith("chatcmpl"))
    completions = {rid: tokens for rid, tokens in lost.items() if rid.startswith("cmpl")}
    lines = report["losses"]["confirmed"]["lines"]
    found = {line["rid"].rsplit("-", 1)[0]: line["tokens"] for line in lines}
    wrong = unequal({
        "tokens": (report["tokens"]["sent"], sum(r["completion"] for r in truth) + sum(lost.values())),
        "requests with losses": (set(found), set(completions)),
        "findings": ([f["kind"] for f in report["findings"] if f["kind"] not in SLOW], ["dropped-chunks"]),
        "chats of unknown text": (any("missing in" in line for line in report["self"]["degraded"]), of_chats > 0),
    })
    wrong += [
        f"{rid}: {found[rid]} tokens lost, but {tokens} were omitted"
        for rid, tokens in completions.items()
        if rid in found and abs(found[rid] - tokens) > times[rid]
    ]
    print(f"        {sum(found.values())} tokens of completions lost, and {sum(completions.values())} omitted")
    return wrong


def stopped(server: Server, title: str | None, seconds: float = 5):
    """Stops the process with this title, or without one the server's first process, soon after the beginning of the load."""

    def during():
        time.sleep(3)
        pid = server.pid(title) if title else server.process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    return during


def cost(tokengap: Path, home: Path, log: Path, pairs: int):
    """Throughput alternately with and without `attach`: tokens per second at the clients, and steps per second of the engine."""
    ratios: dict[str, list[float]] = {"tokens": [], "steps": []}
    with Server(home, log, [], {}) as server:

        def steps() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as metrics:
                lines = metrics.read().decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:iteration_tokens_total_count"))

        def rates(attach: bool, load: list[str]) -> dict[str, float]:
            before = steps()
            with tempfile.TemporaryDirectory() as folder:
                if attach:
                    clients = attached(tokengap, server, Path(folder), load)[1]
                else:
                    truth = Path(folder) / "truth.jsonl"
                    server.load(truth, load)
                    clients = [json.loads(line) for line in truth.read_text().splitlines()]
            seconds = max(r["ended_s"] for r in clients) - min(r["began_s"] for r in clients)
            return {"tokens": sum(r["received"] for r in clients) / seconds, "steps": (steps() - before) / seconds}

        rates(False, ["64", "4", "64", "0", "1"])
        for pair in range(pairs):
            # Use the same requests in both, in alternating order.
            by = {attach: rates(attach, ["64", "10", "64", "0", str(pair)]) for attach in ([False, True] if pair % 2 else [True, False])}
            for what, values in ratios.items():
                values.append(by[True][what] / by[False][what])
                print(f"pair {pair + 1}: {by[False][what]:.0f} {what}/s without attach, {by[True][what]:.0f} with it", flush=True)
    for what, values in ratios.items():
        print(f"{what}/s, with attach over without: median {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


def ttft(tokengap: Path, home: Path, log: Path):
    """Yields each load's name, and what differs between the requests' times to first token and those of their clients' kernels."""
    with Server(home, log, [], {}) as server:
        for streams in STREAMS:
            for name, options in LOADS.items():
                with tempfile.TemporaryDirectory() as folder:
                    load = ["first_tokens", "--streams", str(streams), "--seconds", SECONDS, *options]
                    report, clients = attached(tokengap, server, Path(folder), load)
                for line in report["slowest"]:
                    # The engine adds the number of the prompt and a suffix to the id that the client gets.
                    line["rid"] = "-".join(line["rid"].split("-")[:2])
                checks = Checks()
                summary = compare_times(checks, clients, report)
                yield f"ttft, {streams} streams, {name}: {summary}", checks.failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.vllm", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--home", type=Path, required=True, help="folder of the server installed by install.sh")
    parser.add_argument("--quick", action="store_true", help="start three servers instead of eleven")
    parser.add_argument("--cost", type=int, metavar="PAIRS", help="measure the cost of attach instead of running the rows")
    parser.add_argument("--ttft", action="store_true", help="compare times to first token instead; the machine must be otherwise idle")
    parser.add_argument("--faults", type=int, metavar="N", help="inject each fault N times instead of running the rows")
    parser.add_argument("--healthy", type=float, metavar="SECONDS", help="run moderate random load for this time, without a finding")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random load")
    parser.add_argument("--only", default="", metavar="TEXT", help="start only servers whose name contains it, such as tool_calls; of faults, only such rows")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the files of faults and healthy rows")
    asked = parser.parse_args()
    tokengap, failed = asked.tokengap.resolve(), 0

    def row(name: str, server: Server, load: list[str], required=(), during=None):
        def attempt():
            with tempfile.TemporaryDirectory() as folder:
                report, truth = attached(tokengap, server, Path(folder), load, during)
            named = f"{name}: {len(truth)} requests, {report['tokens']['sent']} tokens"
            return named, differences(report, truth, load, required)

        attempted(attempt)

    def own(name: str, compared):
        """A row whose comparison writes files to its own folder."""

        def attempt():
            with tempfile.TemporaryDirectory() as folder:
                return name, compared(Path(folder))

        attempted(attempt)

    def attempted(attempt):
        """Makes a second attempt if the first fails: other servers may use the same cores. Both are printed."""
        named, wrong = attempt()
        if wrong:
            print(f"failed at the first attempt  {named}", *wrong, sep="\n        ", flush=True)
            named, wrong = attempt()
        judged(named, wrong)

    def judged(name: str, wrong: list[str]):
        nonlocal failed
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}  {name}", flush=True)
        for line in wrong:
            print(f"        {line}", flush=True)

    def one_api_server():
        with Server(asked.home, log, [], {}) as server:
            row("8 streams", server, ["8", "5", "64", "0", "1"])
            row("64 streams", server, ["64", "8", "64", "0", "2"])
            row("clients that leave, and prompts that are too long", server, ["32", "5", "64", "0.3", "3", "ids", "0.1"])
            row("tokens by continuous usage", server, ["32", "4", "64", "0", "14", "usage"])
            row("tokens by text", server, ["32", "5", "64", "0", "15", "text"])
            own("splice, one engine", lambda folder: spliced(tokengap, server, folder, "32"))
            own("tap of HTTP", lambda folder: judged_alone(*tapped(tokengap, server, folder, ["8", "3", "32", "0", "12"])))

    def two_api_servers():
        with Server(asked.home, log, ["--api-server-count", "2", "--data-parallel-size", "2"], {}) as server:
            row("two API servers, two engines, by text", server, ["48", "6", "64", "0", "5", "text"])
            own("splice, two API servers, two engines", lambda folder: spliced(tokengap, server, folder, "16"))
            during = stopped(server, "VLLM::APIServer_1")
            row("a stopped API server", server, ["32", "10", "64", "0", "6"], required=[{"consumer-stopped"}], during=during)

    def rust():
        with Server(asked.home, log, [], {"VLLM_USE_RUST_FRONTEND": "1"}) as server:
            for count in ["ids", "text"]:
                load = ["16", "5", "64", "0", "13", count]
                own(f"the Rust frontend, by {count}", lambda folder: rust_frontend(*attached(tokengap, server, folder, load)))
            load, during = ["16", "8", "64", "0", "15"], stopped(server, "vllm-rs", 2)
            own("a stopped Rust frontend", lambda folder: rust_frontend(*attached(tokengap, server, folder, load, during), 2))

    def dynamo():
        if (asked.home / f"dynamo-{DYNAMO}").exists():
            with DynamoWorker(asked.home, log) as server:
                row("a Dynamo worker", server, ["8", "5", "64", "0", "17", "text"])
                row("a Dynamo worker, clients that leave", server, ["24", "5", "64", "0.3", "18", "text"])
        else:
            print("SKIPPED: a Dynamo worker: testbed/vllm/dynamo.sh installs it")

    def slow():
        with Server(asked.home, log, [], {"SLOW_OUTPUT_MS": "5"}) as server:
            row("a slow API server", server, ["64", "5", "32", "0", "4"], required=[{"merged-chunks"}, WAITS])

    def tool_calls():
        model, script = calls.prepare(asked.home / f"venv-{RELEASE}/bin/python", asked.home / "model", log.parent)
        with Server(asked.home, log, calls.FLAGS, script | {"STEP_MS": "50"}, model=model) as server:
            for fault in FAULTS:
                load = ["calls", fault or "healthy"]
                compared = lambda own: calls.differences(*attached(tokengap, server, own, load), fault)
                own(f"tool calls, {load[1]}", compared)
            # Without frames there is no text to compare with.
            for fault in ["healthy", "call-drop", "call-repeat"]:
                alone = lambda own: calls.unjudged(*tapped(tokengap, server, own, ["calls", fault]), "no_text")
                own(f"tap of HTTP, tool calls, {fault}", alone)
            late = lambda own: calls.unjudged(*attached(tokengap, server, own, ["calls", "call-drop"], late=1.5), "missed")
            own("tool calls, attached within the responses", late)

    def omitting():
        omitted = log.parent / "omitted"
        with Server(asked.home, log, [], {"LOST": str(omitted)}) as server:

            def compared(own: Path) -> list[str]:
                report, truth = attached(tokengap, server, own, ["16", "6", "160", "0", "16", "text"])
                return lossy(report, truth, [json.loads(line) for line in omitted.read_text().splitlines()])

            own("a server that omits outputs", compared)

    def failing():
        with Server(asked.home, log, [], {"FAIL_AFTER": "300"}) as server:
            load = ["16", "8", "64", "0", "8"]
            own("an engine that fails", lambda folder: failure(*attached(tokengap, server, folder, load), 16))

    def disaggregated():
        own("a prefill and a decode server that share a folder", lambda own: disaggregated_row(tokengap, asked.home, own, attached, differences))

    def run():
        flags, load = ["--api-server-count", "2", "--data-parallel-size", "2"], ["8", "5", "64", "0", "7"]
        judged("run, two API servers, two engines", relayed(tokengap, asked.home, log, log.parent, flags, load))

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        if asked.cost:
            cost(tokengap, asked.home, log, asked.cost)
            return 0
        if asked.ttft:
            for name, wrong in ttft(tokengap, asked.home, log):
                judged(name, wrong)
            return failed != 0
        if asked.faults or asked.healthy:
            start = lambda flags, env: Server(asked.home, log, flags, env)
            lane = Lane(asked)
            if asked.faults:
                fault_rows(lane, start, attached, stopped, log.parent, asked.faults)
            else:
                healthy_server(lane, start, attached, log.parent, asked.healthy, asked.seed)
            print(f"{lane.failed} rows failed")
            return lane.failed != 0
        servers = [one_api_server, two_api_servers, rust]
        if asked.quick:
            print("SKIPPED: a Dynamo worker, a slow API server, tool calls, disaggregated prefill, one that omits outputs, an engine that fails, and under run: they need more server starts (FULL=1)")
        else:
            servers += [dynamo, slow, tool_calls, omitting, failing, disaggregated, run]
        started = False
        for rows in servers:
            if asked.only in rows.__name__:
                try:
                    rows()
                    started = True
                except NotUp as down:
                    print(log.read_text(errors="replace")[-4000:])
                    if not started:
                        print("SKIPPED: vLLM does not start on this machine")
                        break
                    judged(f"the server for {rows.__name__}", [f"did not start: {down}"])
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
