"""Log lines written by a release's logging code, for `engines/tests/logs` and the tests of `tokengap import`.

    .venv-testbed/bin/python -m testbed.loglines 0.5.9 OUT

writes OUT/<release>.log (the server's log), OUT/<release>.requests.log (`--log-requests --log-requests-format json`, if the release
supports it) and OUT/sglang-request-metrics-*.log (`--export-metrics-to-file`). Requests, tokens and times are invented; every format is
the release's. The first request streams, the second does not. All clocks stand at one time, so that a release writes the same bytes again.
"""

import asyncio
import datetime
import logging
import os
import sys
import time
from pathlib import Path

from . import plan
from .release import Release, Settings
from .scheduler import Scheduler
from .tokenizer import Tokenizer

RIDS = ("4f1c0d6e8a5b4c53b0a7f6d2c1e9a801", "b92f1e00c3d44e5fa6b7c8d9e0f10213")

NOW = 1795246510.5


class StoppedDate(datetime.datetime):
    """A date whose clock stands."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def stop_clocks() -> None:
    """Stops the clocks of this process. Before the release is imported, because it keeps the difference between two clocks."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    time.time = lambda: NOW
    time.time_ns = lambda: int(NOW * 1e9)
    time.perf_counter = lambda: 1000.0


def stop_dates() -> None:
    """Stops the dates of the release's modules. In them only: libraries compare types with the real class."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = StoppedDate


def configure(release: Release, path: Path) -> None:
    """Logs to a file in the release's format."""
    settings = Settings(log_level="info", log_level_http=None)
    common = release.module("sglang.srt.utils.common" if release.has("sglang.srt.utils.common") else "sglang.srt.utils")
    common.configure_logger(settings, prefix=" TP0")
    root = logging.getLogger()
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(root.handlers[0].formatter)
    root.handlers = [handler]
    root.setLevel(logging.INFO)


def request(release: Release, rid: str):
    stream = rid == RIDS[0]
    return release.io.GenerateReqInput(rid=rid, text="a prompt that must not be copied", sampling_params={"n": 1}, stream=stream)


def outcome(release: Release, rid: str, number: int) -> dict:
    """The output of a finished request, with the times that the release adds if metrics are enabled. 0.5.23 computes them itself; up to
    0.5.9 they have the names in `_calculate_timing_metrics`."""
    meta = {
        "id": rid,
        "finish_reason": {"type": "length", "length": 30},
        "prompt_tokens": 7,
        "completion_tokens": 30,
        "cached_tokens": 0,
        "e2e_latency": 12.5,
    }
    if release.has("sglang.srt.observability.req_time_stats"):
        module = release.module("sglang.srt.observability.req_time_stats")
        begin = time.perf_counter() - 12.5 - number
        front, back = module.APIServerReqTimeStats(), module.SchedulerReqTimeStats()
        front.created_time, front.api_server_dispatch_finish_time = begin, begin + 0.002
        front.first_token_time, front.response_sent_to_client_time = begin + 11.7, begin + 11.75
        front.finished_time = begin + 12.5
        back.forward_entry_time, back.prefill_finished_time = begin + 0.1, begin + 0.25
        meta |= back.convert_to_output_meta_info() | front.convert_to_output_meta_info(completion_tokens=30)
    else:
        begin = time.time() - 12.5 - number
        meta |= {
            "request_received_ts": begin,
            "request_sent_to_scheduler_ts": begin + 0.002,
            "prefill_finished_ts": begin + 0.25,
            "response_sent_to_client_ts": begin + 11.75,
            "decode_finished_ts": begin + 12.5,
        }
    return {"text": "an output that must not be copied", "meta_info": meta}


def request_logs(release: Release, out: Path) -> None:
    """`Receive:` and `Finish:` lines, as text in the server's log and as JSON in a separate file."""
    if not release.has("sglang.srt.utils.request_logger"):
        return
    module = release.module("sglang.srt.utils.request_logger")
    stop_dates()
    for form, targets in (("text", None), ("json", [str(out / "requests")])):
        logger = module.RequestLogger(True, 2, form, targets)
        if form == "text":
            logger.targets = [logging.getLogger("sglang.requests")]
        for number, rid in enumerate(RIDS):
            logger.log_received_request(request(release, rid))
            logger.log_finished_request(request(release, rid), outcome(release, rid, number))
    for file in (out / "requests").iterdir():
        file.rename(out / f"{release.version}.requests.log")
    (out / "requests").rmdir()


def request_metrics(release: Release, out: Path) -> None:
    for name in ("sglang.srt.managers.request_metrics_exporter", "sglang.srt.observability.request_metrics_exporter"):
        if not release.has(name):
            continue
        module = release.module(name)
        stop_dates()
        exporter = module.FileRequestMetricsExporter(
            Settings(export_metrics_to_file_dir=str(out)), {"text", "input_ids"}, {"text", "output_ids"}
        )

        async def write():
            for number, rid in enumerate(RIDS):
                await exporter.write_record(request(release, rid), outcome(release, rid, number))

        asyncio.run(write())


def time_stats(release: Release) -> None:
    """`Req Time Stats(..)` of a unified server, from a real `Req` with invented stage times."""
    scheduler = Scheduler(release, None, None, False)
    for number, rid in enumerate(RIDS):
        req = scheduler.request(plan.Request(rid, 0, 30, 0, True, None, "length"))
        scheduler.grow(req, 30)
        stats = req.time_stats
        now = time.perf_counter()
        for name, at in (
            ("wait_queue_entry_time", now - 12.5),
            ("forward_entry_time", now - 12.25 + number),
            ("completion_time", now),
        ):
            setattr(stats, name, at)
        if hasattr(stats, "disagg_mode"):
            stats.disagg_mode = release.module("sglang.srt.disaggregation.utils").DisaggregationMode.NULL
        if hasattr(stats, "queue_duration_s"):
            stats.queue_duration_s = 0.25 + number
        req.log_time_stats()


def tokenizer_lines(release: Release) -> None:
    """A merge of many queued chunks (0.5.10 and later)."""
    tokenizer = Tokenizer(release, None, True, True)
    merge = getattr(tokenizer.manager, "_coalesce_streaming_chunks", None)
    if merge:
        for rid, queued in zip(RIDS, (19, 27)):
            merge([{"output_ids": [n], "meta_info": {"id": rid}} for n in range(queued)], rid)


def main() -> None:
    version, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    stop_clocks()
    release = Release(version)
    configure(release, out / f"{version}.log")
    for write in (tokenizer_lines, time_stats):
        write(release)
    request_logs(release, out)
    request_metrics(release, out)


if __name__ == "__main__":
    main()
