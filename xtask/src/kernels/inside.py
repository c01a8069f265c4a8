"""Runs in a booted kernel: the features of tokengap there, compared with the truth of the demo and of the engine harness.

usage: inside.py [--only-tests] PROGRAM RELEASE ENGINES RESULT [TEST...]    as root; RESULT is a JSON file, TEST a program, package, wheel or archive

Emulation makes every process slow. Counts are compared exactly; times only with the stamps around the engine's own calls.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed.e2e import attach, losses, session
from testbed.e2e.checks import Checks
from testbed.e2e.rows import consumer
from testbed.e2e.session import Engine, Run, Session, Setting, Watch

# Limits of the harness: importing the engine takes minutes in an emulated machine.
session.STARTUP = session.ATTACHING = 600
session.DEADLINE = 900
# Emulated unpickling delays the harness's stamp after a receive by several milliseconds.
attach.TOLERANCE_NS = 30_000_000
SETTING = Setting(**consumer("--stream-output", http=True))
SETTING = dataclasses.replace(SETTING, plan=SETTING.plan | dict(requests=24, tokens=50))
# Below the limit of the machine, so that the table names the test that hangs.
TESTS_LIMIT_SECONDS = 5000
# Documented in docs/install.md.
USER = "1000"
CAPABILITIES = {True: "bpf,perfmon,sys_ptrace,dac_read_search", False: "sys_admin,sys_ptrace,dac_read_search"}
FIRST_WITH_PROBE = (5, 15)
# Begin of the line of a report without arrivals.
ARRIVALS = "the time when a request reached the server is unknown"
FIRST_WITH_LINKS = (6, 6)

# Not run: one measures a time, the other sends at a rate that an emulated machine may not reach.
TIMED = ["an_observed_read_costs_about_a_microsecond", "each_of_5000_frames_a_second"]
# Need a wheel that exists only for x86-64.
OF_X86 = ["libzmq_4_3_2"]

Cell = dict[str, str]


def works(note: str = "") -> Cell:
    return {"state": "works", "note": note}


def other(state: str, reason: str) -> Cell:
    return {"state": state, "note": reason}


def kernel_version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def doctor(program: Path) -> dict[str, Cell]:
    """Each feature with doctor's own word and reason."""
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True)
    diagnosis = json.loads(done.stdout)
    words = {"works": "works", "degraded": "degraded", "missing": "refused"}
    cells = {}
    for row in diagnosis["features"]:
        reasons = "; ".join(reason["why"] for reason in row["reasons"])
        cells[row["name"]] = other(words[row["state"]], reasons)
    return cells | {"probe points": works(probe_points(diagnosis))}


def probe_points(diagnosis: dict) -> str:
    """How probe points are set, and where in the libzmq of each process."""
    facts = {fact["name"]: fact["value"] for fact in diagnosis["facts"]}
    libraries = {value.rpartition(": ")[2] for name, value in facts.items() if name.endswith(": libzmq") and value}
    return "; ".join([str(facts.get("uprobes")), *sorted(libraries)])


def demo(program: Path) -> Cell:
    """The demo's report against its peers' counts."""
    command = [program, *"demo --scenario race --headless --json --duration 5s".split()]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    truth, chunks = report["demo"]["truth"], report["chunks"]
    pairs = [
        ("requests", truth["requests"], report["requests"]["seen"]),
        ("chunks", truth["chunks"], chunks["sent"]),
        ("tokens", truth["tokens"], report["tokens"]["sent"]),
        ("tokens lost", truth["tokens_lost"], chunks["tokens_lost"]),
    ]
    wrong = [f"{what}: {expected} expected, {reported} reported" for what, expected, reported in pairs if expected != reported]
    return other("wrong", "; ".join(wrong)) if wrong else works(f"{truth['tokens']} tokens, {truth['tokens_lost']} lost")


def attached(options, under: tuple[str, ...]) -> dict[str, Cell]:
    """The real TokenizerManager with HTTP clients under attach: every count, loss and gap."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        checks = Checks()
        run = Run(options, Engine(options.release), "kernel", Path(folder), checks)
        try:
            running = Session(run, SETTING, None)
            found = subprocess.run([options.tokengap, "doctor", "--json"], capture_output=True, text=True)
            watch = Watch(run, running.receiver.pid, under=under)
            running.go()
            outcome = running.finish()
            outcome.report = watch.report()
        except RuntimeError as error:
            return {"frames": other("refused", str(error).strip().splitlines()[-1].strip())}
        finally:
            run.close()
    report = outcome.report
    attach.totals(checks, outcome)
    attach.hops(checks, outcome)
    gaps = attach.requests(checks, outcome)
    cells = {"frames": verdict(checks, f"{report['tokens']['received']} tokens; {gaps}")}
    cells["probe points"] = works(probe_points(json.loads(found.stdout)))
    # Arrivals have a row of their own.
    own = report["self"]
    own["degraded"] = [line for line in own["degraded"] if not line.startswith(ARRIVALS)]
    delivered = Checks()
    losses.delivered(delivered, outcome)
    losses.confirmed(delivered, outcome)
    cells["losses"] = verdict(delivered, f"{report['chunks']['tokens_lost']} tokens lost")
    hop = report["hops"][0]
    # A number that only the feature gives.
    numbers = {
        "thread states": next((thread["run_wait"] for thread in report["cpu"] if thread["run_wait"] is not None), None),
        "kernel queues": hop["kernel_bytes_max"],
    }
    reasons = "; ".join(report["self"]["degraded"])
    for name, number in numbers.items():
        cells[name] = other("no number", reasons) if number is None else works()
    return cells


def verdict(checks: Checks, note: str) -> Cell:
    return other("wrong", "; ".join(checks.failed[:3])) if checks.failed else works(note)


def live_tests(test: Path, project: Path) -> Cell:
    """The probe's own tests as root, with the Python environments that they have made on the host."""
    is_x86 = platform.machine() == "x86_64"
    skipped = list(TIMED)
    # Cargo has a folder for each target that is not the host.
    folder = project / "target" / ("tmp" if is_x86 else f"{platform.machine()}-unknown-linux-musl/tmp")
    with tempfile.TemporaryDirectory() as copy:
        # The project is read only here, and the tests make sockets in this folder.
        if is_x86:
            subprocess.run(["cp", "-a", f"{folder}/.", copy], check=True)
        else:
            make_environments(Path(copy))
            skipped += OF_X86
        subprocess.run(["mount", "--bind", copy, folder], check=True)
        command = [test, "--test-threads=1", "--show-output", *(f"--skip={name}" for name in skipped)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TESTS_LIMIT_SECONDS)
        except subprocess.TimeoutExpired as expired:
            print(expired.stdout.decode(errors="replace"))
            return other("wrong", f"{running_test(expired.stdout)} ran when the limit of {TESTS_LIMIT_SECONDS} s was reached")
        finally:
            # Peers of a stopped test may have files open.
            subprocess.run(["umount", "--lazy", folder], check=True)
    print(done.stdout, done.stderr)
    counts = re.search(r"(\d+) passed; (\d+) failed", done.stdout)
    if not counts:
        return other("refused", (done.stdout + done.stderr).strip().splitlines()[-1])
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.MULTILINE)
    if failed:
        return other("wrong", f"failed: {', '.join(failed)}")
    reasons = re.findall(r"^SKIPPED: (.*)", done.stdout, re.MULTILINE)
    note = f"{int(counts[1]) - len(reasons)} tests, without {' and '.join(skipped)}"
    return other("degraded", f"{note}; {len(reasons)} skipped: {'; '.join(sorted(set(reasons)))}") if reasons else works(note)


