"""Rows with one fault each, whose headline must name it: `python -m testbed.vllm --faults N`."""

import json
import re
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

# What the headline must say: the process or queue at fault, and its state. Of several true findings, the one with more of TTFT comes first.
NAMES = {
    "API server": r"(api-server|API server).* (is|was) stopped",
    "engine core": r"engine core sent no frame|engine core.* (is|was) stopped",
    "busy loop": r"(api-server|API server) is CPU-bound|(api-server|API server) thread .* is on CPU|in the API server",
    "long prompts": r"in the engine core's queue|in slow prefills|engine core sent no frame",
    "overloaded": r"in the engine core's queue",
}
STOP_SECONDS = 3
LONG_PROMPT_WORDS = 5_000
LONG_PROMPTS = 4
# Few enough streams that the engine itself is not overloaded.
LOAD = ["8", "8", "32", "0"]
MANY = ["64", "8", "64", "0"]


def ask(server, words: int) -> None:
    """A request with this many words, whose answer does not matter."""
    body = {"model": "m", "prompt": "w7 " * words, "max_tokens": 8, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=120).read()


def send_long_prompts(server):
    def during() -> None:
        time.sleep(3)
        for _ in range(LONG_PROMPTS):
            threading.Thread(target=ask, args=(server, LONG_PROMPT_WORDS), daemon=True).start()

    return during


def fault_rows(tokengap: Path, start, attached, stopped, repeats: int):
    """Yields each row's name and errors. `start` makes a server of flags and environment; `attached` and `stopped` are those of the other
    rows."""

    def row(server, fault: str, number: int, load: list[str], during=None) -> tuple[str, list[str]]:
        with tempfile.TemporaryDirectory() as folder:
            report, _ = attached(tokengap, server, Path(folder), [*load, str(number)], during)
        headline, findings = report["verdict"], [finding["kind"] for finding in report["findings"] if finding["severity"] != "info"]
        right = not findings if fault == "none" else re.search(NAMES[fault], headline)
        name = f"fault: {fault}, {number}: {headline[:200]} [{', '.join(findings)}]"
        return name, [] if right else [f"the headline does not name it: {headline}"]

    def rows_of(server, faults):
        server.load(Path(tempfile.mkdtemp()) / "warm.jsonl", ["4", "2", "32", "0", "1"])
        for number in range(repeats):
            for fault, load, during in faults(server):
                yield row(server, fault, number, load, during)

    # The later flag of the two lengths counts.
    with start(["--max-model-len", "16384"], {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}) as server:
        yield from rows_of(
            server,
            lambda server: [
                ("none", LOAD, None),
                ("API server", LOAD, stopped(server, None, STOP_SECONDS)),
                ("engine core", LOAD, stopped(server, "VLLM::EngineCore", STOP_SECONDS)),
                ("long prompts", LOAD, send_long_prompts(server)),
            ],
        )
    with start(["--max-num-seqs", "4"], {}) as server:
        yield from rows_of(server, lambda server: [("overloaded", MANY, None)])
    with start([], {"SLOW_OUTPUT_MS": "3"}) as server:
        yield from rows_of(server, lambda server: [("busy loop", ["16", *LOAD[1:]], None)])
