"""Recordings of a real engine: the replayed report equals the live one, every export format works, and with `--readers` third-party tools read
the exports."""

import json
import shutil
import subprocess
from pathlib import Path

from .checks import Checks, at, summary
from .session import Run


def recorded(watch, setting):
    """A row that records what `watch` observes."""

    def play(run: Run) -> str:
        program, recording = run.program, run.folder / "run.tgap"
        script = run.folder / "tokengap-recorded"
        script.write_text(f"#!/bin/sh\nexec '{program}' \"$@\" --record '{recording}'\n")
        script.chmod(0o700)
        run.program = run.relay = script
        outcome = watch(run, setting)
        replayed(run.checks, program, recording, outcome.report)
        exported(run.checks, program, recording, outcome.report)
        if run.options.readers:
            subprocess.run([run.options.xtask, "validate", recording, "--binary", program], check=True, capture_output=True)
        if run.options.keep:
            run.options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(recording, run.options.keep / f"{run.name}.tgap")
        return summary(outcome)

    return play


def output_of(*command) -> str:
    made = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{command[1:]} exited with {made.returncode}: {made.stderr}")
    return made.stdout


def replayed(checks: Checks, program: Path, recording: Path, live: dict) -> None:
    """Replays a recording and compares its report with the live one."""
    replay = json.loads(output_of(program, "replay", recording, "--json", "--slowest", "100000"))
    # Resource use and the requested number of slowest requests may differ.
    own = ("cpu_ns", "rss_bytes")
    reports = []
    for report in (live, replay):
        itself = {name: value for name, value in report["self"].items() if name not in own}
        slowest = report["slowest"] and report["slowest"][: len(live["slowest"])]
        reports.append(report | {"self": itself, "slowest": slowest})
    if not any(hop["frames_sent"] for hop in live["hops"]):
        raise RuntimeError("the live run observed no frame")
    checks.matches(reports[1], reports[0], "replayed")


def exported(checks: Checks, program: Path, recording: Path, live: dict) -> None:
    """Exports every format and compares its counts with the live report."""
    report = json.loads(output_of(program, "report", recording, "--format", "json"))
    checks.matches(report, {part: live[part] for part in ("requests", "tokens", "chunks", "hops", "findings")})
    verdict = output_of(program, "report", recording).partition("\n")[0].partition(":")[0]
    for style in ("markdown", "html"):
        checks.true(f"the verdict is in {style}", verdict in output_of(program, "report", recording, "--format", style))
    diff = json.loads(output_of(program, "diff", recording, recording, "--format", "json"))
    changed = [measure for measure in diff["measures"] if measure["verdict"] in ("worse", "better")]
    checks.equal("differences between a report and itself", [], changed)
    output_of(program, "diff", recording, recording)
    output_of(program, "diff", recording, recording, "--format", "markdown")

    def export(style: str) -> str:
        return output_of(program, "export", recording, "--format", style)

    checks.equal("CSV rows", at(live, "requests/seen"), len(export("csv").splitlines()) - 1)
    trace = json.loads(export("perfetto"))
    checks.true("the Perfetto trace has slices", any(event["ph"] in ("X", "b") for event in trace))
    for style in ("otlp", "events"):
        checks.true(f"{style} has lines", [json.loads(line) for line in export(style).splitlines()])