def running_test(output: bytes) -> str:
    """The last test that was started.

    >>> running_test(b"running 2 tests\\ntest slow ... ok\\ntest hanging ... ")
    'hanging'
    """
    return re.findall(r"^test (\S+) \.\.\. ", output.decode(errors="replace"), re.MULTILINE)[-1]


def make_environments(folder: Path) -> None:
    """The tests' Python environments with the packages that this machine has."""
    for packages in Path("/opt").glob("pyzmq-*"):
        program = folder / packages.name / "bin/python"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec python3 "$@"\n')
        program.chmod(0o755)
        (folder / packages.name / "complete").touch()


def confined(test: Path) -> Cell:
    """Confined processes that try each forbidden and each needed call."""
    done = subprocess.run([test], capture_output=True, text=True, timeout=3600)
    print(done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    failed = [line.removeprefix("FAILED").strip() for line in lines if line.startswith("FAILED")]
    if failed or done.returncode:
        return other("wrong", "; ".join(failed[:3]) or done.stderr.strip()[-200:])
    skipped = [line.removeprefix("SKIPPED: ") for line in lines if line.startswith("SKIPPED: ")]
    return other("degraded", f"not refused: {'; '.join(skipped)}") if skipped else works(lines[-1])


def installed(release: Path) -> dict[str, Cell]:
    """The demo of a release's program, installed or unpacked by this machine's own tools."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if release.suffix == ".deb":
            name, program = "package", "usr/bin/tokengap"
            database = root / "var/lib/dpkg"
            for part in ("info", "updates"):
                (database / part).mkdir(parents=True)
            (database / "status").touch()
            install = ["dpkg", f"--root={root}", f"--log={root}/log", "--install", release]
        elif release.suffix == ".whl":
            name, program = "wheel", "**/bin/tokengap"
            install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-cache-dir", "--prefix", root, release]
        else:
            name, program = "archive", "*/tokengap"
            install = ["tar", "-C", root, "-xzf", release]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            return {f"installed: {name}": other("wrong", " ".join(done.stderr.split())[-200:])}
        return {f"installed: {name}": demo(next(root.glob(program)))}


def features(options, granted: str) -> Iterator[dict[str, Cell]]:
    """Every feature, as root and as a user with the capabilities `granted`."""
    yield {f"doctor: {name}": cell for name, cell in doctor(options.tokengap).items()}
    yield {"demo": demo(options.tokengap)}
    yield {f"root: {name}": cell for name, cell in attached(options, ()).items()}
    listed = ",".join(f"+{name}" for name in granted.split(","))
    under = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--inh-caps", listed, "--ambient-caps", listed)
    yield {f"user: {name}": cell for name, cell in attached(options, under).items()}


def tests(options) -> Iterator[dict[str, Cell]]:
    """Each test program, package, wheel and archive."""
    for test in options.tests:
        if test.suffix in (".deb", ".gz", ".whl"):
            yield installed(test)
        elif test.name.startswith("live"):
            if kernel_version() < FIRST_WITH_PROBE:
                continue
            yield {"tests: probe": live_tests(test, options.engines.parent)}
        else:
            yield {"tests: confinement": confined(test)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokengap", type=Path)
    parser.add_argument("release")
    parser.add_argument("engines", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("tests", type=Path, nargs="*")
    parser.add_argument("--only-tests", action="store_true")
    options = parser.parse_args()
    options.python, options.xtask = Path(sys.executable), None
    granted = CAPABILITIES[kernel_version() >= FIRST_WITH_LINKS]
    machine = {"kernel": platform.release(), "machine": platform.machine(), "capabilities": granted}
    cells = {}
    for found in itertools.chain(() if options.only_tests else features(options, granted), tests(options)):
        cells |= found
        # A machine that is stopped at its time limit keeps what it has found.
        options.result.write_text(json.dumps({**machine, "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
