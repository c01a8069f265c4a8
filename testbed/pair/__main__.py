"""`python3 -m testbed.pair --tokengap FILE --home DIR`: one `attach` on a prefill and a decode server behind a router.

Every request must be joined by its room, its numbers must equal the clients' counts and the servers' own log, and the headline must name each
injected fault. DIR is that of `real/install.sh`, which installs the servers, sglang-router (with mini-lb) and Mooncake's transfer engine
without CUDA. Mooncake needs the system's packages libibverbs1 and libnuma1. Needs root and 6 GB of memory. The servers start in about two
minutes of two cores; each row takes 15 seconds.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from ..mixed import Attach
from ..real.__main__ import Lane, stopped
from ..real.compare import SLOW, Checks, compare, expect_findings, records
from ..real.faults import RAN_NOT, SHARE_OF_TTFT, silent_engine, stopped_receiver, stopped_server, stopped_with_requests
from ..real.server import free_port
from .servers import DECODE_RUNNING, ROUTERS, Pair
from .times import LogEnd, compare_times

PAIR_FINDINGS = {"prefill-queue", "decode-allocation", "transfer-slow", "decode-queue", "late-prefill-response"}
SECONDS = ["--seconds", "8"]
FEW = [*SECONDS, "--streams", "8", "--tokens", "32"]
CHATS = [*FEW, "--chat", "0.4"]
# Three times as many as run at once: the decode server allocates memory for no more.
MANY = [*SECONDS, "--streams", str(3 * DECODE_RUNNING), "--tokens", "64"]
# Prompts of 10,000 tokens, of which the decode server has memory for five.
LONG = [*SECONDS, "--words", "2950", "--tokens", "8"]
OVERLOADED_PREFILL, OVERLOADED_MEMORY = [*LONG, "--streams", "5"], [*LONG, "--streams", "16"]
# As many that some are held while prefill answers nobody.
MORE = [*SECONDS, "--streams", "16", "--tokens", "32"]
MIN_HELD = 5
SLOW_TRANSFER_MS = 300
# Time for which a router must hold a first token to be counted.
HELD_NS = 1_000_000_000
# What the headline must say, behind the side of its server: the leg or process at fault, its state and the share.
TOKENIZER = stopped_server("tokenizer", "detokenizer->tokenizer")
DETOKENIZER = stopped_receiver("detokenizer", "scheduler->detokenizer")
SCHEDULER = (
    f"{silent_engine('scheduler', RAN_NOT)}|{stopped_receiver('scheduler', 'tokenizer->scheduler')}"
    f"|{SHARE_OF_TTFT}on the way to the scheduler: .*the scheduler's thread that receives them was stopped then"
    f"|{stopped_with_requests('scheduler')}"
)
# Of single requests, or of all.
SHARE_OF_PAIR = rf"({SHARE_OF_TTFT}|\d+ % of TTFT (is|was) spent )"
# Consequences of a stop, which must not come before the finding about the process that was stopped.
CONSEQUENCES = {"late-receive", "late-intake", "merged-chunks", "backlog"}
NAMES = {
    "prefill, tokenizer": rf"^prefill: .*({TOKENIZER})",
    "prefill, detokenizer": rf"^prefill: .*({DETOKENIZER})",
    "prefill, scheduler": rf"^prefill: .*({SCHEDULER})",
    "decode, tokenizer": rf"^decode: .*({TOKENIZER})",
    "decode, detokenizer": rf"^decode: .*({DETOKENIZER})",
    "decode, scheduler": rf"^decode: .*({SCHEDULER})",
    "slow transfer": rf"^decode: .*{SHARE_OF_PAIR}in the transfer of the cache",
    "overloaded prefill": rf"^decode: .*{SHARE_OF_PAIR}in the prefill server's queue|^prefill: .*{SHARE_OF_TTFT}in the scheduler's queue",
    "decode's memory": rf"^decode: .*{SHARE_OF_PAIR}until the decode server has memory for the request",
    "overloaded decode": rf"^decode: .*{SHARE_OF_PAIR}in the decode server's queue",
    # Either server aborts what has the rid: prefill, too, as long as the transfer takes.
    "retries": r"^(prefill|decode): .* aborted in place of an earlier one with the same rid",
}


class Observed:
    """What one `attach` on both servers reports about a load, live, at its end, and from its recordings."""

    def __init__(self, tokengap: Path, pair: Pair, folder: Path):
        self.tokengap, self.pair, self.folder = tokengap, pair, folder
        self.port = free_port()
        pids = [word for server in pair.servers() for word in ("--pid", str(server.main_pid()))]
        flags = [*pids, "--record", str(folder / "run.tgap"), "--metrics", str(self.port)]
        self.attach = Attach(tokengap, folder, pair.servers(), *flags)

    def __enter__(self):
        self.attach.__enter__()
        return self

    def __exit__(self, *_) -> None:
        self.attach.__exit__()

    def side(self, name: str) -> dict:
        return self.attach.reports()[self.pair.side(name).name()]

    def headline(self) -> str:
        """Headline of the worst server, behind its side."""
        whole = json.loads((self.folder / "report.json").read_text())
        (side,) = [run["side"] for run in whole["runs"] if run["name"] == whole["worst"]["name"]]
        return f"{side}: {whole['worst']['verdict']}"

    def watched(self) -> dict | None:
        """The pair as `watch` reports it while the run goes on."""
        command = [str(self.tokengap), "watch", f"127.0.0.1:{self.port}", "--json", "--duration", "3s"]
        made = subprocess.run(command, capture_output=True, timeout=60)
        if made.returncode:
            raise RuntimeError(f"watch exited with {made.returncode}: {made.stderr.decode()}")
        (decode,) = [run for run in json.loads(made.stdout)["runs"] if run["side"] == "decode"]
        return decode["report"].get("pair")

    def recorded(self) -> dict:
        """The report of both recordings."""
        files = [str(self.folder / f"run-{server.name().replace(':', '-')}.tgap") for server in self.pair.servers()]
        command = [str(self.tokengap), "report", *files, "--json", "--slowest", "100000"]
        made = subprocess.run(command, capture_output=True, timeout=60)
        (self.folder / "recorded.json").write_bytes(made.stdout)
        return json.loads(made.stdout)


def kinds(report: dict) -> set[str]:
    return {finding["kind"] for finding in report["findings"] if finding["severity"] != "info"}


def check_waits(checks: Checks, reports: dict[str, dict]) -> None:
    """Every client has its response, so that no first token waits any more."""
    for side, report in reports.items():
        waiting = [finding["evidence"].get("waiting_now", 0) for finding in report["findings"] if finding["kind"] == "first-token-gap"]
        checks.equal(f"{side}: first tokens that wait", 0, sum(waiting))


def check_order(checks: Checks, side: str, report: dict) -> None:
    """A stop comes before its consequences of the same severity."""
    found = [(finding["kind"], finding["severity"]) for finding in report["findings"]]
    stops = [(index, severity) for index, (kind, severity) in enumerate(found) if kind == "consumer-stopped"]
    for index, severity in stops[:1]:
        before = {kind for kind, other in found[:index] if other == severity} & CONSEQUENCES
        checks.equal(f"{side}: consequences before the stop", set(), before)


def headline_of_both(verdict: str) -> str:
    """Headline of a report of both servers, behind the side of the server that it is about.

    >>> headline_of_both("WARNING: ended 22:00:01Z: prefill server run-sglang-1.tgap: the tokenizer"), headline_of_both("HEALTHY: no findings")
    ('prefill: WARNING: ended 22:00:01Z: prefill server run-sglang-1.tgap: the tokenizer', 'decode: HEALTHY: no findings')
    """
    is_of_prefill = re.match(r"[A-Z]+: (ended \S+( \(\S+ lasts\))?: )?prefill server ", verdict)
    return f"{'prefill' if is_of_prefill else 'decode'}: {verdict}"


def healthy(tokengap: Path, pair: Pair, flags: list[str]):
    """A row without a fault: all numbers."""

    def run(folder: Path, checks: Checks) -> str:
        logs, live = [LogEnd(server.log) for server in pair.servers()], []
        truth_file = folder / "truth.jsonl"
        with Observed(tokengap, pair, folder) as observed:
            load = threading.Thread(target=pair.load, args=(truth_file, *flags))
            load.start()
            time.sleep(2)
            live.append(observed.watched())
            load.join()
        truth, prefill, decode = records(truth_file), observed.side("prefill"), observed.side("decode")
        compare(checks, truth, decode, SLOW, has_router=True)
        expect_findings(checks, prefill, SLOW)
        for side, report in {"prefill": prefill, "decode": decode}.items():
            checks.equal(f"{side}: requests", len(truth), report["requests"]["seen"])
            checks.equal(f"{side}: observations missed", 0, report["self"]["events_missed"])
            checks.equal(f"{side}: findings of the pair", set(), kinds(report) & PAIR_FINDINGS)
        checks.equal("prefill: tokens sent", len(truth), prefill["tokens"]["sent"])
        joined = decode["pair"]
        counts = [joined[name] for name in ("requests", "decode_only", "prefill_only", "requests_evicted")]
        checks.equal("requests joined, of one server only, evicted", [len(truth), 0, 0, 0], counts)
        checks.equal("requests without a room", [], [line for line in joined["slowest"] if line["room"] is None])
        checks.equal("requests joined while it ran", True, live[0] is not None and 0 < live[0]["requests"] < len(truth))
        recorded = observed.recorded()["pair"]
        for name in ("requests", "legs", "ttft_ns"):
            checks.equal(f"{name} by the recordings", joined[name], recorded[name])
        times = compare_times(checks, decode, *(log.new_text() for log in logs))
        return f"{len(truth)} requests, {decode['tokens']['delivered']} tokens, {live[0] and live[0]['requests']} joined live; {times}"

    return run


def without_findings(tokengap: Path, pair: Pair, flags: list[str]):
    """A row without a fault and without a finding."""

    def run(folder: Path, checks: Checks) -> str:
        with Observed(tokengap, pair, folder) as observed:
            pair.load(folder / "truth.jsonl", *flags)
        reports = {side: observed.side(side) for side in ("prefill", "decode")}
        for side, report in reports.items():
            checks.equal(f"findings of {side}", set(), kinds(report))
        check_waits(checks, reports)
        return observed.headline()

    return run


def named(tokengap: Path, pair: Pair, fault: str, flags: list[str], meanwhile=None):
    """A row whose headline must name the fault: that of `attach`, and that of the recordings."""

    def run(folder: Path, checks: Checks) -> str:
        has_hung = False
        with Observed(tokengap, pair, folder) as observed:
            if meanwhile:
                threading.Thread(target=meanwhile, daemon=True).start()
            try:
                pair.load(folder / "truth.jsonl", *flags)
            except subprocess.TimeoutExpired:
                has_hung = True
        headline, reports = observed.headline(), {side: observed.side(side) for side in ("prefill", "decode")}
        if has_hung:
            # 0.5.9 holds requests after a stop whose other half was aborted.
            found = kinds(reports["prefill"]) | kinds(reports["decode"])
            checks.equal(f"requests that hang are named: {found}", True, "unanswered-requests" in found)
            return f"clients hung; {headline}"
        checks.equal(f"headline of {fault}: {headline}", True, re.search(NAMES[fault], headline) is not None)
        check_waits(checks, reports)
        for side, report in reports.items():
            check_order(checks, side, report)
        recorded = headline_of_both(observed.recorded()["verdict"])
        checks.equal(f"headline of the recordings of {fault}: {recorded}", True, re.search(NAMES[fault], recorded) is not None)
        if fault == "prefill, detokenizer":
            return f"{compare_holds(checks, pair, observed, records(folder / 'truth.jsonl'))}; {headline}"
        found = {side: ", ".join(sorted(kinds(observed.side(side)))) for side in ("prefill", "decode")}
        return f"{headline} {found}"

    return run


def measured(tokengap: Path, pair: Pair, leg: str, flags: list[str]):
    """A row whose longest leg must be this one, though no finding names it."""

    def run(folder: Path, checks: Checks) -> str:
        with Observed(tokengap, pair, folder) as observed:
            pair.load(folder / "truth.jsonl", *flags)
        decode = observed.side("decode")
        longest = decode["pair"]["headline"]
        checks.equal(f"longest leg: {longest}", True, longest.startswith(f"most of TTFT: {leg}, "))
        # Arrivals that were not observed are another reason.
        judged = [judgement["judged"] for judgement in decode["judged"] if judgement["fault"] == "late-requests"]
        checks.equal("late requests are judged", [False], judged)
        return f"{longest}; {observed.headline()}"

    return run


def compare_holds(checks: Checks, pair: Pair, observed: Observed, truth: list[dict]) -> str:
    """First tokens that the decode server had written long before the client read them, because the router waited for prefill's response."""
    decode = observed.side("decode")
    start = decode["window_mono_ns"][0]
    written = {line["decode_rid"]: line["moments"] for line in decode["pair"]["slowest"]}
    streams = [record for record in truth if record["rid"] in written and record["first_ns"]]
    held = {r["rid"] for r in streams if r["first_ns"] - start - written[r["rid"]]["decode_delivered"] >= HELD_NS}
    late = {
        rid
        for rid, at in written.items()
        if None not in (at["prefill_delivered"], at["decode_delivered"]) and at["prefill_delivered"] - at["decode_delivered"] >= HELD_NS
    }
    found = [finding["evidence"]["requests_late"] for finding in decode["findings"] if finding["kind"] == "late-prefill-response"]
    if pair.router_kind == "sglang-router":
        checks.equal(f"at least {MIN_HELD} requests held", True, len(held) >= MIN_HELD)
        # On a busy machine, a router or client without a CPU holds further ones.
        checks.equal("late requests that the router did not hold", set(), late - held)
        checks.equal("requests of the finding late-prefill-response", [len(late)], found)
    else:
        # It leaves prefill's response when that of the decode server has ended.
        checks.equal("requests held by mini-lb", set(), held)
    return f"{len(held)} held by {pair.router_kind}"


