"""Times of requests in the logs of both servers, and their comparison with a report."""

import re
from pathlib import Path

from ..real.compare import Checks
from ..real.ttft import percentile

# Largest difference of 95 % of the requests.
P95_NS = 2_000_000
# 0.5.23 and 0.5.9.
LINE = re.compile(r"(?:ReqTimeStats|Req Time Stats)\(rid=[^,]+, bootstrap_room=(\d+),.*\btype=(prefill|decode)\): (.*)")
DURATION = re.compile(r"(\w+)[=(](-?[\d.]+)ms")
ENTRY = re.compile(r"\b(entry_time|start)=([\d.]+)")


def logged_times(log: str) -> dict[str, dict[str, float]]:
    """Durations by room, in milliseconds, and `entry_time` (of the wall clock) or `start` (CLOCK_MONOTONIC) in seconds.

    >>> logged_times("] ReqTimeStats(rid=a, bootstrap_room=7, input_len=9, type=decode): queue_duration=0.25ms, entry_time=12.500")
    {'7': {'queue_duration': 0.25, 'entry_time': 12.5}}
    >>> logged_times("] Req Time Stats(rid=a, bootstrap_room=7, type=decode): prealloc_queue_duration(3.00ms) = bootstrap(1.00ms), start=4.5")
    {'7': {'prealloc_queue_duration': 3.0, 'bootstrap': 1.0, 'start': 4.5}}
    """
    times = {}
    for room, _side, stats in LINE.findall(log):
        times[room] = {name: float(number) for name, number in DURATION.findall(stats) + ENTRY.findall(stats)}
    return times


def logged_batch_entry(times: dict[str, float], windows: dict) -> float:
    """When a request entered its first batch on the decode server, in nanoseconds since the start of the report."""
    allocation = times.get("prealloc_queue_duration")
    if allocation is None:
        allocation = times["bootstrap_duration"] + times["alloc_wait_duration"]
    waited_ns = (allocation + times["transfer_duration"] + times["queue_duration"]) * 1e6
    if "start" in times:
        return times["start"] * 1e9 + waited_ns - windows["mono"]
    return times["entry_time"] * 1e9 + waited_ns - windows["wall"]


def compare_times(checks: Checks, report: dict, prefill_log: str, decode_log: str) -> str:
    """Compares every request of the report of a decode server. Returns the differences in words."""
    prefill, decode = logged_times(prefill_log), logged_times(decode_log)
    windows = {"mono": report["window_mono_ns"][0], "wall": report["window_wall_ns"][0]}
    differences = {"transfer": [], "prefill's queue": [], "decode's queue": [], "batch entry": []}
    pauses = []
    rooms = {line["room"]: line["moments"] for line in report["pair"]["slowest"]}
    checks.equal("requests in the servers' logs", (set(), set()), (rooms.keys() - prefill.keys(), rooms.keys() - decode.keys()))
    for room in rooms.keys() & prefill.keys() & decode.keys():
        at = rooms[room]
        needed = ["decode_allocated", "decode_queued", "decode_batch", "prefill_queued", "prefill_started"]
        unknown = [name for name in needed if at[name] is None]
        checks.equal(f"unknown moments of room {room}", [], unknown)
        if unknown:
            continue
        # The scheduler sends the message that ends the allocation. It may lose its CPU before it takes the time, which then is in the allocation.
        transfer_ns = at["decode_queued"] - at["decode_allocated"] - decode[room]["transfer_duration"] * 1e6
        pauses.append(transfer_ns)
        allocation_ns = decode[room].get("alloc_wait_duration", 0) * 1e6
        differences["transfer"].append(max(0, -transfer_ns, transfer_ns - allocation_ns))
        queue_ns = at["prefill_started"] - at["prefill_queued"] - prefill[room]["queue_duration"] * 1e6
        differences["prefill's queue"].append(abs(queue_ns))
        queue_ns = at["decode_batch"] - at["decode_queued"] - decode[room]["queue_duration"] * 1e6
        differences["decode's queue"].append(abs(queue_ns))
        differences["batch entry"].append(abs(at["decode_batch"] - logged_batch_entry(decode[room], windows)))
    words = []
    for name, found in differences.items():
        high = percentile(found, 0.95) if found else float("inf")
        checks.equal(f"{name}: p95 of the difference, {high / 1e6:.3f} ms, within {P95_NS / 1e6} ms", True, high <= P95_NS)
        words.append(f"{name} {high / 1e6:.3f}")
    paused = [percentile(pauses, share) / 1e6 for share in (0.5, 0.95)] if pauses else [0, 0]
    words[0] += " (with the pause behind the message: median {:.3f}, p95 {:.3f})".format(*paused)
    return f"p95 of the difference in ms: {', '.join(words)}"


class LogEnd:
    """The end of a log file at some time, to read only what is written later."""

    def __init__(self, log: Path):
        self.log, self.length = log, log.stat().st_size

    def new_text(self) -> str:
        with open(self.log, "rb") as file:
            file.seek(self.length)
            return file.read().decode(errors="replace")
