"""Several engines under one `attach`: each has its own run, whatever the others do."""

import json
import re
import shutil
import signal
import sysconfig
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from .accidents import LOSS_FINDINGS, steady
from .checks import Checks, findings, sent
from .process import free_port
from .session import Run, Session

# Engines start one after the other, before their limits of time begin to matter.
PATIENT = ("--deadline", "240")


def two_engines(run: Run) -> str:
    """One `attach` watches two engines whose requests have equal ids. The tokenizer of one stops for a while."""
    # A round takes a second. The tokenizer knows the requests of eight rounds ahead, so that it may stop for some of them.
    setting = steady(6, gap_ms=8, receiver=PATIENT, sender=PATIENT)
    stopped, running = (Session(run, setting, None, run.place(name)) for name in ("stopped", "running"))
    port, folder = free_port(), run.place("recordings")
    attach = [run.program, "attach", "--headless", "--json", "--slowest", "0", "--duration", "300s"]
    receiver = OtlpReceiver()
    outputs = ["--metrics", str(port), "--record", str(folder / "run.tgap"), "--otlp", receiver.url, "--otlp-interval", "1s"]
    watch = run.start("attach", [*attach, *outputs])
    watch.wait_for_stderr("attached to", 60, 2)
    for session in (stopped, running):
        session.go()
    time.sleep(1)
    stopped.receiver.signal(signal.SIGSTOP)
    time.sleep(2)
    stopped.receiver.signal(signal.SIGCONT)
    outcomes = [session.finish() for session in (stopped, running)]
    served = ServedRuns(port)
    watcher = run.start("watch", [run.program, "watch", f"127.0.0.1:{port}", "--json", "--duration", "5s"])
    watched = json.loads(watcher.end_well(60))
    watch.signal(signal.SIGINT)
    whole = json.loads(watch.end_well(60))
    run.checks.equal("schema", "tokengap.watch/2", whole["schema"])
    compare_served(run.checks, served, whole)
    names = sorted(one["name"] for one in whole["runs"])
    run.checks.equal("watched engines", names, sorted(one["endpoint"].partition("/")[2] for one in watched["runs"]))
    run.checks.equal("engines whose metrics were pushed", names, receiver.engines("resourceMetrics"))
    run.checks.equal("engines whose spans were pushed", names, receiver.engines("resourceSpans"))
    run.checks.equal("recordings", len(names), len(list(folder.glob("run*.tgap"))))
    by_pid = runs_by_pid(whole)
    for session, outcome in zip((stopped, running), outcomes):
        made, report = sent(outcome, "output"), by_pid[session.receiver.pid]["report"]
        run.checks.matches(
            report,
            {
                "chunks/sent": made["chunks"],
                "tokens/sent": made["tokens"],
                "tokens/received": made["tokens"],
                "self/frames_undecoded": 0,
                "self/events_missed": 0,
            },
        )
    kinds = [{f["kind"] for f in findings(by_pid[session.receiver.pid]["report"])} for session in (stopped, running)]
    run.checks.true(f"the stopped engine is named: {kinds[0]}", "consumer-stopped" in kinds[0])
    # A busy machine may delay its frames.
    run.checks.equal("findings of the other", set(), kinds[1] & (LOSS_FINDINGS | {"consumer-stopped"}))
    return f"{len(whole['runs'])} engines; worst: {whole['worst']['verdict']}"


