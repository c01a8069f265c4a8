"""`tokengap import` of a large log, compared with `grep -c` over the same file. Both alternate; CPU time, so that other load does not count.

The lines are those of the test logs, with other rids and times: 60 % of them are of no known form, as in a server's log.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from common import ROOT, median, result, tokengap

LINES = 1_500_000
LOGS = ROOT / "engines/tests/logs"
ROUNDS = 5


def line_of(name, mark):
    """The part of a test log's line from `mark` on."""
    for line in (LOGS / name).read_text().splitlines():
        if mark in line:
            return line[line.index(mark) :]
    raise RuntimeError(f"no line with {mark!r} in {name}")


def template(line):
    """Splits a line at its rid and its time."""
    line = line.replace("{", "{{").replace("}", "}}")
    line = re.sub(r"rid=('?)[0-9a-f]{32}", r"rid=\1{rid:032x}", line, count=1)
    return re.sub(r"entry_time=[0-9.]+", "entry_time={entry:.3f}", line)


def write_log(file, lines):
    stats = template(line_of("sglang-0.5.23/0.5.23.log", "ReqTimeStats("))
    backlog = template(line_of("sglang-0.5.23/0.5.23.log", "Streaming backlog"))
    deleted = template(line_of("posted/03-log-prefixes/needs-line-time/ray.log", "Received output"))
    batch = line_of("posted/10-torn-and-interleaved/joined-decode-first.log", "Decode batch").split("[")[0]
    # Six of ten lines are unknown.
    kinds = [batch, batch, stats, batch, batch, backlog, batch, stats, batch, deleted]
    with file.open("w") as out:
        for number in range(lines):
            at = 1_795_246_498 + number * 0.002
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
            rid = number // 10 * 0x9E3779B97F4A7C15_F39CC0605CEDC835 % (1 << 128)
            message = kinds[number % 10].format(rid=rid, entry=at - 12.5) if number % 10 in (2, 5, 7, 9) else batch
            out.write(f"[{stamp} TP0] {message}\n")


def cost(folder, *words):
    """CPU seconds and peak resident MiB."""
    # Into a file: `grep` that writes to /dev/null stops at the first match.
    with (Path(folder) / "output").open("w") as output:
        child = subprocess.Popen([str(word) for word in words], stdout=output, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{words} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def run(quick):
    program = tokengap()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        write_log(log, LINES // 10 if quick else LINES)
        ours, grep, peak = [], [], 0
        for _ in range(ROUNDS):
            grep.append(cost(folder, "grep", "-c", "ReqTimeStats", log)[0])
            spent, resident = cost(folder, program, "import", log, "--format", "json")
            ours.append(spent)
            peak = max(peak, resident)
        megabytes = log.stat().st_size / 1e6
        print(f"{megabytes:.0f} MB: import {median(ours):.3f} s, grep -c {median(grep):.3f} s of CPU, {peak:.0f} MiB resident")
        result("import.time", median(ours) / median(grep))
        result("import.memory", peak)
