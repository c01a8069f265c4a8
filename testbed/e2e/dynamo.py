"""`tokengap attach` on real Dynamo workers. The release's handler passes real SGLang tokens to the release's runtime. The report of each
response stream must match the data in the receiving process."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field

from .checks import SLOW, Checks, at, degraded, findings, verdicts
from .losses import lost_by_client, lost_by_request
from .process import free_port
from .session import PLAIN, STARTUP, Engine, Run, Truth, Watch, plan_options

# Releases with different response plane formats: JSON, JSON without an error for an empty chunk, msgpack.
RELEASES = ("0.9.0", "1.0.0", "1.6.1")
# An SGLang release that keeps only the last queued chunk of a request, and one that merges them.
LOSES, MERGES = "0.5.9", "0.5.23"
PATIENCE = 75
# Seconds during which a row stops a process.
STANDSTILL = 3
# A process's own stamps are outside of the wait that attach measures, by this many nanoseconds on a busy machine. A wait is never overstated.
NEARLY, OVERSTATED = 10**9, 5 * 10**7


@dataclass(frozen=True)
class Setting:
    plan: dict = field(default_factory=lambda: PLAIN | dict(requests=24))
    # Use HTTP clients of `python -m dynamo.frontend`, which send trace ids, instead of clients of the runtime.
    frontend: bool = False
    gap_ms: int = 5
    backlog: bool = False
    tls: bool = False
    # Processes to stop for STANDSTILL seconds while tokens are sent: `clients`, `frontend`.
    standstill: str = ""
    # Further options of the sender, the worker and the clients.
    sender: tuple = ()
    worker: tuple = ()
    client: tuple = ()
    # Environment variables of the worker and the clients.
    environment: dict[str, str] = field(default_factory=dict)


BACKLOG = dict(gap_ms=0, backlog=True)


@dataclass
class Outcome:
    sender: Truth
    # Outputs that the tokenizer gave to Dynamo's handler.
    worker: Truth
    clients: Truth
    report: dict
    # The end of every stream, as recorded by attach.
    answers: list[dict]
    # The waits in the frontend, as recorded by attach.
    waits: list[dict]
    # Whether the release derives SGLang's request ids from trace ids, and the run had any.
    traced: bool

    @property
    def lost(self) -> int:
        """Tokens that the tokenizer's waiters did not receive. Clients of a frontend cannot count them, because the frontend counts only
        received tokens."""
        return self.worker.totals["lost"]

    @property
    def ids(self) -> int:
        return sum(client["ids"] for client in self.clients.clients)


def run_scenario(run: Run, dynamo: str, setting: Setting) -> Outcome:
    """A scheduler, a Dynamo worker around the tokenizer, clients (directly or through a real frontend), and attach."""
    instances = run.place("instances")
    environment = {"DYN_FILE_KV": str(instances), **setting.environment}
    environment |= dict.fromkeys(("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"), "127.0.0.1")
    if setting.frontend:
        # Makes the frontend forward trace ids, which releases up to 1.5 use as SGLang's request ids.
        environment["DYN_LOGGING_JSONL"] = "1"
    if setting.tls:
        certificate(run)
        for name, file in {"CERT": "cert.pem", "KEY": "key.pem", "CA_CERT": "cert.pem"}.items():
            environment[f"DYN_TCP_TLS_{name}_PATH"] = str(run.folder / file)
    # The row's name has both releases; the processes run SGLang's.
    run.engine = Engine(run.engine.release.partition("+")[2])
    run.variables = environment
    inbox, plan, url = f"ipc://{run.folder}/tokenizer.sock", plan_options(setting.plan), []
    if setting.frontend:
        url = ["--url", frontend(run, dynamo, environment)]
    model = ["--model"] if setting.frontend else []
    worker = run.role("dynamo.worker", "worker", ["--dynamo", dynamo, "--bind", inbox, *setting.worker, *model, *plan])
    worker.line("READY", STARTUP)
    sender = run.role("send", "sender", ["--connect", inbox, "--gap", f"{setting.gap_ms}e-3", *setting.sender, *plan])
    sender.line("READY", STARTUP)
    recording = run.folder / "run.tgap"
    watch = Watch(run, worker.pid, "--record", str(recording))
    clients = run.role("dynamo.client", "clients", ["--dynamo", dynamo, *setting.client, *url, *plan])
    worker.line("HOLDS", STARTUP)
    if not setting.backlog:
        worker.write_line("go")
    stopped = [process for process in run.started if process.name == setting.standstill]
    if setting.standstill == "clients":
        # They stop reading in the middle of their responses.
        sender.write_line("go")
        time.sleep(0.1)
    for process in stopped:
        process.signal(signal.SIGSTOP)
    if setting.standstill != "clients":
        sender.write_line("go")
    if stopped:
        time.sleep(STANDSTILL)
    for process in stopped:
        process.signal(signal.SIGCONT)
    sender.end_well(PATIENCE)
    if setting.backlog:
        time.sleep(0.3)
        worker.write_line("go")
    clients.end_well(PATIENCE)
    worker.stop()
    worker.end_well(PATIENCE)
    report = watch.report()
    export = [run.program, "export", "--format", "events", recording]
    events = map(json.loads, subprocess.run(export, check=True, capture_output=True).stdout.splitlines())
    truth = [Truth(run.folder / f"{process.name}.truth") for process in (sender, worker, clients)]
    traced = setting.frontend and not dynamo.startswith("1.6")
    events = list(events)
    answers, waits = ([event for event in events if event["type"] == kind] for kind in ("answered", "frontend_wait"))
    return Outcome(*truth, report, answers, waits, traced)


def frontend(run: Run, dynamo: str, environment: dict[str, str]) -> str:
    """Starts the real frontend and returns its address."""
    port = free_port()
    discovery = "--store-kv" if dynamo.startswith("0.") else "--discovery-backend"
    releases = run.options.engines / "dynamo"
    path = {"PYTHONPATH": os.pathsep.join([str(releases / dynamo), str(releases / "frontend")])}
    command = [run.options.python, "-m", "dynamo.frontend", discovery, "file", "--http-host", "127.0.0.1", "--http-port", port]
    run.start("frontend", command, env=environment | path, cwd=run.folder)
    return f"http://127.0.0.1:{port}"


def certificate(run: Run) -> None:
    """A self-signed certificate for 127.0.0.1."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    command += " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -addext basicConstraints=critical,CA:FALSE"
    subprocess.run(command.split(), cwd=run.folder, check=True, capture_output=True)