def full_ring(run: Run) -> str:
    """The ring is full while one of two engines is busy. Its losses are counted once, and the idle one is not warned of them."""
    setting = steady(6, gap_ms=8, receiver=PATIENT, sender=PATIENT)
    busy, idle = (Session(run, setting, None, run.place(name)) for name in ("busy", "idle"))
    # Other engines may run on this machine.
    named = [word for session in (busy, idle) for word in ("--pid", str(session.receiver.pid))]
    attach = [run.program, "attach", "--headless", "--json", "--ring", "65536", "--duration", "300s"]
    watch = run.start("attach", [*attach, *named])
    watch.wait_for_stderr("attached to", 60, 2)
    busy.go()
    for _ in range(3):
        watch.signal(signal.SIGSTOP)
        time.sleep(1)
        watch.signal(signal.SIGCONT)
        time.sleep(0.5)
    busy.finish()
    watch.signal(signal.SIGINT)
    by_pid = runs_by_pid(json.loads(watch.end_well(60)))
    of_busy, of_idle = (by_pid[session.receiver.pid]["report"] for session in (busy, idle))
    missed = of_busy["self"]["events_missed"]
    run.checks.true(f"observations of the busy engine are missed: {missed}", missed > 0)
    run.checks.equal("observations missed of the idle engine", 0, of_idle["self"]["events_missed"])
    run.checks.equal("findings of the idle engine", [], findings(of_idle))
    kinds = {finding["kind"] for finding in findings(of_busy)}
    run.checks.true(f"missed observations are a finding: {kinds}", "missed-observations" in kinds)
    run.checks.equal("losses of the busy engine", set(), kinds & LOSS_FINDINGS)
    return f"{missed} observations missed of the busy engine, none of the idle one"


class OtlpReceiver:
    """Accepts pushes over HTTP and keeps their bodies."""

    def __init__(self):
        self.bodies: list[dict] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def engines(self, kind: str) -> list[str]:
        """Names of the engines in the resources of this kind."""
        resources = [resource["resource"] for body in self.bodies for resource in body.get(kind, [])]
        attributes = [attribute for resource in resources for attribute in resource["attributes"]]
        return sorted({one["value"]["stringValue"] for one in attributes if one["key"] == "tokengap.engine"})


