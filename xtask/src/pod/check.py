"""The release binary alone in a root folder, and in containers next to a running engine at every privilege level of a pod.

usage: check.py PROGRAM RELEASE VERSION     as root, alone in a PID namespace
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cluster import Cluster
from container import Image
from levels import ISOLATED, EVERYTHING, FEATURES, LEVELS, NOTHING

from testbed.served import ROOT, Served, shared_folder

ATTACH = "attach --headless --json --slowest 0 --duration 2500ms --python-stacks 50".split()
# Default capabilities of the engine's own container.
USUAL = (
    "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,"
    "+net_bind_service,+sys_chroot,+kill,+audit_write"
)
SEES_ONLY_ITSELF = "only processes of this container are visible"
# Messages of attach for missing features whose numbers come from a fallback.
WITHOUT_STATES = "consumer thread states are only sampled every 100 ms"
WITHOUT_DELIVERIES = "deliveries to clients are not observed: no drop can be confirmed"


def expect(holds, message):
    if not holds:
        sys.exit(message)


def engine(folder, name, uid):
    """An engine run by this user, with a container's default capabilities."""
    own = Path(folder) / name
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    wrapper = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps", "-all", "--bounding-set", USUAL]
    return Served(RELEASE, own, wrapper)


class Fresh:
    """Runs the program in a root folder that contains only `/proc`."""

    def __init__(self, folder):
        self.root = Path(folder) / "fresh"
        (self.root / "proc").mkdir(parents=True)
        shutil.copy(PROGRAM, self.root / "tokengap")

    def run(self, *args):
        # The mount disappears with the shell's mount namespace.
        enter = 'mount --bind /proc "$0/proc" && exec chroot "$0" /tokengap "$@"'
        done = subprocess.run(["unshare", "--mount", "sh", "-c", enter, self.root, *args], capture_output=True, text=True)
        expect(done.returncode == 0, f"in a root with only /proc, tokengap {args} exited with {done.returncode}: {done.stderr}")
        return done.stdout

    def without_engine(self):
        """Checks the commands that need no engine."""
        version = self.run("--version").strip()
        expect(version == f"tokengap {VERSION}", f"the version is {version}")
        live = json.loads(self.run("demo", "--headless", "--json", "--duration", "3s", "--record", "/run.tgap"))
        saved = json.loads(self.run("report", "/run.tgap", "--format", "json"))
        for part, name in [("requests", "seen"), ("tokens", "sent"), ("tokens", "delivered"), ("chunks", "tokens_lost")]:
            live_value, recorded = live[part][name], saved[part][name]
            expect(live_value > 0 and live_value == recorded, f"{part} {name}: {live_value} live, {recorded} in the report of its recording")
        shutil.copy(ROOT / "zmq-tap/fixtures/messages/0.5.9/str_delta_3rid.pkl", self.root / "message.pkl")
        decoded = json.loads(self.run("decode", "--json", "/message.pkl"))
        expect(len(decoded["chunks"]) == 3, f"decoded: {decoded}")
        print("a root with only /proc: version, demo, report, decode")

    def attached(self):
        found = works(json.loads(self.run(*ATTACH)))
        print(f"a root with only /proc: attach, as root: {found}")
        # /proc is enough: sockets of other processes are found there, and /sys is not needed.
        expect(found == EVERYTHING, f"attach in a root with only /proc: {found}")


def works(report):
    """Letters of the features that worked, as proved by the report's numbers.

    >>> works(None)
    '-------'
    >>> works({"hops": [{"frames_received": 3, "processing_ns": {"p50": 1}, "kernel_bytes_max": None}],
    ...        "cpu": [{"away_from_poll": None}], "answers": None, "stacks": None, "self": {"degraded": [WITHOUT_STATES]}})
    'fh-----'
    """
    if report is None:
        return NOTHING
    hops, threads, stacks = (report.get(name) or [] for name in ("hops", "cpu", "stacks"))
    degraded = " ".join(report["self"]["degraded"])

    def some(rows, name):
        return any(row.get(name) is not None for row in rows)

    proven = {
        "f": any(hop["frames_received"] for hop in hops),
        "h": some(hops, "processing_ns"),
        # The fallback to /proc fills in the same numbers.
        "s": threads and WITHOUT_STATES not in degraded,
        "w": some(threads, "away_from_poll"),
        "q": some(hops, "kernel_bytes_max"),
        "d": ((report.get("answers") or {}).get("seen") is not None) and WITHOUT_DELIVERIES not in degraded,
        "p": any(process["stacks"] for process in stacks),
    }
    return "".join(letter if proven[letter] else "-" for letter in FEATURES)


