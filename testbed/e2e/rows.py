"""The rows: releases, scenarios as changes to the default setting, and comparisons."""

import functools
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from . import accidents, attach, calls, clientless, dynamo, losses, moved, pressure, routers, several_engines
from .checks import Checks, relayed, sent, summary
from .kernel import refused
from .process import ROOT
from .record import recorded
from .session import MIXED, PLAIN, Engine, Run, Setting, attached, tapped
from .table import Row

# Releases that differ in their wire format (docs/internals/WIRE.md): column order, codec, protocol, message class.
RELEASES = (ROOT / "testbed/releases.txt").read_text().split()
# First release that supports msgpack.
MSGPACK_SINCE = [0, 5, 15]
# Releases that differ in processes and wire format.
ATTACHED = ("0.5.6", "0.5.9", "0.5.23")
# The last release whose waiters keep only one chunk, and the newest.
MAIN = ("0.5.9", "0.5.23")
# Number of scenarios, from the first, that the other releases run unless all are requested: one with the scheduler's messages and one with
# the detokenizer's. The others do not depend on the wire format.
EACH = 2
# Releases that split a batch for several workers into a message for each request, or into one for each worker.
ROUTERS = ("0.5.13", "0.5.23")
# Release for the tokenizers' router, which accepts token ids from 0.5.16 on.
SKIPS = "0.5.23"

RANKS = dict(plan=MIXED | dict(senders=3), tcp=True)
BACKLOG = dict(plan=PLAIN, gap_ms=0, backlog=True)
TAP = {
    "mixed ipc": {},
    "detokenizer": dict(detokenizer=True),
    "3 ranks tcp": RANKS,
    "detokenizer, 3 ranks tcp": RANKS | dict(detokenizer=True),
    "backlog": BACKLOG,
    "backlog, cumulative": BACKLOG | dict(receiver=("--cumulative",)),
    "backlog, http": BACKLOG | dict(http=True),
    "slow client": dict(plan=PLAIN, gap_ms=1, receiver=("--busy", "5e-5")),
}

# A tokenizer that spends a millisecond of CPU per output, so that frames wait, on most releases for seconds.
SLOW = dict(gap_ms=1, receiver=("--busy", "1e-3"))
SLOW_RANKS = dict(plan=MIXED | dict(senders=3, requests=16, unary=2), tcp=True)
ATTACH = {
    "attach": {},
    "attach, detokenizer, slow": SLOW | dict(detokenizer=True),
    "attach, slow": SLOW,
    "attach, detokenizer": dict(detokenizer=True),
    "attach, 3 ranks tcp, slow": SLOW | SLOW_RANKS,
    "attach, backlog": BACKLOG,
}

# All frames queue up before the tokenizer receives the first.
QUEUED = dict(plan=PLAIN | dict(tokens=200), gap_ms=0, backlog=True)


def consumer(*options: str, **more) -> dict:
    return QUEUED | dict(receiver=options) | more


# Consumers that need different numbers of event-loop turns. The flag is on the command line as in production: without it, attach does not
# know the mode and predicts nothing.
SCORED = {
    "scored, generator": consumer("--stream-output"),
    "scored, 4 more turns": consumer("--stream-output", "--turns", "4"),
    "scored, other thread": consumer("--stream-output", "--other-thread"),
    "scored, http": consumer("--stream-output", http=True),
    "scored, http, asyncio": consumer("--stream-output", "--loop", "asyncio", http=True),
    "scored, cumulative": consumer("--cumulative"),
}

# An event loop that blocks twice, for about a dozen frames each, while few of many requests are live, as reported from real servers.
STALLS = dict(
    plan=PLAIN | dict(requests=1000, tokens=16, stagger=1), gap_ms=4, receiver=("--stall", "0.05", "--stall-every", "6000")
)
# Scenarios with HTTP clients in separate processes, and their releases.
SERVED = {
    "http, mixed": (("0.5.6", "0.5.23"), {}),
    "http, backlog": (("0.4.6.post4", "0.5.6", "0.5.9", "0.5.23"), QUEUED),
    "http, asyncio, backlog": (("0.5.6", "0.5.23"), consumer("--loop", "asyncio")),
    "http, middleware, backlog": (("0.4.6.post4", "0.5.9", "0.5.23"), consumer("--middleware")),
    "http, middleware, asyncio": (("0.5.6",), consumer("--middleware", "--loop", "asyncio")),
    "http, other thread, backlog": (("0.5.6", "0.5.9"), consumer("--other-thread")),
    "http, more turns, backlog": (("0.4.6.post4", "0.5.9"), consumer("--turns", "4")),
    "http, cumulative, backlog": (("0.5.6", "0.5.23"), consumer("--cumulative")),
    "http, detokenizer, backlog": (("0.5.6", "0.5.23"), QUEUED | dict(detokenizer=True)),
    "http, stalls": (("0.5.6", "0.5.9", "0.5.23"), STALLS),
}
# The same with OpenSSL in the serving process, which only `attach --tls` reads.
TLS = {
    "https, backlog": consumer("--tls"),
    "https, asyncio, backlog": consumer("--tls", "--loop", "asyncio"),
}
# All responses on one HTTP/2 connection, written by Granian.
HTTP2 = {
    "http2, backlog": consumer("--http2", clients=("--http2",)),
    "http2, mixed": dict(receiver=("--http2",), clients=("--http2",)),
}
LEAVERS = dict(
    plan=PLAIN | dict(requests=12, tokens=150), gap_ms=4, clients=("--closing", "3", "--resetting", "3", "--stuck", "3")
)
OPENAI = BACKLOG | dict(plan=PLAIN | dict(requests=16), detokenizer=True, receiver=("--openai",), clients=("--openai",))


