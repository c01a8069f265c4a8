"""A prefill and a decode server of vLLM, which share a folder: vLLM's own ExampleConnector moves the caches."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from .server import Server

# Of a prompt whose length is a multiple of the block size plus one, the connector looks for another name than it saved.
MIN_SHARE_FOUND = 0.85


class Decode(Server):
    """A decode server, whose clients ask the prefill server first."""

    def __init__(self, home: Path, log: Path, flags: list[str], prefill: Server):
        super().__init__(home, log, flags, {})
        self.prefill = prefill

    def load(self, truth: Path, load: list[str], port: int | None = None, env: dict[str, str] = {}):
        super().load(truth, load, port, env | {"PREFILL": f"http://127.0.0.1:{self.prefill.port}"})


def connector_flags(role: str, folder: Path) -> list[str]:
    config = {"kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": {"shared_storage_path": str(folder)}}
    return ["--kv-transfer-config", json.dumps(config)]


def disaggregated_row(tokengap: Path, home: Path, folder: Path, attached, differences) -> list[str]:
    """Differences between the reports of one attach and the clients' counts. `attached` and `differences` are those of the other rows."""
    shared, load = folder / "caches", ["4", "6", "32", "0", "21"]
    shared.mkdir()
    prefill = Server(home, folder / "prefill.log", connector_flags("kv_producer", shared), {})
    decode = Decode(home, folder / "decode.log", connector_flags("kv_consumer", shared), prefill)
    with ExitStack() as running:
        with ThreadPoolExecutor() as starting:
            list(starting.map(running.enter_context, [prefill, decode]))
        whole, truth = attached(tokengap, decode, folder, load, beside=[prefill])
    reports = {run["name"]: run["report"] for run in whole["runs"]}
    wrong = [f"decode: {line}" for line in differences(reports[f"vllm:{decode.port}"], truth, load, [])]
    first = reports[f"vllm:{prefill.port}"]
    counts = [first["requests"]["seen"], first["requests"]["finished"], first["tokens"]["sent"], first["tokens"]["delivered"]]
    if counts != [len(truth)] * 4:
        wrong.append(f"prefill: requests, finished, tokens sent, delivered {counts}, but the clients counted {len(truth)}")
    wrong += [f"prefill: finding {finding['kind']}" for finding in first["findings"] if finding["severity"] != "info"]
    found = decode.log.read_text(errors="replace").count("External Cache Hit!")
    if found < MIN_SHARE_FOUND * len(truth):
        wrong.append(f"{found} prompts of {len(truth)} found computed by the prefill server")
    print(f"        {len(truth)} requests, {found} of their caches moved; prefill: {first['verdict']}; decode: {reports[f'vllm:{decode.port}']['verdict']}")
    return wrong
