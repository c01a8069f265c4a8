#!/usr/bin/env python3
"""Compares recorded data with its manifest: what an engine wrote is evidence, so no other command may change it.

usage: recorded.py                  compare all recorded files with recorded.txt; exits with 1 if any differs
       recorded.py --seal PATH..    enter these files or folders after recording them

The recording commands of the project seal what they record. After recording with a real server, seal by hand.
"""
import hashlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "xtask/src/recorded.txt"
# Folders of recorded data, and what recorded each. The first that fits counts. A folder's name or the file's has the release.
SOURCES = {
    "zmq-tap/fixtures/messages": "cargo xtask fixtures",
    "engines/fixtures/dynamo/responses": "real Dynamo runtimes, testbed/dynamo",
    "engines/fixtures/dynamo/requests": "real Dynamo runtimes, testbed/dynamo",
    "responses/fixtures/grpc": "a real SGLang server with --grpc-port",
    "responses/fixtures/http2": "Hypercorn 0.18.0, Granian 2.8.9, gRPC for Python 1.85.3",
    "responses/fixtures/tool_calls": "python -m testbed.real.tool_calls, on a real server",
    "responses/fixtures": "responses/fixtures/record.py",
    "engines/fixtures/vllm": "vLLM's own classes and encoder",
    "engines/tests/logs/report": "copied from a public report",
    "engines/tests/logs/posted": "posted by operators, ids and hosts replaced",
    "engines/tests/logs": "cargo xtask fixtures",
    "recording/fixtures": "cargo xtask e2e --keep, and tokengap demo --record",
}
HEADER = """\
# SHA-256 of recorded data. Written by the commands that record it, through xtask/src/recorded.py; do not edit.
"""


def recorded_files():
    """Paths of all recorded files, from the project's folder."""
    found = set()
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".md", ".py"):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def source_of(path):
    return next(source for folder, source in SOURCES.items() if path.startswith(folder + "/"))


def digest(path):
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()


def read_manifest():
    """Digest of each path."""
    lines = MANIFEST.read_text().splitlines() if MANIFEST.exists() else []
    entries = (line.split("  ", 1) for line in lines if line and not line.startswith("#"))
    return {path: known for known, path in entries}


def seal(paths):
    """Enters recorded files, or all recorded files of folders, and drops entries of deleted files."""
    chosen = [pathlib.Path(path).resolve().relative_to(ROOT).as_posix() for path in paths]
    files = recorded_files()
    entries = {path: known for path, known in read_manifest().items() if path in files}
    for path in files:
        if any(path == one or path.startswith(one + "/") for one in chosen):
            entries[path] = digest(path)
    by_source = {}
    for path in sorted(entries):
        by_source.setdefault(source_of(path), []).append(path)
    text = HEADER
    for source, paths_of_source in sorted(by_source.items()):
        text += f"\n# {source}\n" + "".join(f"{entries[path]}  {path}\n" for path in paths_of_source)
    MANIFEST.write_text(text)


def check():
    """Prints every difference, and returns their number."""
    entries, files = read_manifest(), recorded_files()
    differences = [f"{path}: changed" for path in sorted(files & entries.keys()) if digest(path) != entries[path]]
    differences += [f"{path}: not in the manifest" for path in sorted(files - entries.keys())]
    differences += [f"{path}: missing" for path in sorted(entries.keys() - files)]
    for difference in differences:
        path = difference.partition(":")[0]
        print(f"{difference}; recorded by: {source_of(path)}")
    print(f"{len(files)} recorded files, {len(differences)} differences")
    if differences:
        print("recorded data keeps its bytes: restore it with git, or record it again; then seal it with xtask/src/recorded.py --seal PATH")
    return len(differences)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seal"] and sys.argv[2:]:
        seal(sys.argv[2:])
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        sys.exit(check() > 0)