def frames(checks: Checks, outcome: Outcome) -> None:
    output = outcome.sender.totals["output"]
    expected = {
        "requests/finished": output["finishes"],
        "tokens/sent": output["tokens"],
        "tokens/received": output["tokens"],
        "chunks/received": output["chunks"],
        "self/events_missed": 0,
    }
    checks.matches(outcome.report, expected)
    if all(client["finish"] is not None for client in outcome.clients.clients):
        checks.equal("tokens at both ends of Dynamo", outcome.worker.totals["ids"], outcome.ids)


def unmatched(checks: Checks, outcome: Outcome) -> None:
    """Streams that match no frames: each must equal its client's record, under the client's id."""
    frames(checks, outcome)
    claimed = {client["rid"]: client["completion_tokens"] for client in outcome.worker.clients}
    clients = outcome.clients.clients
    delivered = {client["rid"]: (client["ids"], claimed.get(client["rid"])) for client in clients}
    # The clients' context ids are their request ids, written as UUIDs.
    reported = {a["rid"].replace("-", ""): (a.get("tokens"), a.get("completion_tokens")) for a in outcome.answers}
    checks.equal("streams, with tokens received and claimed", delivered, reported)
    expected = {
        "answers/seen": len(clients),
        "answers/judged_alone": len(clients),
        "answers/judged_alone_tokens": outcome.ids,
        "answers/judged_alone_tokens_lost": outcome.lost,
        "answers/client_left": 0,
        "answers/server_left": 0,
        "answers/uncounted": 0,
        "tokens/delivered": None,
    }
    checks.matches(outcome.report, expected)


