"""Rows with one fault each, whose headline must name it: `python -m testbed.real --faults N`."""

import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from .compare import Checks
from .server import Server

# Share of the time to first token, as findings of legs begin.
SHARE_OF_TTFT = r"\d+ % of the TTFT of \d[\d,]* of \d[\d,]* requests? (is|was) spent "
SECONDS = r"\d+\.\d{3} s"


def stopped_receiver(role: str, hop: str) -> str:
    """What a headline must say about a stopped process that receives from `hop`: leg, process, state and share of the time."""
    gap = rf"first tokens wait(ed)? up to {SECONDS} between .*\d+ % of that time was spent waiting on {hop} \(the {role} (is|was) stopped\)"
    waits = rf"the {role} thread \(\d+/\d+\) (is|was) stopped by a signal \d+ % of the time while \d+ frames? wait(s|ed)? on {hop}"
    return f"{gap}|{waits}"


def stopped_server(role: str, hop: str) -> str:
    """The same of a process that also reads and dispatches requests."""
    before = rf"{SHARE_OF_TTFT}(in the server's socket|in the {role} before dispatch): .*; the {role} was stopped then"
    return f"{stopped_receiver(role, hop)}|{before}"


def silent_engine(sender: str, ran: str) -> str:
    """What a headline must say about an engine that sends nothing: for how long, and which share of it its thread ran."""
    return rf"the {sender} (sends|sent) no frame for {SECONDS}\b.* streams? (was|were) open .*its main thread ran {ran} % of that time"


def stopped_with_requests(role: str) -> str:
    """What a headline must say about a stopped engine for which no frame waits, because it has received all requests."""
    return rf"the {role} thread \(\d+/\d+\) was stopped by a signal for {SECONDS} while it had \d+ requests?"


RAN_NOT, RAN = r"\d", r"([5-9]\d|100)"
# What the headline must say: the leg or process at fault, its state and the share. Of several true findings, the one with more of TTFT
# comes first.
NAMES = {
    "tokenizer": stopped_server("tokenizer", "detokenizer->tokenizer"),
    "detokenizer": stopped_receiver("detokenizer", "scheduler->detokenizer"),
    "scheduler": f"{silent_engine('scheduler', RAN_NOT)}|{stopped_receiver('scheduler', 'tokenizer->scheduler')}"
    f"|{stopped_with_requests('scheduler')}"
    rf"|{SHARE_OF_TTFT}on the way to the scheduler: .*; the scheduler's thread that receives them was stopped then",
    "overloaded": f"{SHARE_OF_TTFT}in the scheduler's queue: .*waited",
    "overloaded, without engine times": f"{SHARE_OF_TTFT}in the scheduler before the first token",
    "busy loop": rf"first tokens wait(ed)? up to {SECONDS} between .*on detokenizer->tokenizer \(the tokenizer (is|was) CPU-bound"
    r"|the tokenizer thread \(\d+/\d+\) (is|was) on CPU \d+ % of the time while \d+ frames? wait(s|ed)? on detokenizer->tokenizer"
    rf"|{SHARE_OF_TTFT}(in the tokenizer before dispatch|in the server's socket): .*the tokenizer (ran {RAN} %|was (busy|on CPU|CPU-bound))",
    "long prompts": rf"{silent_engine('scheduler', RAN)}|{SHARE_OF_TTFT}(in the scheduler's queue|in slow prefills)",
}
# More than the context of the model, so that the request is refused after it was tokenised.
WORDS_OF_BUSY_LOOP = 1_500_000
# Each word is two tokens of the model.
LONG_PROMPT_WORDS = 5_000