def retried(tokengap: Path, pair: Pair):
    """A row with two requests of one rid after another. Those are named that SGLang aborts in place of the first."""

    def run(folder: Path, checks: Checks) -> str:
        truth = folder / "clients.jsonl"
        with Observed(tokengap, pair, folder) as observed:
            pair.run("testbed.real.retries", truth, "--abort-url", pair.decode.url)
        decode, clients = observed.side("decode"), records(truth)
        checks.equal("requests", 2 * len(clients), decode["requests"]["seen"])
        aborted = {client["rid"] for client in clients if client["kind"] == "at once" and client["second"] == "abort"}
        checks.equal("retries aborted", True, len(aborted) > 0)
        found = [finding["evidence"] for finding in decode["findings"] if finding["kind"] == "aborted-retries"]
        reported = [retry["rid"] for evidence in found for retry in evidence["latest"]]
        checks.equal("retries aborted in place of the first request", sorted(aborted), sorted(reported))
        checks.equal("requests joined", 2 * len(clients), decode["pair"]["requests"])
        headline = observed.headline()
        checks.equal(f"headline of retries: {headline}", True, re.search(NAMES["retries"], headline) is not None)
        return f"{len(clients)} clients, {len(aborted)} retries aborted; {headline}"

    return run


def rows(lane: Lane, pair: Pair, repeats: int) -> None:
    tokengap = lane.tokengap
    lane.row("healthy, streams", healthy(tokengap, pair, FEW))
    lane.row("healthy, chats", healthy(tokengap, pair, [*CHATS, "--seed", "2"]))
    lane.row("retries", retried(tokengap, pair))
    for number in range(repeats):
        seed = ["--seed", str(number)]
        lane.row(f"none, {number}", without_findings(tokengap, pair, [*FEW, *seed]))
        for side in ("prefill", "decode"):
            for role in ("tokenizer", "detokenizer", "scheduler"):
                stop = partial(stopped(role), pair.side(side))
                holds = pair.router_kind == "sglang-router" and (side, role) == ("prefill", "detokenizer")
                load = MORE if holds else FEW
                lane.row(f"{side}, {role} stopped, {number}", named(tokengap, pair, f"{side}, {role}", [*load, *seed], stop))
        pair.delay_transfers(SLOW_TRANSFER_MS)
        if pair.release == "0.5.9":
            # It does not send the end of the prefill by the monotonic clock, so nothing shows that it was not the prefill.
            lane.row(f"slow transfer, {number}", measured(tokengap, pair, "prefill + transfer of the cache", [*FEW, *seed]))
        else:
            lane.row(f"slow transfer, {number}", named(tokengap, pair, "slow transfer", [*FEW, *seed]))
        pair.delay_transfers(0)
        lane.row(f"overloaded prefill, {number}", named(tokengap, pair, "overloaded prefill", [*OVERLOADED_PREFILL, *seed]))
        lane.row(f"decode's memory, {number}", named(tokengap, pair, "decode's memory", [*OVERLOADED_MEMORY, *seed]))
        lane.row(f"overloaded decode, {number}", named(tokengap, pair, "overloaded decode", [*MANY, *seed]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m testbed.pair", description=__doc__)
    parser.add_argument("--tokengap", type=Path, required=True, help="the program under test")
    parser.add_argument("--home", type=Path, required=True, help="folder of the servers installed by install.sh")
    parser.add_argument("--release", choices=["0.5.23", "0.5.9"], default="0.5.23", help="release of SGLang")
    parser.add_argument("--router", choices=sorted(ROUTERS), default="sglang-router")
    parser.add_argument("--faults", type=int, metavar="N", default=1, help="inject each fault N times")
    parser.add_argument("--only", metavar="REGEX", help="run only rows whose name it matches")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()), help="folder for the rows' files")
    wanted = parser.parse_args()
    lane = Lane(wanted)
    logs = Path(tempfile.mkdtemp(prefix="pair-servers-", dir=wanted.keep))
    with Pair(wanted.home, wanted.release, wanted.router, logs) as pair:
        # The first transfers of a server set up connections.
        pair.load(logs / "warm.jsonl", "--streams", str(DECODE_RUNNING), "--seconds", "5", "--chat", "0.3")
        rows(lane, pair, wanted.faults)
    print(f"{lane.failed} rows failed")
    return 1 if lane.failed else 0


if __name__ == "__main__":
    sys.exit(main())
