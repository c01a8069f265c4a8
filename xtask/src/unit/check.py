"""Boots systemd with boot.sh, lets it run steps.sh, and checks the report of the service.

usage: check.py PROGRAM RELEASE
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM, RELEASE = sys.argv[1:]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE_S = 120


def steps(shared):
    """Returns the error of the steps, if any."""
    log, until = shared / "steps.log", time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        said = log.read_text() if log.exists() else ""
        if "ALL STEPS" in said:
            return None
        if "never said" in said:
            return "a step failed"
        if boot.poll() is not None:
            return f"systemd exited with {boot.returncode}"
        time.sleep(0.2)
    return f"the steps took longer than {PATIENCE_S} s"


def check(report):
    """The unit's restrictions disable no feature."""
    degraded = report["self"]["degraded"]
    if not report["chunks"]["received"] or report["cpu"] is None:
        sys.exit(f"the service observed no receives or no threads: {degraded}")
    if any(word in line for word in ("missing", "refused") for line in degraded):
        sys.exit(f"the unit grants too few privileges: {degraded}")
    if not any(finding["kind"] == "engine-ended" for finding in report["findings"]):
        sys.exit("no finding reports the engine's restart")
    print(f"the service observed {report['chunks']['received']} received chunks across the engine's restart; degraded: {degraded}")


with tempfile.TemporaryDirectory() as top, tempfile.TemporaryDirectory() as folder:
    shared = Path(folder)
    (shared / "steps.sh").write_text((HERE / "steps.sh").read_text())
    # Killing it ends the PID namespace and all of its processes.
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc"]
    command = [*apart, "sh", HERE / "boot.sh", top, PROGRAM, ROOT / "deploy/systemd", shared, ROOT, RELEASE]
    with open(shared / "boot.log", "w") as out:
        boot = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        wrong = steps(shared)
    finally:
        boot.kill()
        boot.wait()
    print((shared / "steps.log").read_text(), end="")
    if wrong:
        logs = (shared / name for name in ("boot.log", "log", "engine.log"))
        sys.exit(wrong + "\n" + "".join(log.read_text() for log in logs if log.exists()))
    check(json.loads((shared / "report.json").read_text()))