def ask(server: Server, words: int, tokens: int) -> None:
    """A request with this many words, whose answer does not matter."""
    body = {"rid": uuid.uuid4().hex, "text": "w7 " * words, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    request = urllib.request.Request(f"{server.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=120).read()
    except urllib.error.HTTPError:
        pass


def keep_loop_busy(server: Server) -> None:
    time.sleep(3)
    ask(server, WORDS_OF_BUSY_LOOP, 1)


def send_long_prompts(server: Server) -> None:
    time.sleep(3)
    threads = [threading.Thread(target=ask, args=(server, LONG_PROMPT_WORDS, 8)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def draw_load(draw: random.Random, streams: list[int]) -> dict[str, float]:
    """Flags of one random load."""
    return {
        "--streams": draw.choice(streams),
        "--seconds": draw.choice([5, 10, 20, 40]),
        "--tokens": draw.choice([8, 32, 64, 128]),
        "--chat": draw.choice([0, 0, 0.3, 1]),
        "--whole": draw.choice([0, 0, 0.3]),
        "--leave": draw.choice([0, 0, 0.2]),
        "--abort": draw.choice([0, 0, 0.2]),
        "--seed": draw.randrange(1 << 30),
    }


def summarize(load: dict[str, float]) -> str:
    return " ".join(f"{flag[2:]} {value}" for flag, value in load.items() if value)


def healthy_rows(lane, observe, flags: tuple, seconds: float, seed: int) -> None:
    """Random load that leaves the engine idle time, without any finding but information. `observe` attaches during a load with these
    flags, or all, whose files it writes to a folder, and returns the report."""
    draw, ends = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < ends:
        drawn = draw_load(draw, [1, 2, 4, 8, 16])
        drawn = {flag: drawn[flag] for flag in flags or drawn}

        def run(folder: Path, checks: Checks) -> str:
            report = observe(folder, drawn)
            found = [finding["summary"] for finding in report["findings"] if finding["severity"] != "info"]
            checks.equal("findings of a healthy run", [], found)
            return f"{report['requests']['seen']} requests"

        lane.row(f"healthy: {summarize(drawn)}", run)


def healthy_server(lane, attach, load, home: Path, logs: Path, seconds: float, seed: int) -> None:
    """Healthy rows of a server. `attach` and `load` are those of the other rows."""
    with Server(home, "0.5.23", ["--enable-metrics"], logs / "healthy.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", "--cumulative")

        def observe(folder: Path, drawn: dict[str, float]) -> dict:
            words = [str(word) for flag in drawn.items() for word in flag]
            with attach(lane.tokengap, server, folder) as attached:
                load(server, folder / "truth.jsonl", "--cumulative", *words)
            return attached.report()

        healthy_rows(lane, observe, (), seconds, seed)


def fault_rows(lane, attach, load, stopped, home: Path, logs: Path, repeats: int) -> None:
    """Each fault so many times. `attach`, `load` and `stopped` are those of the other rows."""

    def row(server: Server, fault: str, number: int, meanwhile, *flags: str) -> None:
        def run(folder: Path, checks: Checks) -> str:
            with attach(lane.tokengap, server, folder) as attached:
                if meanwhile:
                    threading.Thread(target=meanwhile, args=(server,), daemon=True).start()
                load(server, folder / "truth.jsonl", "--seconds", "8", "--seed", str(number), *flags)
            report = attached.report()
            headline, findings = report["verdict"], [finding["kind"] for finding in report["findings"] if finding["severity"] != "info"]
            if fault == "none":
                checks.equal(f"findings of a healthy run: {headline}", [], findings)
            else:
                checks.equal(f"headline of {fault}: {headline}", True, re.search(NAMES[fault], headline) is not None)
            return f"{headline[:600]} [{', '.join(findings)}]"

        lane.row(f"fault: {fault}, {number}", run)

    cumulative = "--cumulative"
    long = ["--enable-metrics", "--context-length", "16384"]
    with Server(home, "0.5.23", long, logs / "faults.log", env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}) as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", cumulative)
        for number in range(repeats):
            few = (cumulative, "--streams", "8", "--tokens", "32")
            row(server, "none", number, None, *few)
            for role in ("tokenizer", "detokenizer", "scheduler"):
                row(server, role, number, stopped(role), *few)
            row(server, "busy loop", number, keep_loop_busy, *few)
            row(server, "long prompts", number, send_long_prompts, *few)
    with Server(home, "0.5.23", ["--enable-metrics", "--max-running-requests", "4"], logs / "overloaded.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", cumulative)
        for number in range(repeats):
            row(server, "overloaded", number, None, cumulative, "--streams", "64", "--tokens", "64")
    # The default: the engine does not send its own times.
    with Server(home, "0.5.23", ["--max-running-requests", "4"], logs / "silent.log") as server:
        load(server, logs / "warm.jsonl", "--streams", "4", "--seconds", "2", cumulative)
        for number in range(repeats):
            row(server, "overloaded, without engine times", number, None, cumulative, "--streams", "64", "--tokens", "64")