def damaging(fault: str) -> dict:
    """OpenAI endpoints whose responses are damaged. Events come slowly, so that each has the text of few chunks."""
    return OPENAI | dict(gap_ms=2, backlog=False, receiver=("--openai", "--fault", fault))


def play(watch, setting: Setting, *judges):
    """A row that observes one run and compares its report. A comparison may return text to print."""

    def run_row(run: Run) -> str:
        outcome = watch(run, setting)
        notes = [judge(run.checks, outcome) for judge in judges]
        return "; ".join(filter(None, [*notes, summary(outcome)]))

    return run_row


def with_relays(run: Run, setting: Setting):
    """Observes with relays in front of the engine's sockets and of its HTTP port, which needs no privileges."""
    return tapped(run, replace(setting, http_relayed=setting.http))


def with_flags(flag: str, run: Run, setting: Setting):
    """Observes with `attach` and one of its options."""
    return attached(run, setting, flag)


def engines(releases: list[str]) -> list[Engine]:
    """The requested or default releases with their default codec, and with msgpack where supported."""
    releases = releases or RELEASES
    msgpack = [r for r in releases if [int(n) for n in re.findall(r"\d+", r)] >= MSGPACK_SINCE]
    return [Engine(release) for release in releases] + [Engine(release, True) for release in msgpack]


def rows(options) -> list[Row]:
    """All rows, in the order of the table."""
    found, explicit = engines(options.releases), bool(options.releases)
    every = options.every or explicit
    table = tap_rows(found, every, options.quick)
    if not options.quick:
        table += router_rows(found, options.plain)
    if not options.plain:
        table += attach_rows(found, explicit, every, options.quick)
        table += dynamo_rows(options)
        if not options.quick:
            table += [row for engine in found for row in served_rows(engine, explicit, every)]
        table += last_rows(found, options.quick)
    return table


def scenarios(table: dict[str, dict], engine: Engine, every: bool, quick: bool, main=MAIN) -> list[tuple[str, dict]]:
    """The scenarios of a table that run on this release and codec: all on the releases `main`."""
    count = 1 if quick else None if every or (engine.release in main and not engine.msgpack) else EACH
    return list(table.items())[:count]


def tap_rows(engines: list[Engine], every: bool, quick: bool) -> list[Row]:
    rows = [
        Row("tap", engine, name, play(tapped, Setting(**change), relayed))
        for engine in engines
        # A relay forwards the same bytes whatever the release's waiters do.
        for name, change in scenarios(TAP, engine, every, quick, main=MAIN[-1:])
    ]
    for name, play_ in (("stranger", accidents.strangers), ("killed", accidents.relay_killed)):
        for transport in () if quick else ("ipc", "tcp"):
            accident = functools.partial(play_, tcp=transport == "tcp")
            rows.append(Row("tap", engines[-1], f"{name} {transport}", accident))
    return rows


VICTIMS = {
    "router": (0, lambda setup: setup.router),
    "one detokenizer of two": (1, lambda setup: setup.detokenizers[1]),
    "one worker of four": (2, lambda setup: setup.workers[2]),
}