def matched_by_content(checks: Checks, outcome: Outcome) -> None:
    """The content of every stream was matched to an SGLang request."""
    rids = {client["rid"] for client in outcome.clients.clients}
    checks.equal("SGLang's ids of all streams", rids, {answer["rid"] for answer in outcome.answers})
    checks.matches(outcome.report, {"source/wire/joined_by_content/joined": len(rids)})
    latest = at(outcome.report, "source/wire/joined_by_content/latest")
    right = [pair for pair in latest if pair["context"].replace("-", "") == pair["rid"]]
    checks.equal("correct pairs of ids", len(rids), len(right))


def short_writes(checks: Checks, outcome: Outcome) -> None:
    """The reader's pause is reported as short writes."""
    checks.true("streams with short writes", at(outcome.report, "answers/short_writes") > 0)


def matched(checks: Checks, outcome: Outcome) -> None:
    """Streams matched to frames by SGLang's request id."""
    frames(checks, outcome)
    expected = {
        "tokens/delivered": outcome.ids,
        "chunks/tokens_lost": outcome.lost,
        "chunks/in_flight": 0,
        "answers/seen": len(outcome.clients.clients),
        "answers/judged_alone": 0,
    }
    checks.matches(outcome.report, expected)
    # Clients of the runtime are not recognised as a frontend.
    others = [line for line in at(outcome.report, "self/degraded") if not line.startswith("frontend: no wait")]
    checks.equal("degraded", [], others)
    checks.equal("lost tokens by request", lost_by_client(outcome.worker), lost_by_request(outcome.report))
    lossy("dropped-chunks")(checks, outcome)


def matched_or_unmatched(checks: Checks, outcome: Outcome) -> None:
    (matched if outcome.traced else unmatched)(checks, outcome)


def frontend_waits(checks: Checks, outcome: Outcome) -> None:
    """The time of every response in the frontend matches the clients' and the worker's own times."""
    worker = {client["rid"]: client for client in outcome.worker.clients}
    waits = {wait["rid"].replace("-", ""): wait for wait in outcome.waits}
    checks.equal("responses with a wait", {client["rid"] for client in outcome.clients.clients}, set(waits))
    wrong = []
    for client in outcome.clients.clients:
        rid = client["rid"]
        wait = waits.get(rid, {})
        for name, stamp in {"first_token_ns": "first_ns", "last_token_ns": "last_ns"}.items():
            actual, reported = client[stamp] - worker[rid][stamp], wait.get(name)
            if reported is None or not actual - NEARLY < reported < actual + OVERSTATED:
                wrong.append((rid, name, actual, reported))
    checks.none_of(2 * len(outcome.clients.clients), "waits differ from the clients' own", wrong)
    checks.matches(outcome.report, {"frontend/responses": len(outcome.clients.clients)})
    lines = [line for line in at(outcome.report, "self/degraded") if line.startswith("frontend:")]
    checks.equal("unknown waits", [], lines)


def frontend_in_time(checks: Checks, outcome: Outcome) -> None:
    """The frontend wrote without delay, so it is not reported, whatever its clients did."""
    longest = at(outcome.report, "frontend/first_token_ns/max")
    checks.true(f"a wait of {longest} ns in the frontend is short", longest < NEARLY)
    checks.equal("findings about the frontend", [], findings(outcome.report, "late-frontend"))


def frontend_late(checks: Checks, outcome: Outcome) -> None:
    """The frontend stood still: it alone is reported, with the length of the wait."""
    found = findings(outcome.report, "late-frontend")
    checks.equal("findings about the frontend", 1, len(found))
    longest = max((finding["evidence"]["first_token_max_ns"] for finding in found), default=0)
    checks.true(f"{longest} ns are about {STANDSTILL} s", abs(longest - STANDSTILL * 10**9) < NEARLY)
    gap = at(outcome.report, "gap_ns/max")
    checks.true(f"a gap of {gap} ns excludes the frontend's wait", gap < STANDSTILL * 10**9)
    verdicts(checks, outcome.report, 0, SLOW | {"late-frontend"})


