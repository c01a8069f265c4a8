"""`tokengap export` of a busy engine's recording: CPU time including analysis, compared with Python's `json.dump` of the same trace."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from common import example, result, tokengap

FORMATS = ("csv", "otlp", "events", "perfetto")


def cost(out, *words):
    """CPU seconds and peak resident MB of a command that writes `out`."""
    out.unlink(missing_ok=True)
    child = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{words} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def json_dump(file):
    """Minimum nanoseconds of `json.dump` per event."""
    events = json.loads(file.read_text())
    least = float("inf")
    for _ in range(3):
        with open("/dev/null", "w") as out:
            begun = time.process_time()
            json.dump(events, out)
            least = min(least, time.process_time() - begun)
    return least * 1e9 / len(events)


def run(quick):
    program, busy = tokengap(), example("recording", "busy")
    with tempfile.TemporaryDirectory() as folder:
        recording, short, out = (Path(folder) / name for name in ("busy.tgap", "short.tgap", "out"))
        seconds = "2" if quick else "8"
        subprocess.run([busy, recording, seconds, "4096", "200"], check=True)
        subprocess.run([busy, short, "1", "4096", "200"], check=True, stdout=subprocess.DEVNULL)
        print(f"{'format':10}{'lines':>10}{'MB':>8}{'CPU s':>8}{'peak MB':>9}")
        for name in FORMATS:
            spent, peak = cost(out, program, "export", recording, "--format", name, "--output", out)
            with out.open("rb") as file:
                lines = sum(1 for _ in file)
            print(f"{name:10}{lines:10}{out.stat().st_size / 1e6:8.1f}{spent:8.2f}{peak:9.0f}")
        # Python's time per event does not depend on the size of the trace.
        cost(out, program, "export", short, "--format", "perfetto", "--output", out)
        python, ours = json_dump(out), spent * 1e9 / lines
        print(f"perfetto, per event: {ours:.0f} ns including analysis, json.dump alone {python:.0f} ns")
        result("export", python / ours)
