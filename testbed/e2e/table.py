"""The table of rows. Runs each row in its own folder, single-core rows concurrently, and prints them as they finish."""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable

from .checks import Checks
from .process import ROOT
from .session import Engine, Run

SCORES = (
    "| release | consumer | tokens lost | predicted | precision, requests | recall | precision, tokens | recall | correct positions |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|"
)


@dataclass(frozen=True)
class Row:
    group: str
    engine: Engine
    name: str
    # Runs and compares; returns the engine's summary.
    play: Callable[[Run], str]
    # Whether the row must run alone, because it checks times or scans all processes. Counts do not depend on load.
    alone: bool = False
    # Functions that return the reason why the row cannot run here, or `None`.
    needs: tuple[Callable[[], str | None], ...] = ()

    @property
    def full(self) -> str:
        """Text that `--only` matches."""
        return f"{self.engine.name} {self.name}"

    def title(self) -> str:
        return f"{self.engine.name:<16} {self.name:<25}"


@dataclass
class Result:
    seconds: float
    # Number of comparisons made, and those that failed or the error that ended the row.
    made: int
    failed: list[str]
    summary: str
    scores: list[str] = field(default_factory=list)


def run_row(row: Row, options) -> Result:
    """Runs one row in this process."""
    started, checks, summary = time.monotonic(), Checks(), "did not complete"
    with tempfile.TemporaryDirectory(prefix="e2e-", ignore_cleanup_errors=True) as folder:
        run = Run(options, row.engine, row.name, Path(folder), checks)
        try:
            summary = row.play(run)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            checks.failed.append(f"{error!r}" if isinstance(error, RuntimeError) else f"{error!r} at {where.name}:{where.lineno}")
        finally:
            run.close()
    scores = [f"| {row.engine.name} | {row.name.removeprefix('scored, ')} | {cells} |" for cells in checks.scores]
    return Result(time.monotonic() - started, checks.made, checks.failed, summary, scores)


def run_in_own_process(row: Row, options) -> Result:
    """Runs one row in its own process and, where permitted, in its own PID namespace, so that attach finds only that row's engine."""
    started = time.monotonic()
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"] if os.geteuid() == 0 else []
    command = [*namespace, sys.executable, "-m", "testbed.e2e", *sys.argv[1:], "--row", row.full]
    made = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return Result(**json.loads(made.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return Result(time.monotonic() - started, 0, [f"exited with {made.returncode}: {made.stderr.strip()}"], "")


class Table:
    def __init__(self, rows: list[Row], options):
        self.rows, self.options = rows, options
        self.started = time.monotonic()
        self.seconds: Counter[str] = Counter()
        self.results: dict[str, Result] = {}
        self.first_failed: list[str] = []
        self.skipped = 0

    def run(self) -> bool:
        """Runs all rows; returns whether they passed."""
        print(f"{'release':<16} {'scenario':<25} {'time':>6}  {'checks':<6} summary")
        left = [row for row in self.rows if not self.skips(row)]
        if self.options.jobs > 1:
            left = self.run_in_parallel(left)
        again = [row for row in left if not self.finish(row, run_row(row, self.options))]
        if again:
            print("\nSecond attempt of failed rows:")
        for row in again:
            # Other rows may have used the CPU. The second result counts, and the summary names the row.
            self.first_failed.append(row.full)
            self.finish(row, run_row(row, self.options))
        return self.end()

    def skips(self, row: Row) -> bool:
        why = next((why for need in row.needs if (why := need())), None)
        if why:
            print(f"{row.title()} SKIPPED: {why}", flush=True)
            self.skipped += 1
        return bool(why)

    def run_in_parallel(self, rows: list[Row]) -> list[Row]:
        """Runs concurrently the rows that permit it; returns the others. A failed row runs again alone, and that result counts."""
        left = [row for row in rows if row.alone]
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            running = {pool.submit(run_in_own_process, row, self.options): row for row in rows if not row.alone}
            for done in concurrent.futures.as_completed(running):
                row, result = running[done], done.result()
                if result.failed:
                    print(f"{row.title()} failed concurrently with other rows; second attempt:")
                    print("\n".join(f"    {line}" for line in result.failed), flush=True)
                    left.append(row)
                else:
                    self.finish(row, result)
        return left

    def finish(self, row: Row, result: Result) -> bool:
        """Prints a finished row."""
        verdict = f"{result.made} {'FAIL' if result.failed else 'ok'}"
        print(f"{row.title()} {result.seconds:>5.1f}s  {verdict:<6} {result.summary}")
        for line in result.failed:
            print(f"    {line[:2000]}")
        sys.stdout.flush()
        self.seconds[row.group] += result.seconds
        self.results[row.full] = result
        return not result.failed

    def end(self) -> bool:
        results = [self.results[row.full] for row in self.rows if row.full in self.results]
        if scores := [line for result in results for line in result.scores]:
            print("\nPredicted drops compared with the clients' losses:", SCORES, *scores, "", sep="\n")
        groups = ", ".join(f"{group} {seconds:.0f} s" for group, seconds in self.seconds.items())
        print(f"time: {groups}; total {time.monotonic() - self.started:.0f} s")
        failed = sum(bool(result.failed) for result in results)
        made = sum(result.made for result in results)
        print(f"{len(results) - failed} scenarios passed, {failed} failed, {self.skipped} SKIPPED; {made} comparisons")
        if self.first_failed:
            print("failed at the first attempt:", "; ".join(self.first_failed))
        return not failed


def as_json(result: Result) -> str:
    return json.dumps(asdict(result))
