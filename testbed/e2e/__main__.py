"""`python -m testbed.e2e`: the rows of `cargo xtask e2e`, which prepares the programs and passes its options on."""

import argparse
import subprocess
import sys
from pathlib import Path

from .process import ROOT
from .rows import rows
from .table import Table, as_json, run_row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.e2e", description=__doc__)
    parser.add_argument("--xtask", type=Path, required=True, help="path of the xtask program")
    parser.add_argument("--tokengap", type=Path, help="the program under test [default: a relay that only copies]")
    parser.add_argument("--release", dest="releases", action="append", default=[], help="replaces the default releases; repeatable")
    parser.add_argument("--every", action="store_true", help="run the scenarios on every release that they are for")
    parser.add_argument("--quick", action="store_true", help="one scenario per release, without injected failures")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--readers", action="store_true", help="read the exports with third-party tools")
    parser.add_argument("--keep", type=Path, help="folder for recordings")
    parser.add_argument("--jobs", type=int, default=1, help="number of rows to run at once")
    parser.add_argument("--row", help="run this row and print its result as JSON")
    options = parser.parse_args()
    options.plain, options.python, options.engines = options.tokengap is None, Path(sys.executable), ROOT / ".engine"
    wanted = [row for row in rows(options) if options.only in row.full]
    if options.row:
        (row,) = (row for row in wanted if row.full == options.row)
        print(as_json(run_row(row, options)))
        return 0
    if not wanted:
        sys.exit("no row has that name")
    releases = {row.engine.release for row in wanted if row.group != "dynamo"}
    if releases:
        subprocess.run([options.xtask, "engine", *sorted(releases)], check=True, stdout=subprocess.DEVNULL)
    return 0 if Table(wanted, options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
