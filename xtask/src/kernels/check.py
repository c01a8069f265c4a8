"""Boots kernels and writes the table of features by kernel.

usage: check.py X86 ARM64 RELEASE [--test FILE]... [--only-tests] [--only TEXT] [--table FILE] [--results FOLDER]
X86 and ARM64 are static programs; `-` omits an architecture. A test program (`live-*` or `refused-*`) runs on the kernels of its architecture;
a Debian package, a wheel or an archive of a release is installed there, and its demo compared with its truth.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
# Oldest supported kernel. From it on, a refusal of these cells is a failure.
SUPPORTED = (5, 15)
REQUIRED = ("demo", "root: frames", "root: losses", "user: frames", "user: losses")
# An emulated ARM64 machine needs a minute for an import of the engine, and the tests of the probe have a limit of 5,000 s.
LIMIT_SECONDS = 7200
ROWS = [
    ("frames, tokens, gap", "root: frames"),
    ("losses, deliveries", "root: losses"),
    ("thread states", "root: thread states"),
    ("wakeups", "doctor: wakeups"),
    ("kernel queues", "root: kernel queues"),
    ("socket reads", "doctor: socket reads"),
    ("request arrivals", "doctor: arrivals"),
    ("as a user with capabilities", "user: frames"),
    ("probe points", "root: probe points"),
    ("demo", "demo"),
    ("tests of the probe", "tests: probe"),
    ("tests of confinement", "tests: confinement"),
    ("Debian package installed", "installed: package"),
    ("wheel installed", "installed: wheel"),
    ("archive unpacked", "installed: archive"),
]
# Shown with their value as a note.
NOTED = ("root: probe points", "tests: probe")


def kernels() -> list[list[str]]:
    lines = (HERE / "kernels.txt").read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def architecture_of(tested: Path) -> str:
    """Debian's name of the machine of an ELF file, package, wheel or archive."""
    if tested.suffix == ".deb":
        return tested.stem.rpartition("_")[2]
    if tested.suffix in (".gz", ".whl"):
        return "arm64" if "aarch64" in tested.name else "amd64"
    with tested.open("rb") as file:
        machine = int.from_bytes(file.read(20)[18:], "little")
    return {62: "amd64", 183: "arm64"}[machine]


def boot(kernel: list[str], program: Path, release: str, tests: list[Path], flags: str) -> dict | None:
    """Results of one kernel; `None` if it is not served, or did not come up. `flags` are those of inside.py."""
    architecture, suite, package = kernel
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        shutil.copy(program, out / "tokengap")
        tests = [test for test in tests if architecture_of(test) == architecture]
        for test in tests:
            shutil.copy(test, out)
        python = PROJECT / ".venv-testbed/bin/python" if architecture == "amd64" else "python3"
        path = f"{PROJECT}:{HERE}"
        # The shared folder does not allow other users to run files.
        command = (
            f"cp /run/out/tokengap /tmp && chmod 755 /tmp/tokengap && cd {PROJECT} && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} "
            f"{python} xtask/src/kernels/inside.py {flags} /tmp/tokengap {release} {PROJECT}/.engine /run/out/result.json"
            + "".join(f" /run/out/{test.name}" for test in tests)
        )
        arguments = ["-a", architecture, "-s", suite, "-t", str(LIMIT_SECONDS), "-o", folder, package, command]
        done = subprocess.run([HERE / "boot.sh", *arguments])
        result = out / "result.json"
        if not result.exists():
            print(f"SKIPPED: {' '.join(kernel)}: boot.sh ended with {done.returncode}", flush=True)
            return None
        found = json.loads(result.read_text())
        if done.returncode:
            found["cells"]["run"] = {"state": "wrong", "note": f"boot.sh ended with {done.returncode} before the last cell"}
        return found


def column(result: dict) -> str:
    version = ".".join(result["kernel"].split(".")[:2])
    return f"{version} {'ARM64' if result['machine'] == 'aarch64' else 'x86-64'}"


def table(results: list[dict]) -> str:
    """A row for each feature that some run has, and a column for each kernel. Reasons are numbered notes."""
    notes: list[str] = []

    def cell(result: dict, key: str) -> str:
        found = result["cells"].get(key)
        # A run that was refused has no further numbers, and the tests of the probe do not run where it is.
        if found is None:
            run = "root" if key == "tests: probe" else key.split(":")[0]
            refused = result["cells"].get(f"{run}: frames")
            if refused is None or refused["state"] != "refused":
                return "not run"
            found = refused
        if found["state"] == "works" and key not in NOTED:
            return "works"
        if found["note"] not in notes:
            notes.append(found["note"])
        return f"{found['state']} ({notes.index(found['note']) + 1})"

    lines = ["| | " + " | ".join(column(result) for result in results) + " |", "|---" * (len(results) + 1) + "|"]
    for name, key in ROWS:
        if any(key in result["cells"] for result in results):
            lines.append(f"| {name} | " + " | ".join(cell(result, key) for result in results) + " |")
    lines.append("| capabilities of that user | " + " | ".join(f"`{result['capabilities']}`" for result in results) + " |")
    lines.append("")
    lines += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("x86")
    parser.add_argument("arm64")
    parser.add_argument("release")
    parser.add_argument("--test", type=Path, action="append", default=[], help="a test program to run")
    parser.add_argument("--only-tests", action="store_true", help="keep the other results of an earlier run")
    parser.add_argument("--only", default="", help="only kernels whose line contains this")
    parser.add_argument("--table", type=Path, help="file for the table")
    parser.add_argument("--results", type=Path, help="folder for the results as JSON, from which --table also takes kernels not run")
    options = parser.parse_args()
    results = {}
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        for file in options.results.glob("*.json"):
            results[file.stem] = json.loads(file.read_text())
    wrong, ran, skipped = [], 0, 0
    for kernel in kernels():
        program = options.x86 if kernel[0] == "amd64" else options.arm64
        if program == "-" or options.only not in " ".join(kernel):
            continue
        print(f"==== {' '.join(kernel)}", flush=True)
        result = boot(kernel, Path(program), options.release, options.test, "--only-tests" if options.only_tests else "")
        if result is None:
            skipped += 1
            continue
        ran += 1
        name = "-".join(kernel)
        cells = result["cells"]
        if options.only_tests:
            result["cells"] = results.get(name, {}).get("cells", {}) | cells
        results[name] = result
        if options.results:
            (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for key, cell in cells.items():
            print(f"{column(result)}: {key}: {cell['state']}: {cell['note']}", flush=True)
            if cell["state"] == "wrong":
                wrong.append(f"{column(result)}: {key}")
        version = tuple(int(number) for number in result["kernel"].split("-")[0].split(".")[:2])
        for key in REQUIRED if version >= SUPPORTED and not options.only_tests else ():
            if result["cells"].get(key, {"state": "not run"})["state"] != "works":
                wrong.append(f"{column(result)}: {key} does not work")
    ordered = [results["-".join(kernel)] for kernel in kernels() if "-".join(kernel) in results]
    if ordered and options.table:
        options.table.write_text(table(ordered))
    for cell in wrong:
        print(f"wrong: {cell}")
    failed = len({cell.split(":")[0] for cell in wrong})
    print(f"{ran - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