def router_rows(engines: list[Engine], plain: bool) -> list[Row]:
    rows = []

    def add(engine: Engine, name: str, play, **more) -> None:
        rows.append(Row("workers", engine, name, play, **more))

    for engine in (engine for engine in engines if engine.release in ROUTERS):
        add(engine, "detokenizer router", functools.partial(routers.tapped, topology="detokenizers"))
        # The codec does not affect routing.
        if engine.msgpack or plain:
            continue
        add(engine, "attach, detokenizer router", routers.attached, needs=(refused,))
        for name, (hop, victim) in VICTIMS.items() if engine.release == SKIPS else ():
            stopped = functools.partial(routers.stopped, hop=hop, victim=victim)
            add(engine, f"attach, {name} stopped", stopped, needs=(refused,))
    plan = PLAIN | dict(tokens=20, stagger=1)
    tokens = plan["requests"] * plan["tokens"]
    # Every second group of four is a sampling group. Its first request only warms the cache and produces no token.
    warm_ups = plan["requests"] // 4 // 2 * plan["tokens"]
    grouped = dict(sender=("--group", "4"), receiver=("--group", "4"))
    sides = {
        "prefill server": (dict(sender=("--disaggregation", "prefill")), plan["requests"]),
        "decode server": (dict(sender=("--disaggregation", "decode")), tokens),
        "batches and samples": (grouped, tokens - warm_ups),
    }
    for engine in (engine for engine in engines if engine.release == SKIPS):
        add(engine, "tokenizer router", functools.partial(routers.tapped, topology="tokenizers"))
        for name, (change, count) in {} if engine.msgpack else sides.items():
            setting = Setting(plan=plan, **change)
            add(engine, name, play(tapped, setting, relayed, functools.partial(sends, count=count)))
    return rows


def sends(checks: Checks, outcome, count: int) -> None:
    checks.equal("tokens sent", count, sent(outcome, "output")["tokens"])


def attach_rows(engines: list[Engine], explicit: bool, every: bool, quick: bool) -> list[Row]:
    usual, last = [engine for engine in engines if explicit or engine.release in ATTACHED], engines[-1]
    rows = []

    def add(engine: Engine, name: str, play, alone: bool = False) -> None:
        rows.append(Row("attach", engine, name, play, alone, (refused,)))

    for engine in usual:
        for name, change in scenarios(ATTACH, engine, every, quick):
            judges = [attach.exact, *([attach.slow] if "receiver" in change else [])]
            # Another row may take the CPU between an event and its timestamp; the row then runs again alone.
            add(engine, name, play(attached, Setting(**change), *judges))
    if quick:
        return rows
    without = functools.partial(attached_with, "--no-wakeups")
    for engine in (engine for engine in usual if every or (engine.release in MAIN and not engine.msgpack)):
        add(engine, "attach, no wakeups", play(without, Setting(**SLOW), attach.without_wakeups, attach.exact))
    for engine in usual:
        # Test all consumers on one release only: their differences do not depend on the release.
        for name, change in list(SCORED.items())[: None if explicit or engine.release == "0.5.9" else 1]:
            setting = Setting(**change)
            add(engine, name, play(attached, setting, exactly, losses.predictions(setting)))
    # The probes are in libzmq, which is the same for all releases.
    for engine in usual if every else usual[-2:]:
        add(engine, "attach, against none", accidents.unchanged)
    add(last, "attach, two engines", several_engines.two_engines)
    add(last, "attach, restarted engine", several_engines.restarted_engine)
    add(last, "attach, joining engine", several_engines.joining_engine)
    add(last, "attach, half visible engine", several_engines.half_visible_engine)
    add(last, "attach, full ring", several_engines.full_ring)
    add(last, "attach, following three lives", accidents.three_lifetimes)
    # It counts the BPF programs, links and maps of the whole machine.
    add(last, "attach, killed", accidents.attach_killed, alone=True)
    add(usual[0], "attach, sender on another machine", accidents.another_machine)
    return rows


def attached_with(flag: str, run: Run, setting: Setting):
    return attached(run, setting, flag)


def exactly(checks: Checks, outcome) -> None:
    attach.exact(checks, outcome)


def dynamo_rows(options) -> list[Row]:
    rows = []
    for release in dynamo.RELEASES:
        more = [] if options.quick or release != dynamo.RELEASES[-1] else dynamo.NEWEST
        for name, sglang, change, judges in dynamo.SCENARIOS[: 1 if options.quick else None] + more:
            setting = dynamo.Setting(**change)
            needs = (refused, functools.partial(unpacked, options.xtask, release, sglang))
            engine = Engine(f"{release}+{sglang}")
            # From a PID namespace of its own, the probe does not observe frontends.
            alone = setting.frontend or bool(setting.standstill)
            rows.append(Row("dynamo", engine, name, dynamo.row(release, setting, judges), alone, needs))
    return rows


@functools.cache
def unpacked(xtask: Path, *releases: str) -> str | None:
    """Unpacks a Dynamo release and an SGLang release; returns the reason of a failure."""
    made = subprocess.run([xtask, "engine", "--dynamo", *releases], capture_output=True, text=True)
    return made.stderr.strip() or f"exited with {made.returncode}" if made.returncode else None


