"""The relay compared with a direct connection, `zmq_proxy`, the `zeromq` crate, socat and a plain copy loop. libzmq peers exchange real
frames."""

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from common import FIXTURE, FRAME, Process, compile_c, cpu, example, median, memory_mib, result, until

# Messages per second at which every path is idle between two messages. Many short turns, because process placement by the kernel shifts a
# turn's median by tens of microseconds.
RATE, COUNT, LATENCY_TURNS = 1_000, 400, 12
# A receiver that never reads: number of connections, and limit of sent messages.
CONNECTIONS, MAX_MESSAGES = 100, 20_000
OURS = {"decode": "tokengap, frames decoded", "count": "tokengap, frames counted"}
PEERS = {"proxy": "zmq_proxy", "crate": "zeromq crate", "socat": "socat"}
WAYS = {"direct": "direct", **OURS, **PEERS, "copy": "baseline: read, write"}


class Relay:
    """A process between a sender and a receiver, with sockets in its own folder."""

    def __init__(self, kit, way, connections, stack):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        front, back = (f"{folder}/{name}" for name in ("front", "back"))
        self.back, self.process = f"ipc://{back}", None
        self.front = self.back if way == "direct" else f"ipc://{front}"
        self.start = lambda: self.process or self.begin(kit, way, front, back, connections, stack)

    def begin(self, kit, way, front, back, connections, stack):
        if way == "direct":
            return
        if way == "socat":
            several = ",fork,backlog=128" if connections > 1 else ""
            words = ["socat", "-b", "131072", f"UNIX-LISTEN:{front}{several}", f"UNIX-CONNECT:{back}"]
            self.process = stack.enter_context(Process(*words, quiet=True))
            until(Path(front).exists, "socat")
            return
        program = kit.between if way in ("count", "decode", "crate") else kit.peer
        self.process = stack.enter_context(Process(program, way, self.front, self.back)).expect("READY")


class Kit:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.peer, self.between = compile_c("relay.c", folder), example("engines", "between")
        if not self.socat():
            print("SKIPPED: socat: apt-get install socat")

    def socat(self):
        return subprocess.run(["sh", "-c", "command -v socat"], stdout=subprocess.DEVNULL).returncode == 0

    def ways(self):
        return [way for way in WAYS if way != "socat" or self.socat()]

    def message(self, kib):
        """A real frame of about this size."""
        file = self.folder / f"{kib}.pkl"
        subprocess.run(["python3", FRAME, FIXTURE, str(kib << 10), file], check=True, stdout=subprocess.DEVNULL)
        return file


def turn(kit, way, message, count, rate=0, connections=1):
    """Messages per second, latency in microseconds (median, 99th percentile), CPU microseconds per message, and the share decoded."""
    with ExitStack() as stack:
        relay = Relay(kit, way, connections, stack)
        stamps = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stamps"
        stamps.write_bytes(bytes(8 * count))
        size = message.stat().st_size
        receiver = stack.enter_context(Process(kit.peer, "recv", relay.back, size, count, stamps)).expect("READY")
        relay.start()
        words = ["send", relay.front, message, count, rate, stamps, connections]
        sender = stack.enter_context(Process(kit.peer, *words))
        per_s, p50, p99 = map(float, receiver.line().split())
        sender.child.wait()
        turn = {"rate": per_s, "p50": p50, "p99": p99}
        if relay.process:
            pid = relay.process.pid
            if way in OURS:
                turn["observed"] = int(relay.process.line()) / count * 100
            turn["cpu"] = cpu(pid) * 1e6 / count
            # socat exits with its connection.
            if mib := memory_mib(pid):
                turn["mib"] = mib
            turn["copy"] = cpu(pid, "tokengap-relay") * 1e6 / count or turn["cpu"]
        return turn


def medians(kit, message, rounds, **traffic):
    """Medians of each path over alternating turns; the first round is a warm-up."""
    turns = {way: [] for way in kit.ways()}
    for number in range(rounds + 1):
        for way, of in turns.items():
            measured = turn(kit, way, message, **traffic)
            if number:
                of.append(measured)
    return {way: {key: median(one[key] for one in of) for key in set.intersection(*map(set, of))} for way, of in turns.items()}


def cells(row, *keys):
    return "".join(f"{row[key]:11.1f}" if key in row else f"{'-':>11}" for key in keys)