def ended_by(who: str):
    """Streams ended early by the client or the worker are not reported as losses."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        streams = len(outcome.clients.clients)
        expected = {"answers/seen": streams, f"answers/{who}": streams, "answers/judged_alone_tokens_lost": 0, "self/events_missed": 0}
        checks.matches(outcome.report, expected)
        no_loss_warnings(checks, outcome)

    return judge


def hidden(why: str):
    """Unreadable streams are reported as such."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        frames(checks, outcome)
        checks.matches(outcome.report, {"tokens/delivered": None})
        checks.equal("answers", None, outcome.report.get("answers"))
        checks.true(f"the report says: {why}", why in degraded(outcome.report))
        no_loss_warnings(checks, outcome)

    return judge


def no_loss_warnings(checks: Checks, outcome: Outcome) -> None:
    """The report does not warn of lost tokens."""
    verdicts(checks, outcome.report, 0, SLOW)


def lossy(kind: str):
    """Tokens were lost, and a finding of this kind reports it."""

    def judge(checks: Checks, outcome: Outcome) -> None:
        verdicts(checks, outcome.report, outcome.lost, SLOW)
        checks.equal("a finding of the loss", outcome.lost > 0, bool(findings(outcome.report, kind)))
        checks.true("the run lost tokens", outcome.lost > 0)

    return judge


# Scenario, SGLang release, changes to the default setting, and comparisons. `--quick` runs only the first.
SCENARIOS = [
    ("dynamo", MERGES, {}, [unmatched, no_loss_warnings]),
    ("dynamo, backlog", LOSES, BACKLOG, [unmatched, lossy("short-answers")]),
    ("dynamo, content", LOSES, BACKLOG | dict(sender=("--own-ids",)), [unmatched, matched_by_content, lossy("short-answers")]),
    ("dynamo, frontend", LOSES, BACKLOG | dict(frontend=True), [matched_or_unmatched, frontend_waits]),
]
# More than a connection buffers (4 MB), and no more than the probe's ring buffer holds.
PADDED = dict(standstill="clients", plan=PLAIN | dict(requests=4), worker=("--pad", "65536"))
# The following scenarios run only on the newest release.
NEWEST = [
    ("dynamo, log line", LOSES, BACKLOG | dict(worker=("--say-ids",)), [matched]),
    ("dynamo, stopped reader", MERGES, PADDED, [unmatched, short_writes, no_loss_warnings]),
    ("dynamo, frontend stopped", MERGES, dict(frontend=True, standstill="frontend"), [frontend_waits, frontend_late]),
    ("dynamo, stopped clients", MERGES, dict(frontend=True, standstill="clients"), [frontend_in_time, no_loss_warnings]),
    ("dynamo, clients leave", MERGES, dict(client=("--leave-at", "3")), [ended_by("client_left")]),
    ("dynamo, failures", MERGES, dict(worker=("--fail-at", "3")), [ended_by("failed")]),
    ("dynamo, TLS", MERGES, dict(tls=True), [hidden("it is encrypted (TLS)")]),
    ("dynamo, QUIC", MERGES, dict(environment={"DYN_RESPONSE_PLANE": "quic"}), [hidden("its responses use QUIC or another transport than TCP")]),
]


def row(dynamo: str, setting: Setting, judges: list):
    """Runs a row of the table."""

    def play(run: Run) -> str:
        outcome = run_scenario(run, dynamo, setting)
        for judge in judges:
            judge(run.checks, outcome)
        worker = outcome.worker.totals
        streams = f"{len(outcome.clients.clients)} streams, {outcome.ids} tokens received"
        return f"{streams}, {worker['lost']} lost in {worker['clients_with_loss']} streams"

    return play
