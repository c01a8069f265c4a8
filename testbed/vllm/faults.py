"""Rows with one fault each, whose headline must name it, and healthy ones: `python -m testbed.vllm --faults N` and `--healthy SECONDS`."""

import json
import re
import threading
import time
import urllib.request
import uuid
from pathlib import Path

from ..real.compare import Checks
from ..real.faults import (
    LONG_PROMPT_WORDS,
    RAN,
    SECONDS,
    SHARE_OF_TTFT,
    healthy_rows,
    silent_engine,
    stopped_receiver,
    stopped_with_requests,
)

HOP = "engine-core->api-server"
API_SERVER = "(api-server|API server)"
SILENT, SILENT_BUT_BUSY = silent_engine("engine core", r"\d"), silent_engine("engine core", r"\d+")
# What the headline must say: the leg or process at fault, its state and the share. Of several true findings, the one with more of TTFT
# comes first.
NAMES = {
    "API server": f"{stopped_receiver(API_SERVER, HOP)}"
    rf"|{SHARE_OF_TTFT}in the (server's socket|{API_SERVER} before dispatch): .*; the {API_SERVER} was stopped then",
    "engine core": f"{SILENT}|{stopped_receiver('engine[ -]core', 'api-server->engine-core')}|{stopped_with_requests('engine[ -]core')}",
    "busy loop": rf"the {API_SERVER} thread \(\d+/\d+\) was on CPU \d+ % of the time while \d+ frames? waited on {HOP}"
    rf"|first tokens waited up to {SECONDS} between .*on {HOP} \(the {API_SERVER} was CPU-bound"
    rf"|{SHARE_OF_TTFT}in the {API_SERVER} before dispatch: .*; the {API_SERVER} (ran|was on CPU) {RAN} %",
    "overloaded": f"{SHARE_OF_TTFT}in the engine core's queue: .*waited",
    "long prompts": f"{SHARE_OF_TTFT}(in the engine core's queue|in slow prefills)|{SILENT_BUT_BUSY}",
}
STOP_SECONDS = 3
# In the order of the arguments of the clients.
FLAGS_OF_LOAD = ("--streams", "--seconds", "--tokens", "--leave", "--seed")
# Few enough streams that the engine itself is not overloaded.
LOAD = ["8", "8", "32", "0"]
MANY = ["64", "8", "64", "0"]
# A long prompt takes two seconds, as on the SGLang server of the other rows.
LONG_FLAGS, LONG_ENVIRONMENT = ["--max-model-len", "16384"], {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "PROMPT_TOKEN_US": "200"}
LONG_PROMPTS = 4


def ask(port: int, words: int, tokens: int) -> None:
    """A request with this many words, whose answer does not matter."""
    # The first word keeps the prompt out of the prefix cache.
    body = {"model": "m", "prompt": uuid.uuid4().hex + " w7" * words, "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=120).read()


def send_long_prompts(server) -> None:
    time.sleep(3)
    threads = [threading.Thread(target=ask, args=(server.port, LONG_PROMPT_WORDS, 8)) for _ in range(LONG_PROMPTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fault_rows(lane, start, attached, stopped, logs: Path, repeats: int) -> None:
    """Each fault so many times. `start` makes a server of flags and environment; `attached` and `stopped` are those of the other rows."""

    def row(server, fault: str, number: int, load: list[str], during) -> None:
        def run(folder: Path, checks: Checks) -> str:
            report, _ = attached(lane.tokengap, server, folder, [*load, str(number)], during)
            headline, findings = report["verdict"], [finding["kind"] for finding in report["findings"] if finding["severity"] != "info"]
            if fault == "none":
                checks.equal(f"findings of a healthy run: {headline}", [], findings)
            else:
                checks.equal(f"headline of {fault}: {headline}", True, re.search(NAMES[fault], headline) is not None)
            # A receiver that is no longer busy is still the cause of the chunks that it merged.
            of_receiver = [index for index, kind in enumerate(findings) if kind.startswith("consumer-")]
            if of_receiver:
                checks.equal("finding before its cause", False, "merged-chunks" in findings[: of_receiver[0]])
            return f"{headline[:600]} [{', '.join(findings)}]"

        lane.row(f"fault: {fault}, {number}", run)

    def rows_of(flags: list[str], environment: dict[str, str], faults) -> None:
        with start(flags, environment) as server:
            server.load(logs / "warm.jsonl", ["4", "2", "32", "0", "1"])
            for number in range(repeats):
                for fault, load, during in faults(server):
                    row(server, fault, number, load, during)

    def of_processes(server):
        return [
            ("none", LOAD, None),
            ("API server", LOAD, stopped(server, None, STOP_SECONDS)),
            ("engine core", LOAD, stopped(server, "VLLM::EngineCore", STOP_SECONDS)),
        ]

    rows_of([], {}, of_processes)
    rows_of(LONG_FLAGS, LONG_ENVIRONMENT, lambda server: [("long prompts", LOAD, lambda: send_long_prompts(server))])
    rows_of(["--max-num-seqs", "4"], {}, lambda _: [("overloaded", MANY, None)])
    rows_of([], {"SLOW_OUTPUT_MS": "3"}, lambda _: [("busy loop", ["16", *LOAD[1:]], None)])


def healthy_server(lane, start, attached, logs: Path, seconds: float, seed: int) -> None:
    """Random load without a fault. Half of the requests are chats."""
    with start([], {}) as server:
        server.load(logs / "warm.jsonl", ["4", "2", "32", "0", "1"])

        def observe(folder: Path, drawn: dict[str, float]) -> dict:
            report, _ = attached(lane.tokengap, server, folder, [str(drawn[flag]) for flag in FLAGS_OF_LOAD])
            return report

        healthy_rows(lane, observe, FLAGS_OF_LOAD, seconds, seed)
