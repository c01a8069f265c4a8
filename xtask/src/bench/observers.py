"""Cost of an observer for the observed process: tokengap's probe, empty programs at its probe points, bpftrace. Each turn measures
without the observer, with it, and without it again."""

import shutil
import signal
import subprocess
from pathlib import Path

from common import HERE, PATIENCE, ROOT, Process, Skipped, example, median, python, result, root

# Time, thread, socket and length of each message sent and received.
MESSAGES = """
uprobe:LIBZMQ:zmq_msg_send { $m = arg0;
  if (*(uint8 *)($m + 42) == 101) { $n = (uint64)*(uint8 *)($m + 41); } else { $n = *(uint64 *)(*(uint64 *)($m + 8) + 8); }
  printf("s %llu %d %llx %llu\\n", nsecs, tid, arg1, $n); }
uprobe:LIBZMQ:zmq_msg_recv { @socket[tid] = arg1; }
uretprobe:LIBZMQ:zmq_msg_recv /(int32)retval >= 0/ { printf("r %llu %d %llx %d\\n", nsecs, tid, @socket[tid], (int32)retval); }
BEGIN { printf("attached\\n"); }
"""
WRITES = """
tracepoint:raw_syscalls:sys_exit /pid == PID && args->id == 1/ { @[args->ret] = count(); }
BEGIN { printf("attached\\n"); }
"""
# Name, measured operation, observer.
PROBE = [
    ("traps only, at tokengap's probe points", ("pair", 100), "traps"),
    ("traps only, at function entries and a return", ("pair", 100), "traps-at-calls"),
    ("traps only, all probes attached", ("pair", 100), "traps-everywhere"),
    ("lengths", ("pair", 100), "lengths"),
    ("lengths, all probes attached", ("pair", 100), "lengths-everything"),
    ("bpftrace, lengths", ("pair", 100), MESSAGES),
    ("16 KiB copied at the sender, 4 at the receiver", ("pair", 16 << 10), "content"),
    ("the same, all probes attached", ("pair", 16 << 10), "content-everything"),
    ("16 KiB copied at both ends", ("pair", 16 << 10), "content-both-ways"),
]
# Name, the peer's words, operations of a turn. With one message at once, each has its own read of the socket.
HOPS = [
    ("1000 bytes, blocking, 1 at once", ("hop", 1000, "blocking", 1), 10_000),
    ("1000 bytes, blocking, 50 at once", ("hop", 1000, "blocking", 50), 10_000),
    ("1000 bytes, asyncio, 1 at once", ("hop", 1000, "asyncio", 1), 10_000),
    ("1000 bytes, asyncio, 50 at once", ("hop", 1000, "asyncio", 50), 10_000),
    ("16 KiB, asyncio, 1 at once", ("hop", 16 << 10, "asyncio", 1), 10_000),
]
TOKENIZERS = [
    (f"TokenizerManager {release}, {streams} tokens a frame", ("tokenizer", release, streams), operations)
    for streams, operations in [(1, 10_000), (50, 100_000)]
    for release in ["0.5.9", "0.5.23"]
]
# The first one attaches to no process, so that the others are compared with a turn after the same wait.
WAYS = ["nothing", "content", "content-no-polls", "content-everything", "socket-reads"]
THREADS = ["sender", "its I/O threads", "receiver", "its I/O threads"]
EGRESS = [
    ("observed write: hook where sockets send", ("write", 600), "writes"),
    ("observed write: hook where any call returns", ("write", 600), "writes-any-call"),
    ("observed write: bpftrace at sys_exit", ("write", 600), WRITES),
    ("observed write of TLS: encrypted bytes only", ("tls", 600), "writes"),
    ("observed write of TLS: plain bytes (--tls)", ("tls", 600), "writes-tls"),
    ("call of another process: hook where sockets send", ("call",), "writes"),
    ("call of another process: hook where any call returns", ("call",), "writes-any-call"),
    ("call of another process: bpftrace at sys_exit", ("call",), WRITES),
]


def observer(observe, way, pid):
    """Starts an observer of a process, and waits until it has attached; `None` if bpftrace cannot attach."""
    if way not in (MESSAGES, WRITES):
        return Process(observe, way, pid).expect("attached")
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    libzmq = next((line.split()[-1] for line in maps if "/libzmq" in line), "")
    script = way.replace("LIBZMQ", libzmq).replace("PID", str(pid))
    child = Process("bpftrace", "-p", pid, "-e", script, quiet=True)
    while "attached" not in (line := child.child.stdout.readline()):
        if not line:
            return None
    # Drain its output, so that it never blocks.
    subprocess.Popen(["cat"], stdin=child.child.stdout, stdout=subprocess.DEVNULL)
    return child


