"""Runs the fuzz targets, starting from real messages, JOBS at a time. A finding fails the run and is kept below target/fuzz with the
command line that reproduces it. `cargo xtask fuzz` calls this script.

usage: run.py build
       run.py SECONDS JOBS SEED [TARGET...]

Needs only the stable compiler: cargo-fuzz is installed below `.tools` and runs with RUSTC_BOOTSTRAP.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import seeds

ROOT = Path(__file__).parent.parent
HERE = ROOT / "target/fuzz"
CARGO_FUZZ = "0.13.2"
TRIPLE = "x86_64-unknown-linux-gnu"
# Each target's description, and its maximum input length in bytes.
TARGETS = {
    "wire": ("messages: pickle VM, msgpack, schemas; fresh decoder against used one", 16 << 10),
    "msgpack": ("msgpack messages against rmpv", 16 << 10),
    "vllm": ("vLLM's messages: fresh decoder against used one, and against rmpv", 16 << 10),
    "dispatch": ("messages to the scheduler: whole against both ends", 32 << 10),
    "zmtp": ("ZMTP from the greeting on: whole against pieces", 8 << 10),
    "zmtp_midstream": ("ZMTP from mid-stream: whole against pieces", 32 << 10),
    "egress": ("HTTP, SSE and JSON responses: whole against pieces, with gaps", 16 << 10),
    "response_plane": ("Dynamo's response plane: whole against pieces", 16 << 10),
    "recording": ("any file as a recording", 64 << 10),
    "block": ("any columns of a block, with a valid header", 8 << 10),
    "recording_roundtrip": ("any events: written against read, live report against replayed one", 4 << 10),
    "import": ("any text as logs", 16 << 10),
    "probe_record": ("records of the ring buffer, and their matcher", 4 << 10),
    "attach": ("records of the ring buffer, from their interpreter to the ledger, whose sums balance", 16 << 10),
    "probe_points": ("any file as a library", 64 << 10),
    "proc": ("the kernel's process tables", 4 << 10),
    "requests": ("requests to the processes with rights, and replies: parsed, encoded and parsed again", 5 << 10),
    "relay": ("the relay between two sockets: output against input, reported messages against a scanner", 16 << 10),
    "recording_stream": ("the response of /recording: whole against pieces", 64 << 10),
    "query": ("filters of the request table, against their single terms", 256),
    "config": ("any text as a configuration file; printed and parsed again", 1 << 10),
}
# Patterns for the last line of a run, `#12345 DONE cov: 812 ft: 2210 corp: 310/45Kb ..`, and its final statistics.
NUMBERS = [r"stat::number_of_executed_units: *(\d+)", r"\bcov: (\d+)", r"\bft: (\d+)", r"\bcorp: (\d+)", r"stat::peak_rss_mb: *(\d+)"]


def build():
    tools = ROOT / ".tools"
    env = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    if not (tools / "bin/cargo-fuzz").exists():
        print(f"installing cargo-fuzz {CARGO_FUZZ} into {tools} (less than a minute, once)", flush=True)
        # A debug build is enough, because cargo-fuzz only starts cargo.
        install = ["cargo", "install", "--quiet", "--debug", "--locked", "--root", tools, "--version", CARGO_FUZZ, "cargo-fuzz"]
        own = {"CARGO_TARGET_DIR": str(ROOT / "target/tools"), "CARGO_PROFILE_DEV_DEBUG": "0"}
        subprocess.run(install, env=env | own, check=True)
    command = [tools / "bin/cargo-fuzz", "build", "--codegen-units=16", "--target", TRIPLE, "--target-dir", HERE]
    subprocess.run(command, cwd=ROOT, env=env | {"RUSTC_BOOTSTRAP": "1"}, check=True)


def folder(kind, target):
    path = HERE / kind / target
    path.mkdir(parents=True, exist_ok=True)
    return path


def fuzz(target, seconds, seed):
    """Runs one target; returns its statistics, or its finding."""
    # The input only seeds a random generator, so that inputs similar to an interesting one are not interesting, and entropic scheduling
    # would take more than half of the time. proptest's strategies are never freed, which needs a higher memory limit.
    random = target == "recording_roundtrip"
    program = HERE / TRIPLE / "release" / target
    # Limit allocations and run time per input, to catch hostile lengths and slow inputs. Leak detection runs every input that retains
    # memory twice.
    options = ["-malloc_limit_mb=256", "-timeout=30", "-print_final_stats=1", "-detect_leaks=0", f"-max_total_time={seconds}",
               f"-seed={seed}", f"-max_len={TARGETS[target][1]}", f"-rss_limit_mb={4096 if random else 1024}",
               f"-entropic={int(not random)}", f"-artifact_prefix={folder('findings', target)}/"]  # fmt: skip
    command = [program, folder("corpus", target), folder("seeds", target), *options]
    done = subprocess.run(command, env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}, capture_output=True)
    stderr = done.stderr.decode(errors="replace")
    if done.returncode:
        tail = "\n".join(stderr.splitlines()[-40:])
        return None, f"{target}: {tail}\nto reproduce, run {program} FILE with the file named above"
    found = [re.findall(number, stderr) for number in NUMBERS]
    if not all(found):
        return None, f"{target}: {program} printed no statistics"
    return f"| `{target}` | {TARGETS[target][0]} | {' | '.join(numbers[-1] for numbers in found)} MiB |", None


def compare_with_cpython():
    """CPython must read the same requests from every fuzzed input that the decoder accepts."""
    subprocess.run(["cargo", "build", "--quiet", "--bin", "tokengap"], cwd=ROOT, check=True)
    program = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/tokengap"
    script = [sys.executable, ROOT / "fuzz/agree.py", program, folder("corpus", "wire"), folder("seeds", "wire")]
    done = subprocess.run(script, capture_output=True, text=True)
    return done.stdout.rstrip(), done.returncode and f"decoder and CPython disagree:\n{done.stdout}{done.stderr}"


def main(seconds, jobs, seed, *wanted):
    if unknown := set(wanted) - set(TARGETS):
        sys.exit(f"unknown target {', '.join(unknown)}; targets are {', '.join(TARGETS)}")
    wanted = wanted or TARGETS
    build()
    seeds.write(HERE / "seeds")
    with ThreadPoolExecutor(max(int(jobs), 1)) as pool:
        results = list(pool.map(lambda target: fuzz(target, seconds, seed), wanted))
    if "wire" in wanted:
        results.append(compare_with_cpython())
    print("| target | what | executions | edges | features | corpus | largest memory |\n|---|---|---|---|---|---|---|")
    print("\n".join(line for line, _ in results if line))
    sys.exit("\n".join(wrong for _, wrong in results if wrong) or 0)


if __name__ == "__main__":
    build() if sys.argv[1:] == ["build"] else main(*sys.argv[1:])
