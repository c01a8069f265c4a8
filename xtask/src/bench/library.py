"""Criterion benchmarks of the libraries: decoding, the ledger, recordings. Ratios are relative to the peers of the same run."""

import json
import os
import shutil
import subprocess

from common import ROOT, TARGET, Skipped, cargo, python, result

HOME = TARGET / "criterion"
QUICK = ["--warm-up-time", "0.1", "--measurement-time", "0.3", "--sample-size", "10", "--nresamples", "1000"]


def criterion(quick, package, bench, filters, **env):
    """Runs a bench target; returns its output and the nanoseconds of each benchmark by name."""
    shutil.rmtree(HOME, ignore_errors=True)
    words = ["cargo", "bench", "--quiet", "--package", package, "--bench", bench, "--", *(QUICK if quick else []), *filters]
    run = subprocess.run(words, cwd=ROOT, env={**os.environ, "CRITERION_HOME": str(HOME), **env}, stdout=subprocess.PIPE, text=True)
    print(run.stdout, end="")
    run.check_returncode()
    times = {}
    for file in HOME.glob("**/new/benchmark.json"):
        described = json.loads(file.read_text())
        ns = json.loads((file.parent / "estimates.json").read_text())["median"]["point_estimate"]
        of = (described["throughput"] or {}).get("Elements", 1)
        times[described["full_id"]] = (ns, of)
    return run.stdout, times


def ratios(times, group, ours):
    """Prints the benchmarks of a group relative to one of them."""
    for name, (ns, _) in sorted(times.items(), key=lambda item: item[1]):
        if name.startswith(group):
            print(f"{name:50} {ns / 1e3:12.2f} us  {ns / times[ours][0]:8.2f} of {ours}")


def decode(quick):
    env = {}
    try:
        env["TOKENGAP_BENCH_PYTHON"] = str(python("msgspec"))
    except Skipped as why:
        print(f"SKIPPED: msgspec: {why}")
    _, times = criterion(quick, "engines", "decode", [], **env)
    over = {}
    for release, name in [("0.4.4", "pickle of 0.4.4"), ("0.5.9", "pickle of 0.5.9"), ("0.5.23", "pickle of 0.5.23"), ("msgpack", "msgpack of 0.5.23")]:
        group = f"decode/{name}"
        ratios(times, group, f"{group}/tokengap")
        us = {key.removeprefix(f"{group}/"): ns / 1e3 for key, (ns, _) in times.items() if key.startswith(group)}
        ours = us.pop("tokengap")
        result(f"decode.{release}", ours, **us)
        if "Python" in us:
            over[release] = us["Python"] / ours
    pickles = [ratio for release, ratio in over.items() if release != "msgpack"]
    if pickles:
        result("decode.pickle", min(pickles))
    if "msgpack" in over:
        result("decode.msgspec", over["msgpack"])
    for release, name in [("0.5.9", "pickle of 0.5.9"), ("0.5.23", "pickle of 0.5.23"), ("msgpack", "msgpack of 0.5.23"), ("vllm", "msgpack of vLLM 0.33.0")]:
        group = f"request/{name}"
        ratios(times, group, f"{group}/tokengap")
        us = {key.removeprefix(f"{group}/"): ns / 1e3 for key, (ns, _) in times.items() if key.startswith(group)}
        result(f"request.{release}", us.pop("tokengap"), **us)
    print("nanoseconds per request, by requests in the frame")
    grown = {of: ns / of for name, (ns, of) in times.items() if name.startswith("decode/requests")}
    for requests, ns in sorted(grown.items()):
        print(f"{requests:12} {ns:10.1f}")


def ledger(quick):
    _, times = criterion(quick, "recording", "time", ["^ledger/"])
    each = {name.removeprefix("ledger/"): ns / of for name, (ns, of) in times.items()}
    print(f"{'nanoseconds per chunk':32} {'':10} {'ratio':>8}")
    for name, ns in sorted(each.items()):
        print(f"{name:32} {ns:10.1f} {ns / each['hash map of counters']:8.2f}")
    ours, least = each["sends and receives"], each["hash map of counters"]
    result("ledger.rate", 1e3 / ours, a_hash_map_of_counters=1e3 / least)
    result("ledger.share", ours * 132_000 / 1e7, a_hash_map_of_counters=least * 132_000 / 1e7)


def memory(quick):
    if quick:
        return
    run = subprocess.run(["cargo", "bench", "--quiet", "--package", "recording", "--bench", "memory"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(run.stdout, end="")
    mib = [float(line.split()[2]) for line in run.stdout.splitlines()[1:]]
    result("ledger.memory", max(mib))
    result("ledger.growth", mib[-1] / mib[0])


def record(quick):
    # Writing an hour's recording takes half a minute.
    said, times = criterion(quick, "recording", "time", ["^record/(write|read)" if quick else "^record/"])
    peer = "zstd of the raw frames"
    sizes = dict(line.removeprefix("size: ").rsplit(": ", 1) for line in said.splitlines() if line.startswith("size: "))
    size = {name: float(words.split()[0]) for name, words in sizes.items()}
    result("record.size", size["recording"], zstd_of_the_raw_frames=size[peer])
    for way in ("write", "read"):
        rate = lambda name: 1e3 * times[name][1] / times[name][0]
        result(f"record.{way}", rate(f"record/{way}"), zstd_of_the_raw_frames=rate(f"record/{way}/{peer}"))
    if not quick:
        result("record.open", times["record/open and read the middle of an hour"][0] / 1e6)
