"""The releases' routers: a scheduler, `MultiDetokenizerRouter`, two detokenizers and four tokenizer workers, or `MultiTokenizerRouter` in
front of the workers. The report of every hop and worker is compared with the truth of the processes."""

import signal
import time
import zlib
from pathlib import Path

from .checks import SLOW, Checks, at, by_name, findings, verdicts
from .process import Process
from .session import PLAIN, STARTUP, Run, Splice, Tap, Truth, Watch, pairs, plan_options

WORKERS = 4
DETOKENIZERS = 2
# Requests of each scheduler; every worker has the same share of them.
REQUESTS = 32
# Hops of the path, by type of router.
HOPS = {
    "detokenizers": ["scheduler->detokenizer-router", "detokenizer-router->detokenizer", "detokenizer->worker"],
    "tokenizers": ["scheduler->router", "router->worker"],
}
# Roles with a processing stage between two hops.
STAGES = {"detokenizers": ["detokenizer-router", "detokenizer"], "tokenizers": ["router"]}
PATIENCE = 60
# Seconds after which all clients' last messages have been observed.
SETTLED = 0.5
# Seconds that a process is stopped: twice the limit for a first token.
STOPPED = 3


class RouterSetup:
    """The connected processes, before anything has been sent."""

    def __init__(self, run: Run, topology: str, senders: int, relay: Path | None):
        self.run, self.topology = run, topology
        plan = plan_options(PLAIN | dict(senders=senders, requests=REQUESTS, tokens=40, stagger=1))
        hops = HOPS[topology]
        text = ["--detokenizer"] if topology == "detokenizers" else []

        def splice(name: str, hop: str) -> Splice:
            return Splice.new(relay, run.folder, name, hop=hop)

        def worker(n: int) -> Splice:
            # The router hashes a worker's endpoint. Try names until both detokenizers have the same load.
            tried = (splice(f"worker{n}-{i}", hops[-1]) for i in range(1000))
            return next(s for s in tried if zlib.crc32(s.front.encode()) % DETOKENIZERS == n % DETOKENIZERS)

        router = splice("router", hops[0])
        detokenizers = [splice(f"detokenizer{n}", hops[1]) for n in range(DETOKENIZERS if text else 0)]
        workers = [worker(n) for n in range(WORKERS)]
        fronts = [splice.front for splice in workers]
        self.workers = [
            run.role("receive", f"worker{n}", ["--bind", splice.back, "--worker", n, WORKERS, *text, *plan])
            for n, splice in enumerate(workers)
        ]
        self.detokenizers = [
            run.role("detokenize", f"detokenizer{n}", ["--bind", splice.back, *pairs("--connect", fronts)])
            for n, splice in enumerate(detokenizers)
        ]
        options = ["--bind", router.back, *pairs("--connect", [splice.front for splice in detokenizers])]
        if not text:
            options.append("--tokenizers")
        self.router = run.role("route", "router", options)
        receivers = [*self.workers, *self.detokenizers, self.router]
        for process in receivers:
            process.line("READY", STARTUP)
        self.tap = Tap(run, relay, "tap", [router, *detokenizers, *workers], run.folder) if relay else None
        options = ["--connect", router.front, "--control", fronts[0], "--gap", "5e-3", *pairs("--worker", fronts), *text, *plan]
        self.senders = [run.role("send", f"sender{n}", [*options, "--sender", n]) for n in range(senders)]
        for sender in self.senders:
            sender.line("READY", STARTUP)
        for process in receivers:
            process.write_line("go")

    def send(self, index: int) -> None:
        """Makes one scheduler send everything."""
        self.senders[index].write_line("go")
        self.sent(index)

    def sent(self, index: int) -> None:
        self.senders[index].line("DONE", PATIENCE)
        for worker in self.workers:
            for _ in range(REQUESTS // WORKERS):
                worker.line("CLIENT", PATIENCE)
        time.sleep(SETTLED)

    def finish(self, report: dict | None, since: int = 0) -> str:
        """Stops every process in path order, and compares the report with their records after `since`."""
        truth = {}
        for process in [*self.senders, self.router, *self.detokenizers, *self.workers]:
            process.stop()
            process.end_well(PATIENCE)
            truth[process.name] = Truth(self.run.folder / f"{process.name}.truth")
        if self.tap:
            report = self.tap.report(signal.SIGTERM)
        return self.compare(truth, report, since)

    def loads(self, truth: dict[str, Truth], since: int) -> dict[str, list]:
        """Frames, chunks and tokens of each receiver of each hop, in ascending order."""
        content = {
            message["hash"]: (len(message["chunks"]), sum(chunk[1] or 0 for chunk in message["chunks"]))
            for one in truth.values()
            for message in one.sent
        }

        def load(process: Process) -> list[int]:
            hashes = [m["hash"] for m in truth[process.name].received if m["received_ns"] >= since]
            known = [content[hash] for hash in hashes if hash in content]
            return [len(hashes), sum(chunks for chunks, _ in known), sum(tokens for _, tokens in known)]

        receivers = [group for group in ([self.router], self.detokenizers, self.workers) if group]
        return {hop: sorted(map(load, group)) for hop, group in zip(HOPS[self.topology], receivers, strict=True)}

    def compare(self, truth: dict[str, Truth], report: dict | None, since: int) -> str:
        checks = self.run.checks
        finished, lost = (sum(truth[w.name].totals[count] for w in self.workers) for count in ("finished", "lost"))
        requested = sum(truth[sender.name].totals["output"]["requests"] for sender in self.senders)
        checks.equal("clients that received their finish", requested, finished)
        if not report:
            return f"{finished} clients, {lost} tokens lost"
        last = truth[self.senders[-1].name].totals["output"]
        expected = {
            "requests/seen": last["requests"],
            "requests/finished": last["finishes"],
            "chunks/sent": last["chunks"],
            "tokens/sent": last["tokens"],
            "self/frames_undecoded": 0,
            "self/events_missed": 0,
        }
        checks.matches(report, expected)
        for name, expected in self.loads(truth, since).items():
            line = by_name(report["hops"], name)
            each = [[w.get("frames_sent"), w.get("chunks"), w.get("tokens")] for w in line.get("workers") or [line]]
            checks.equal(f"frames, chunks and tokens of each receiver on {name}", expected, sorted(each))
            checks.matches(line, {"rids_moved": 0, "out_of_order": 0}, f"hop {name}")
        verdicts(checks, report, lost, SLOW)
        return stages(checks, report, self.topology, last)


def stages(checks: Checks, report: dict, topology: str, last: dict) -> str:
    """The processing stages between hops: one sample per chunk, or without a probe one per request."""
    attached = at(report, "source/kind") == "attach"
    kind, count = ("inside", last["chunks"]) if attached else ("wait-and-inside", last["requests"])
    summaries = []
    for role in STAGES[topology]:
        leg = by_name(report["path"], role)
        checks.matches(leg, {"kind": kind, "ns/count": count}, f"stage {role}")
        if attached:
            checks.true(f"the {role}'s CPU time is observed", isinstance(leg["busy"], float))
        summaries.append(f"{role} {leg['mean_ns'] / 1e6:.2f} ms (p99 {leg['ns']['p99'] / 1e6:.2f})")
    return f"{last['chunks']} chunks of {last['requests']} requests; {kind}: {', '.join(summaries)}"


def tapped(run: Run, topology: str) -> str:
    setup = RouterSetup(run, topology, 1, run.relay)
    setup.send(0)
    return setup.finish(None)


def attached(run: Run) -> str:
    """Runs another scheduler first, because the router connects to a worker only with the first message for it."""
    setup = RouterSetup(run, "detokenizers", 2, None)
    setup.send(0)
    watch = Watch(run, setup.workers[0].pid)
    since = time.monotonic_ns()
    setup.send(1)
    return setup.finish(watch.report(), since)


def stopped(run: Run, hop: int, victim) -> str:
    """One process is stopped while the others continue. The report names only the hop to that process."""
    checks, setup = run.checks, RouterSetup(run, "detokenizers", 3, None)
    setup.send(0)
    watch = Watch(run, setup.workers[0].pid)
    # Send before the stop, so that the receivers are known.
    setup.send(1)
    victim(setup).signal(signal.SIGSTOP)
    setup.senders[2].write_line("go")
    time.sleep(STOPPED)
    report = watch.report()
    victim(setup).signal(signal.SIGCONT)
    setup.sent(2)
    for process in [*setup.senders, setup.router, *setup.detokenizers, *setup.workers]:
        process.stop()
        process.end_well(PATIENCE)
    name = HOPS["detokenizers"][hop]
    gap = next(iter(findings(report, "first-token-gap")), {"evidence": {}, "summary": ""})
    checks.matches(gap, {"hop": name, "evidence/bottleneck_thread": "stopped"}, "first-token-gap")
    checks.true("a finding reports the stopped consumer", findings(report, "consumer-stopped"))
    is_outlier = isinstance(gap["evidence"].get("bottleneck_worker"), str)
    checks.equal("one receiver is an outlier", hop > 0, is_outlier)
    # Frames queued during the stop are delivered together and merged, which is a correct finding.
    for finding in findings(report):
        if finding["severity"] != "info" and finding["kind"] != "merged-chunks":
            checks.matches(finding, {"hop": name}, f"hop of {finding['summary']}:")
            checks.true("the finding has advice", isinstance(finding.get("advice"), str))
    return gap["summary"]
