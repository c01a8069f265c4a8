"""Rows with one fault each, whose headline must name it: `python -m testbed.vllm --faults N`.

The executor sleeps as long for a long prompt as for a short one, so there is no row of long prompts.
"""

import re
import tempfile
from pathlib import Path

# What the headline must say: the process or queue at fault, and its state. Of several true findings, the one with more of TTFT comes first.
NAMES = {
    "API server": r"(api-server|API server).* (is|was) stopped",
    "engine core": r"engine core sent no frame|engine core.* (is|was) stopped",
    "busy loop": r"(api-server|API server) (is|was) CPU-bound|(api-server|API server) thread .* was on CPU|in the API server",
    "overloaded": r"in the engine core's queue",
}
STOP_SECONDS = 3
# Few enough streams that the engine itself is not overloaded.
LOAD = ["8", "8", "32", "0"]
MANY = ["64", "8", "64", "0"]


def fault_rows(tokengap: Path, start, attached, stopped, repeats: int):
    """Yields each row's name and errors. `start` makes a server of flags and environment; `attached` and `stopped` are those of the other
    rows."""

    def row(server, fault: str, number: int, load: list[str], during=None) -> tuple[str, list[str]]:
        with tempfile.TemporaryDirectory() as folder:
            report, _ = attached(tokengap, server, Path(folder), [*load, str(number)], during)
        headline, findings = report["verdict"], [finding["kind"] for finding in report["findings"] if finding["severity"] != "info"]
        right = not findings if fault == "none" else re.search(NAMES[fault], headline)
        # A receiver that is no longer busy is still the cause of the chunks that it merged.
        of_receiver = [index for index, kind in enumerate(findings) if kind.startswith("consumer-")]
        if of_receiver and "merged-chunks" in findings[: of_receiver[0]]:
            right = False
        name = f"fault: {fault}, {number}: {headline[:200]} [{', '.join(findings)}]"
        return name, [] if right else [f"the headline does not name it: {headline}"]

    def rows_of(server, faults):
        server.load(Path(tempfile.mkdtemp()) / "warm.jsonl", ["4", "2", "32", "0", "1"])
        for number in range(repeats):
            for fault, load, during in faults(server):
                yield row(server, fault, number, load, during)

    with start([], {}) as server:
        yield from rows_of(
            server,
            lambda server: [
                ("none", LOAD, None),
                ("API server", LOAD, stopped(server, None, STOP_SECONDS)),
                ("engine core", LOAD, stopped(server, "VLLM::EngineCore", STOP_SECONDS)),
            ],
        )
    with start(["--max-num-seqs", "4"], {}) as server:
        yield from rows_of(server, lambda server: [("overloaded", MANY, None)])
    with start([], {"SLOW_OUTPUT_MS": "3"}) as server:
        yield from rows_of(server, lambda server: [("busy loop", ["16", *LOAD[1:]], None)])
