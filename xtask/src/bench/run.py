"""`cargo xtask bench`: comparative measurements, in which tokengap and its peers alternate in the same run.

usage: run.py [--quick] [--write] [NAME...]
"""

import argparse
import time
import traceback
from pathlib import Path

import attach
import common
import export
import library
import logs
import observers
import relay
import screen
import switches
import volume

# Name, function, and whether `--quick` includes it.
ALL = {
    "decode": (library.decode, True),
    "ledger": (library.ledger, True),
    "memory": (library.memory, False),
    "record": (library.record, True),
    "relay": (relay.run, True),
    "attach": (attach.run, True),
    "switch": (switches.run, False),
    "export": (export.run, True),
    "import": (logs.run, True),
    "screen": (screen.run, False),
    "probe": (observers.probe, False),
    "egress": (observers.egress, False),
    "volume": (volume.run, False),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", choices=[[], *ALL])
    args = parser.parse_args()
    skipped, failed = [], []
    for name in args.names or [name for name, (_, quick) in ALL.items() if quick or not args.quick]:
        print(f"\n== bench {name}", flush=True)
        begun = time.monotonic()
        try:
            ALL[name][0](args.quick)
        except common.Skipped as why:
            print(f"SKIPPED: {why}")
            skipped.append(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"-- {time.monotonic() - begun:.0f} s", flush=True)
    if not args.names and not args.quick:
        print(f"\n{common.table()}")
    if args.write:
        write(common.ROOT / "docs/internals/PERFORMANCE.md", common.table())
    if skipped:
        print(f"\nSKIPPED, for the reasons above: {', '.join(skipped)}")
    if failed:
        raise SystemExit(f"FAILED: {', '.join(failed)}")


def write(file: Path, table):
    """Replaces the table between the two marks."""
    begin, end = "<!-- Aims: written by the command -->\n", "<!-- Aims: end -->"
    before, rest = file.read_text().split(begin)
    file.write_text(f"{before}{begin}{table}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