def compare_diagnosis(diagnosis, found, attach):
    """Doctor's diagnosis must match attach: the same features work, and attach reports each reason that has a fix in the same words.

    >>> rows = [{"name": "frames", "state": "works", "reasons": []},
    ...         {"name": "processed", "state": "degraded", "reasons": [{"why": "a", "fix": "b"}]},
    ...         {"name": "tap", "state": "missing", "reasons": [{"why": "c", "fix": "d"}]}]
    >>> compare_diagnosis({"features": rows}, "f------", "a; b")
    []
    >>> len(compare_diagnosis({"features": rows}, "fh-----", "a"))
    2
    """
    rows = {row["name"]: row for row in diagnosis["features"]}
    state = "".join(letter if rows.get(name, {}).get("state") == "works" else "-" for letter, name in FEATURES.items())
    wrong = [] if state == found else [f"doctor says {state} works, but attach has {found}"]
    for name in FEATURES.values():
        for reason in rows.get(name, {}).get("reasons", []):
            why, fix = reason.get("why"), reason.get("fix")
            if why and fix and not (why in attach and fix in attach):
                wrong.append(f"doctor says {why!r} and {fix!r}, attach said {attach}")
    return wrong


def compare_refusal(diagnosis, said):
    """An attach that observes no frames ends with a capability that doctor asks for to observe them, or with the same reason.

    >>> frames = {"name": "frames", "state": "missing", "reasons": [{"why": "no uprobes", "fix": "setcap cap_bpf+ep tokengap"}]}
    >>> compare_refusal({"features": [frames]}, "b; setcap cap_perfmon,cap_bpf+ep tokengap")
    []
    >>> len(compare_refusal({"features": [frames]}, "b; setcap cap_perfmon+ep tokengap"))
    1
    """
    frames = next(row for row in diagnosis["features"] if row["name"] == "frames")
    wanted = {cap for reason in frames["reasons"] for cap in re.findall(r"cap_\w+", reason["fix"] or "")}
    named = wanted & set(re.findall(r"cap_\w+", said)) or any(reason["why"] in said for reason in frames["reasons"])
    return [] if named else [f"doctor says {frames['reasons']}, attach said {said}"]