def throughput(kit, kib, rounds, volume):
    message = kit.message(kib)
    rows = medians(kit, message, rounds, count=max(2, (volume << 20) // message.stat().st_size))
    print(f"\n{f'full speed, {kib} KiB':26}{'ratio':>11}{'msg/s':>11}{'copy us':>11}{'cpu us':>11}{'peak MiB':>11}{'observed %':>11}")
    for way, row in rows.items():
        row["ratio"] = row["rate"] / rows["direct"]["rate"]
        print(f"{WAYS[way]:26}{row['ratio']:11.2f}{cells(row, 'rate', 'copy', 'cpu', 'mib', 'observed')}")
    ratio = lambda way: rows[way]["ratio"]
    result(f"relay.{kib}.rate", ratio("decode"), frames_counted=ratio("count"), read_and_write=ratio("copy"))
    result(f"relay.{kib}.peers", ratio("decode") / max(ratio(way) for way in PEERS if way in rows))
    if kib == 64:
        for way in OURS:
            over = lambda way: rows[way]["cpu"] / rows["proxy"]["cpu"]
            result(f"relay.64.{way}", over(way), read_and_write=over("copy"))


def latency(kit, kib):
    rows = medians(kit, kit.message(kib), LATENCY_TURNS, count=COUNT, rate=RATE)
    print(f"\n{f'{RATE} messages/s, {kib} KiB':26}{'p50 us':>11}{'added':>11}{'p99 us':>11}{'cpu us':>11}")
    for way, row in rows.items():
        row["beyond"] = row["p50"] - rows["direct"]["p50"]
        print(f"{WAYS[way]:26}{cells(row, 'p50', 'beyond', 'p99', 'cpu')}")
    best = min(rows[way]["beyond"] for way in PEERS if way in rows)
    result(f"relay.{kib}.latency", rows["decode"]["beyond"], read_and_write=rows["copy"]["beyond"], the_best_peer=best)


def stuck(kit):
    """Messages that each path accepts in excess of a direct connection, and its memory, while the receiver reads nothing."""
    rows, message = {}, kit.message(16)
    for way in kit.ways():
        with ExitStack() as stack:
            relay = Relay(kit, way, CONNECTIONS, stack)
            stack.enter_context(Process(kit.peer, "stuck", relay.back)).expect("READY")
            relay.start()
            press = stack.enter_context(Process(kit.peer, "press", relay.front, message, CONNECTIONS, MAX_MESSAGES))
            rows[way] = {"accepted": int(press.line())}
            if relay.process:
                rows[way]["mib"] = memory_mib(relay.process.pid)
    print(f"\n{f'never read, {CONNECTIONS} connections':26}{'accepted':>11}{'excess':>11}{'peak MiB':>11}")
    for way, row in rows.items():
        row["beyond"] = max(0, row["accepted"] - rows["direct"]["accepted"])
        print(f"{WAYS[way]:26}{cells(row, 'accepted', 'beyond', 'mib')}")
    result("relay.stuck.memory", rows["decode"]["mib"], read_and_write=rows["copy"]["mib"])
    result("relay.stuck.beyond", rows["decode"]["beyond"] / CONNECTIONS, read_and_write=rows["copy"]["beyond"] / CONNECTIONS)


def growth(kit):
    """CPU of the counting relay by frame size and by number of connections, minimum of three turns."""
    cost = lambda kib, connections: min(
        turn(kit, "count", kit.message(kib), count=max(256, connections * 16, min(32_768, (128 << 10) // kib)), connections=connections)["cpu"]
        for _ in range(3)
    )
    print(f"\n{'frames counted, KiB':>20}{'ns/KiB':>11}")
    for kib in (1, 4, 16, 64, 256, 1_024, 4_096):
        print(f"{kib:20}{cost(kib, 1) * 1e3 / kib:11.0f}")
    print(f"\n{'16 KiB, connections':>20}{'us/frame':>11}")
    for connections in (1, 4, 16, 64, 256, 1_024):
        print(f"{connections:20}{cost(16, connections):11.1f}")


def run(quick):
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(folder)
        if quick:
            return throughput(kit, 64, rounds=1, volume=128)
        for kib in (16, 64, 256):
            throughput(kit, kib, rounds=3, volume=512)
        for kib in (1, 4, 16, 64):
            latency(kit, kib)
        stuck(kit)
        growth(kit)
