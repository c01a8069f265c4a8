#!/usr/bin/env python3
"""Draws the crates of the workspace by layer: a crate is one layer above the highest crate that it depends on.

usage: .ci/floors.py            writes the picture into docs/internals/ARCHITECTURE.md
       .ci/floors.py --check    fails if the picture there is out of date
"""

import json
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs/internals/ARCHITECTURE.md"
BLOCK = re.compile(r"(<!-- floors: .ci/floors.py -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def uses():
    """Dependencies of each crate, without those of tests and benchmarks."""
    said = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"], capture_output=True, check=True).stdout
    packages = {package["name"]: package["dependencies"] for package in json.loads(said)["packages"]}
    return {name: sorted({d["name"] for d in all if d["kind"] is None and d["name"] in packages}) for name, all in packages.items()}


def picture(uses):
    def floor(name):
        return 1 + max((floor(used) for used in uses[name]), default=-1)

    lines = []
    for level in sorted({floor(name) for name in uses}, reverse=True):
        for name in sorted(name for name in uses if floor(name) == level):
            lines.append(f"{level}  {name:10}  {' '.join(uses[name]) or '-'}\n")
    return "".join(lines)


def main():
    text = DOCUMENT.read_text()
    drawn = BLOCK.sub(lambda found: found[1] + picture(uses()) + found[3], text)
    if "--check" not in sys.argv:
        DOCUMENT.write_text(drawn)
    elif drawn != text:
        sys.exit(f"the picture of the layers in {DOCUMENT.name} is out of date: run .ci/floors.py")


main()