class Table:
    """The measured rows of the table in docs/install.md."""

    def __init__(self, image):
        self.image, self.rows, self.wrong = image, [], []
        print(f"| container | {' | '.join(FEATURES.values())} |\n|{'---|' * (len(FEATURES) + 1)}")

    def row(self, level):
        name = f"level{len(self.rows)}"
        attach = self.image.run(level, name, *ATTACH)
        report = json.loads(attach.stdout) if attach.returncode == 0 else None
        found = works(report)
        self.rows.append(f"| {level.name} | {' | '.join('-' if c == '-' else 'yes' for c in found)} |")
        print(self.rows[-1], flush=True)
        degraded = " ".join(report["self"]["degraded"]) if report else attach.stderr
        doctor = self.image.run(level, f"{name}-doctor", "doctor", "--try", "--json")
        try:
            diagnosis = json.loads(doctor.stdout)
            wrong = compare_diagnosis(diagnosis, found, degraded) if report else compare_refusal(diagnosis, degraded)
        except ValueError:
            wrong = [f"doctor printed no JSON: {doctor.stdout}{doctor.stderr}"]
        if found != level.works:
            wrong.append(f"{found} works, expected {level.works}; degraded: {degraded}")
        self.wrong += [f"{level.name}: {what}" for what in wrong]

    def recorded(self):
        """A container with a read-only root writes its recording into another process's root."""
        level = next(level for level in LEVELS if level.works == EVERYTHING)
        kept = self.image.folder / "run.tgap"
        done = self.image.run(level, "recorded", *ATTACH, "--record", f"/proc/1/root{kept}")
        expect(done.returncode == 0 and kept.is_file(), f"no recording at /proc/1/root{kept}: {done.stderr}")
        print(f"{level.name}: recorded into /proc/1/root{kept}")

    def as_shipped(self):
        """The configuration of deploy/kubernetes runs as it is, except for the places of its recordings and its token."""
        level = next(level for level in LEVELS if level.works == EVERYTHING)
        config, ring = ROOT / "deploy/kubernetes/config/tokengap.toml", self.image.folder / "ring.tgap"
        # The manifests mount the token and give the address of the pod.
        token = self.image.folder / "token"
        token.touch(mode=0o600)
        token.write_text("0123456789abcdef0123456789abcdef\n")
        metrics = ["--metrics", "127.0.0.1:0", "--token-file", f"/proc/1/root{token}"]
        flags = [*metrics, "--hindsight-file", f"/proc/1/root{ring}", "--json", "--duration", "2500ms"]
        done = self.image.run(level, "shipped", "attach", "--config", f"/proc/1/root{config}", *flags)
        expect(done.returncode == 0 and ring.is_file(), f"with {config}, attach said {done.stderr}")
        found = works(json.loads(done.stdout))
        expect(found == EVERYTHING.replace("p", "-"), f"with {config}, {found} works")
        print(f"{level.name}: runs with deploy/kubernetes/config/tokengap.toml")

    def plugged_in(self):
        """`kubectl tokengap` runs attach beside the engine with the privileges of each level."""
        if not shutil.which("kubectl"):
            print("SKIPPED: kubectl tokengap: no kubectl here")
            return
        cluster = Cluster(self.image, self.image.folder)
        for level in ("probes", "full", "old"):
            printed = cluster.plugin("--level", level, "--", *ATTACH)
            # kubectl prints remarks before it.
            found = works(json.loads(printed[printed.index("{") :]))
            expect(found == EVERYTHING, f"kubectl tokengap --level {level}: {found}")
        printed = cluster.plugin("--level", "none", "--", "--version")
        expect(printed.endswith(f"\ntokengap {VERSION}\n"), f"kubectl tokengap --level none: {printed}")
        # An admission policy refuses more.
        expect(not cluster.added[0]["securityContext"]["capabilities"].get("add"), f"level none adds capabilities: {cluster.added}")
        print("kubectl tokengap: every level")

    def isolated(self):
        """In a container that does not see the engine's processes, attach reports that and names the fix."""
        attach = self.image.run(ISOLATED, "isolated", *ATTACH)
        expect(attach.returncode != 0 and SEES_ONLY_ITSELF in attach.stderr, f"{ISOLATED.name}: attach said {attach.stderr}")
        doctor = json.loads(self.image.run(ISOLATED, "apart-doctor", "doctor", "--json").stdout)
        engine = doctor["features"][0]
        reasons = engine["reasons"]
        reported = engine["state"] == "missing" and SEES_ONLY_ITSELF in str(reasons) and isinstance(reasons[0]["fix"], str)
        expect(reported, f"{ISOLATED.name}: doctor said {engine}")
        print(f"{ISOLATED.name}: {SEES_ONLY_ITSELF}; {reasons[0]['fix']}")

    def end(self):
        expect(not self.wrong, "\n".join(self.wrong))
        document = (ROOT / "docs/install.md").read_text()
        untold = [row for row in self.rows if row not in document]
        expect(not untold, "docs/install.md lacks these measured rows:\n" + "\n".join(untold))
        print(f"{len(self.rows)} levels match docs/install.md")
        print(subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])


def main():
    with shared_folder() as folder:
        fresh = Fresh(folder)
        fresh.without_engine()
        table = Table(Image(PROGRAM, folder))
        with engine(folder, "root", "0"):
            fresh.attached()
            for level in LEVELS:
                if not level.other_user:
                    table.row(level)
            table.recorded()
            table.as_shipped()
            table.plugged_in()
            table.isolated()
        with engine(folder, "user", "1000"):
            for level in LEVELS:
                if level.other_user:
                    table.row(level)
        table.end()


if __name__ == "__main__":
    PROGRAM, RELEASE, VERSION = sys.argv[1:]
    main()