class ServedRuns:
    """What the endpoint of an `attach` serves of several engines."""

    def __init__(self, port: int):
        self.address = f"http://127.0.0.1:{port}"
        self.metrics = self.get("/metrics")[1]
        self.report = json.loads(self.get("/report")[1])
        self.health = json.loads(self.get("/healthz")[1])
        self.unnamed_status, self.addresses = self.get("/recording")
        names = [one["name"] for one in self.report["runs"]]
        self.single = {name: json.loads(self.get(f"/report?engine={quote(name)}")[1]) for name in names}

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(self.address + path, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


def compare_served(checks: Checks, served: ServedRuns, whole: dict) -> None:
    """Every engine is served with its own numbers, at the end of its requests."""
    checks.equal("schema of /report", "tokengap.watch/2", served.report["schema"])
    checks.equal("status of /recording without an engine", 400, served.unnamed_status)
    checks.equal("engines in /healthz", len(whole["runs"]), len(served.health["engines"]))
    for one in whole["runs"]:
        name, chunks = one["name"], one["report"]["chunks"]["sent"]
        checks.equal(f"{name}: /report", chunks, served.single[name]["chunks"]["sent"])
        checks.true(f"{name}: /recording names it", f"/recording?engine={name}\n" in served.addresses)
        series = rf'^tokengap_chunks_sent_total{{engine="{re.escape(name)}"[^}}]*}} {chunks}$'
        checks.true(f"{name}: /metrics", bool(re.search(series, served.metrics, re.MULTILINE)) or chunks == 0)
    samples = [line.partition("}")[0] for line in served.metrics.splitlines() if "{" in line and line[0] != "#"]
    labels = [re.findall(r'(\w+)="', sample) for sample in samples]
    checks.equal("samples with a label twice", [], [names for names in labels if len(set(names)) < len(names)])


def runs_by_pid(whole: dict) -> dict[int, dict]:
    """The run that watched a process last. Another engine may run on this machine."""
    return {line["pid"]: one for one in whole["runs"] for line in one["report"]["source"]["wire"]["observed"]}


def restarted_engine(run: Run) -> str:
    """An engine starts again, beside one with the same port in another network namespace. It continues its own run."""
    setting = steady(4, gap_ms=4, receiver=(*PATIENT, "--stream-output"), sender=PATIENT)
    first = Session(run, setting, None, run.place("first"))
    other = Session(run, setting, None, run.place("other"), receiver_under=("unshare", "--net", "--"))
    attach = [run.program, "attach", "--headless", "--json"]
    named = [word for session in (first, other) for word in ("--pid", str(session.receiver.pid))]
    limited = json.loads(run.start("limited", [*attach, *named, "--max-engines", "1", "--duration", "2s"]).end_well(60))
    run.checks.true("one of two engines is named as not watched", "limit of 1 reached" in str(limited["self"]["degraded"]))
    # Something may be degraded on this machine.
    _, listed = run.start("doctor", [run.program, "doctor"]).end(60)
    for session in (first, other):
        line = next((line for line in listed if line.endswith(f"main pid {session.receiver.pid}")), "")
        run.checks.true(f"doctor lists the engine: {line}", line.startswith("sglang:30000: release "))
    watch = run.start("attach", [*attach, "-v", "--duration", "300s"])
    # Other engines may run on this machine.
    for session in (first, other):
        watch.wait_for_stderr(f"main pid {session.receiver.pid})", 60)
    started = watch.stderr.read_text()
    name, beside = (re.search(rf"processes of (\S+) \(main pid {one.receiver.pid}\)", started)[1] for one in (first, other))
    first.go()
    chunks = sent(first.finish(), "output")["chunks"]
    watch.wait_for_stderr(f"(exit 1 of {name})", 60)
    time.sleep(1)
    again = Session(run, setting, None, run.place("again"))
    watch.wait_for_stderr(f"attached to 2 processes of {name}\n", 60, 2)
    for session in (again, other):
        session.go()
    chunks += sent(again.finish(), "output")["chunks"]
    of_other = sent(other.finish(), "output")["chunks"]
    for exited in (f"(exit 2 of {name})", f"(exit 1 of {beside})"):
        watch.wait_for_stderr(exited, 60)
    watch.signal(signal.SIGINT)
    whole = json.loads(watch.end_well(60))
    by_pid = runs_by_pid(whole)
    of_first, of_beside = by_pid[again.receiver.pid], by_pid[other.receiver.pid]
    run.checks.equal("names", [name, beside], [of_first["name"], of_beside["name"]])
    run.checks.equal("names at the start", {"sglang:30000", "sglang:30000-2"}, {name, beside})
    run.checks.matches(of_first["report"], {"chunks/sent": chunks, "self/events_missed": 0})
    run.checks.matches(of_beside["report"], {"chunks/sent": of_other, "self/events_missed": 0})
    for one, exits in ((of_first, 2), (of_beside, 1)):
        degraded = "\n".join(one["report"]["self"]["degraded"])
        away = re.search(rf"it exited {exits} times; ([0-9.]+) s without an engine", degraded)
        run.checks.true(f"{one['name']} says how often its engine exited: {degraded}", away is not None)
        if exits == 2:
            run.checks.true(f"the outage was at least a second: {away and away[1]}", away is not None and float(away[1]) >= 1)
    return f"{chunks} chunks of the restarted engine, {of_other} of the other"


def joining_engine(run: Run) -> str:
    """An engine starts while another one is watched, and gets a run of its own. Two further `attach` are restricted to it by name."""
    setting = steady(4, gap_ms=4, receiver=(*PATIENT, "--stream-output"), sender=PATIENT)
    first = Session(run, setting, None, run.place("first"))
    port = str(free_port())
    name, attach = f"sglang:{port}", [run.program, "attach", "--headless", "--json", "-v", "--duration", "300s"]
    watch = run.start("attach", attach)
    watch.wait_for_stderr("attached to", 60)
    unknown = run.start("unknown", [*attach, "--engine", name])
    run.checks.equal("exit code for an engine that does not run", 2, unknown.end(60)[0])
    refusal = unknown.stderr.read_text()
    run.checks.true(f"the engines that run are named: {refusal}", f"no engine is named {name}: running are " in refusal)
    waiting = run.start("waiting", [*attach, "--follow", "--engine", name])
    second = Session(run, replace(setting, receiver=(*setting.receiver, "--port", port)), None, run.place("second"))
    for one in (watch, waiting):
        one.wait_for_stderr(f"attached to 2 processes of {name}\n", 60)
    selected = run.start("selected", [*attach, "--engine", name])
    selected.wait_for_stderr("attached to 2 processes", 60)
    for session in (first, second):
        session.go()
    chunks = [sent(session.finish(), "output")["chunks"] for session in (first, second)]
    reports = []
    for one in (watch, waiting, selected):
        one.signal(signal.SIGINT)
        reports.append(json.loads(one.end_well(60)))
    by_pid = runs_by_pid(reports[0])
    for session, count in zip((first, second), chunks):
        run.checks.matches(by_pid[session.receiver.pid]["report"], {"chunks/sent": count, "self/events_missed": 0})
    run.checks.equal("name of the engine that joined", name, by_pid[second.receiver.pid]["name"])
    pids = {second.receiver.pid, second.senders[0].pid}
    for report in reports[1:]:
        run.checks.matches(report, {"chunks/sent": chunks[1], "self/events_missed": 0})
        run.checks.equal("processes of the named engine", pids, {line["pid"] for line in report["source"]["wire"]["observed"]})
    return f"{chunks[0]} chunks of the first engine, {chunks[1]} of the one that joined"


def half_visible_engine(run: Run) -> str:
    """The libzmq of one of two engines was removed from its disk, and `attach` may not open mapped files without their names. So the calls of
    that engine cannot be probed, and the other one is watched as ever."""
    setting = steady(4, gap_ms=4, receiver=(*PATIENT, "--stream-output"), sender=PATIENT)
    good = Session(run, setting, None, run.place("good"))
    packages, installed = run.place("packages"), Path(sysconfig.get_paths()["platlib"])
    for package in ("zmq", "pyzmq.libs"):
        shutil.copytree(installed / package, packages / package)
    run.variables["PYTHONPATH"] = f"{packages}:{run.environment()['PYTHONPATH']}"
    port = str(free_port())
    hidden = Session(run, replace(setting, receiver=(*setting.receiver, "--port", port)), None, run.place("hidden"))
    del run.variables["PYTHONPATH"]
    shutil.rmtree(packages / "pyzmq.libs")
    # Other engines may run on this machine.
    named = [word for session in (good, hidden) for word in ("--pid", str(session.receiver.pid))]
    limited = ["setpriv", "--bounding-set", "-sys_admin,-checkpoint_restore", run.program, "attach", "--headless", "--json"]
    watch = run.start("attach", [*limited, "--duration", "300s", *named])
    watch.wait_for_stderr("attached to", 60)
    for session in (good, hidden):
        session.go()
    chunks = sent(good.finish(), "output")["chunks"]
    hidden.finish()
    watch.signal(signal.SIGINT)
    status, lines = watch.end(60)
    run.checks.equal("exit code, since an engine could not be observed", 2, status)
    whole = json.loads("\n".join(lines))
    reports = {one["name"]: one["report"] for one in whole["runs"]}
    of_hidden = reports.pop(f"sglang:{port}")
    (of_good,) = reports.values()
    run.checks.matches(of_good, {"chunks/sent": chunks, "self/events_missed": 0})
    explained = ["no process of the engine is observed: pid" in str(report["self"]["degraded"]) for report in (of_good, of_hidden)]
    run.checks.equal("reports that say why their engine is not observed", [False, True], explained)
    run.checks.equal("findings of the engine that is not observed", [], findings(of_hidden))
    run.checks.true("its line is printed at the start", f"sglang:{port} is not watched yet: " in watch.stderr.read_text())
    return f"{chunks} chunks of the visible engine"