def served_rows(engine: Engine, explicit: bool, every: bool) -> list[Row]:
    """Reported deliveries and losses must equal those of the clients. One release and requested ones are observed both by attach and by
    relays, the others in one of these ways."""
    ways = {"attach": (attached, exactly, (refused,)), "tap": (with_relays, relayed, ())}
    if not explicit and engine.release != "0.5.9":
        ways.pop("attach" if refused() else "tap")
    rows = []

    def runs(*releases: str) -> bool:
        return explicit or engine.release in releases

    for way, (watch, exact, needs) in ways.items():

        def add(name: str, change: dict, *judges, http: bool = True) -> None:
            # In these scenarios, timing decides which clients lose tokens.
            alone = name in ("http, stalls", "http, leavers")
            row = play(watch, Setting(**change | dict(http=http)), *judges)
            rows.append(Row("served", engine, f"{way}, {name}", row, alone, needs))

        # The wire format affects deliveries only through the queueing of outputs.
        for name, (releases, change) in list(SERVED.items())[: 2 if engine.msgpack else None]:
            judges = [exact, losses.delivered, losses.confirmed, *([losses.stalled] if change is STALLS else [])]
            if runs(*releases):
                add(name, change, *judges)
        if engine.msgpack:
            continue
        for name, change in HTTP2.items() if runs("0.5.9", "0.5.23") else ():
            add(name, change, exact, losses.delivered, losses.confirmed)
        if way == "attach" and runs("0.5.9", "0.5.23"):
            watch = functools.partial(with_flags, "--tls")
            for name, change in TLS.items():
                add(name, change, exact, losses.delivered, losses.confirmed)
            watch = attached
            add("https, unread", TLS["https, backlog"], exact, losses.unread("run with --tls"))
            # Granian encrypts with rustls.
            watch = functools.partial(with_flags, "--tls")
            encrypted = consumer("--http2", "--tls", clients=("--http2",))
            add("https, http2", encrypted, exact, losses.unread("another library than OpenSSL encrypts them"))
        if runs("0.5.6", "0.5.23"):
            add("http, leavers", LEAVERS, losses.clients_left)
        if runs("0.5.3", "0.5.6", "0.5.9", "0.5.13", "0.5.23"):
            add("openai", OPENAI, losses.texts)
        if runs("0.5.9"):
            add("openai, join", damaging("join"), losses.texts)
            lost = {("tap", "drop"): range(8, 9), ("attach", "drop"): range(9)}
            # The relay passes responses to the same reader, so one fault shows that it gets them.
            for fault in ("drop", "repeat", "swap", "eat")[: None if every or way == "attach" else 1]:
                add(f"openai, {fault}", damaging(fault), losses.damaged(lost.get((way, fault), range(1))))
        if runs("0.5.9", "0.5.23"):
            # The comparison is the same for both ways and all releases, the parser is not.
            usual = every or engine.release == MAIN[-1]
            for fault in calls.FAULTS if usual else calls.SOME:
                add(f"openai, calls, {fault or 'healthy'}", calls.served("qwen25", fault), calls.judged(fault))
        if runs("0.5.9"):
            # Without the flag on the command line, the mode is unknown, and nothing is predicted.
            inside = consumer("--stream-output", "--other-thread")
            predicted = [losses.some_predicted] if way == "attach" else []
            add("clients inside", inside, exact, losses.only_predicted, *predicted, http=False)
    return rows


def last_rows(engines: list[Engine], quick: bool) -> list[Row]:
    """Rows for one release. Those that judge CPU times run alone on the machine."""
    last, usual = engines[-1], next((e for e in engines if e.release == "0.5.9"), engines[0])
    recording, losing = Setting(detokenizer=True), Setting(**QUEUED | dict(http=True))
    rows = [
        ("narrow", "tap, tiny queue", accidents.tiny_queue, ()),
        ("narrow", "attach, tiny ring", accidents.tiny_ring, (refused,)),
        ("record", "tap, recorded", recorded(tapped, recording), ()),
        ("record", "attach, recorded", recorded(attached, recording), (refused,)),
        ("record", "egress, backlog, recorded", recorded(attached, losing), (refused,)),
    ]
    if not quick:
        # One release is enough, because only libzmq processes these bytes.
        rows += [
            ("abandoned", "tap, abandoned requests", clientless.abandoned, ()),
            ("moved", "run", moved.complete_run, ()),
            ("moved", "run, past", moved.connected_early, ()),
            ("moved", "run, killed", moved.run_killed, ()),
            ("moved", "splice", moved.spliced, (refused,)),
            ("moved", "splice, killed", moved.splice_killed, ()),
        ]
    table = [Row(group, last, name, play_, False, needs) for group, name, play_, needs in rows]
    for case in [] if quick else pressure.CASES:
        table.append(Row("verdicts", usual, case.verdict, pressure.row(case), True, (refused, case.needs)))
    return table