def detach(child, way):
    """Stops an observer; returns the number of missed observations and of all."""
    with child:
        if way in (MESSAGES, WRITES):
            child.child.send_signal(signal.SIGINT)
            child.child.wait(PATIENCE)
            return 0, 0
        return tuple(map(int, (child.child.communicate()[0] or "0 0").split()))


def measure(rows, interpreter, observe, operations, rounds):
    """Measures the added nanoseconds of each row, and prints them."""
    print(f"{'CPU ns per operation':50}{'without':>10}{'added':>10}   (min..max)")
    medians = {}
    with Process("sleep", "3600") as another:
        for name, operation, way in rows:
            if way in (MESSAGES, WRITES) and not shutil.which("bpftrace"):
                print(f"SKIPPED: {name}: apt-get install bpftrace")
                continue
            with Process(interpreter, HERE / "peer.py", *operation) as peer:
                pid = int(peer.line())
                turn = lambda: float(peer.ask(operations))
                turn()
                without, added, missed = [], [], 0
                for _ in range(rounds):
                    before = turn()
                    child = observer(observe, way, another.pid if operation[0] == "call" else pid)
                    if child is None:
                        break
                    observed = turn()
                    missed += detach(child, way)[0]
                    without.append((before + turn()) / 2)
                    added.append(observed - without[-1])
            if not added:
                print(f"SKIPPED: {name}: bpftrace cannot attach on this machine")
                continue
            medians[name] = median(added)
            span = f"({min(added):.0f}..{max(added):.0f})"
            print(f"{name:50}{median(without):10.0f}{medians[name]:10.0f}   {span}{f'  {missed} missed' if missed else ''}", flush=True)
    return medians


def hops(rows, interpreter, observe, rounds):
    """Prints the nanoseconds that each way to observe a hop adds to each thread. Each round measures every way, in an order that rotates."""
    print(f"{'CPU ns per operation':46}{''.join(f'{thread:>26}' for thread in THREADS)}")
    for name, words, operations in rows:
        with Process(interpreter, "-B", HERE / "peer.py", *words) as peer:
            pids = peer.line().split()
            turn = lambda: [float(cost) for cost in peer.ask(operations).split()]
            turn()
            alone, added, missed = [], {way: [] for way in WAYS[1:]}, 0
            for number in range(rounds):
                costs, first = {}, number % len(WAYS)
                for way in WAYS[first:] + WAYS[:first]:
                    child = Process(observe, way, *pids).expect("attached")
                    costs[way] = turn()
                    lost, observed = detach(child, way)
                    missed += lost
                    if not observed and way != "nothing":
                        raise RuntimeError(f"{way} observed nothing")
                alone.append(costs["nothing"])
                for way in added:
                    added[way].append([cost - other for cost, other in zip(costs[way], alone[-1])])
            print(f"{name:46}{''.join(f'{median(costs):26.0f}' for costs in zip(*alone))}")
            for way, costs in added.items():
                cells = [f"{median(cost):+.0f} ({min(cost):+.0f}..{max(cost):+.0f})" for cost in zip(*costs)]
                print(f"{f'  {way}':46}{''.join(f'{cell:>26}' for cell in cells)}", flush=True)
            if missed:
                print(f"  {missed} missed")


def engine(release):
    """Python that can import the release's own code."""
    if not (ROOT / ".engine" / release).exists():
        raise Skipped(f"SGLang {release} is missing: cargo xtask engine {release}")
    return ROOT / ".venv-testbed/bin/python"


def probe(quick):
    root()
    observe, rounds = example("probe-user", "observe"), 4 if quick else 12
    hops(HOPS, python("pyzmq"), observe, rounds)
    medians = measure(PROBE, python("pyzmq"), observe, 30_000, 1 if quick else 5)
    ours, traps, bpftrace = (medians.get(name) for name in ("lengths", PROBE[0][0], "bpftrace, lengths"))
    beside = {"the_traps_alone": traps / 1e3, "bpftrace": bpftrace and bpftrace / 1e3}
    result("probe.pair", ours / 1e3, **beside)
    if bpftrace:
        result("probe.bpftrace", ours / bpftrace)
    for row in TOKENIZERS:
        hops([row], engine(row[1][1]), observe, rounds)


def egress(quick):
    root()
    measure(EGRESS, "python3", example("probe-user", "observe"), 50_000, 1 if quick else 7)
