#!/usr/bin/env python3
"""Fails unless docs/internals/RELIABILITY.md lists exactly the files with unsafe code.

usage: .ci/unsafe_files.py            writes the list
       .ci/unsafe_files.py --check    fails if the list is out of date
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/internals/RELIABILITY.md"
BLOCK = re.compile(r"(<!-- unsafe: .ci/unsafe_files.py -->\n)(.*?)(<!-- unsafe: end -->\n)", re.DOTALL)
# Attributes such as `#[unsafe(no_mangle)]`, too. Not `unsafe_code`, the name of the lint.
UNSAFE = re.compile(r"\bunsafe\b(?=\s*(\{|\(|fn\b|impl\b|extern\b|trait\b))")
# Comments and strings may contain the word.
OTHER = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', re.DOTALL)


def has_unsafe(text):
    """
    >>> has_unsafe('f(); // unsafe { g() }')
    False
    >>> has_unsafe('let s = "unsafe { }"; #![allow(unsafe_code)]')
    False
    >>> has_unsafe('unsafe { f() }'), has_unsafe('#[unsafe(no_mangle)]'), has_unsafe('unsafe impl Pod for T {}')
    (True, True, True)
    """
    return UNSAFE.search(OTHER.sub('""', text)) is not None


def listing():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.rs"], cwd=ROOT, capture_output=True, check=True
    )
    files = sorted({name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()})
    return "\n" + "".join(f"- `{name}`\n" for name in files if has_unsafe((ROOT / name).read_text())) + "\n"


def main():
    text = DOCUMENT.read_text()
    if not BLOCK.search(text):
        sys.exit(f"{DOCUMENT.name} has no marks for the list of unsafe code")
    written = BLOCK.sub(lambda found: found[1] + listing() + found[3], text)
    if "--check" not in sys.argv:
        DOCUMENT.write_text(written)
    elif written != text:
        sys.exit(f"the list of unsafe code in {DOCUMENT.name} is out of date: run .ci/unsafe_files.py, and justify new files there")


if __name__ == "__main__":
    main()
