"""End-to-end checks of the feed: sources and watchers run as processes, one of them in its own network namespace.

Usage: python3 feed/check.py TOKENGAP [CHECK]... Needs root, iproute2, tmux and the packages in feed/requirements.txt. Removes everything
it creates.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENGAP = str(pathlib.Path(sys.argv[1]).resolve())
NETNS, HERE, THERE = f"tgfeed{os.getpid() % 10000}", "10.213.77.1", "10.213.77.2"
# Report fields that differ between processes: their own resource use and the wall-clock time of the report.
OWN = ("self", "window_wall_ns")
STARTED = []


def run(*args, **more):
    return subprocess.run(args, check=True, capture_output=True, text=True, **more).stdout


def start(*args, inside=False, **more):
    inside = ["ip", "netns", "exec", NETNS] if inside else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*inside, *args], **pipes, **more)
    STARTED.append(process)
    return process


def report(process, patience=60, exits=0):
    out, err = process.communicate(timeout=patience)
    assert process.returncode == exits, err
    return json.loads(out)


def rss(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def numbers(of):
    """The report without the fields in `OWN`."""
    return {name: value for name, value in of.items() if name not in OWN}


def differences(a, b, at=""):
    if isinstance(a, dict) and isinstance(b, dict):
        return [d for key in sorted({*a, *b}) for d in differences(a.get(key), b.get(key), f"{at}.{key}")]
    return [] if a == b else [f"{at}: {a!r:.200} and {b!r:.200}"]


@contextlib.contextmanager
def network():
    run("ip", "netns", "add", NETNS)
    try:
        one, other = f"{NETNS}a", f"{NETNS}b"
        run("ip", "link", "add", one, "type", "veth", "peer", "name", other, "netns", NETNS)
        run("ip", "addr", "add", f"{HERE}/24", "dev", one)
        run("ip", "link", "set", one, "up")
        run("ip", "-n", NETNS, "addr", "add", f"{THERE}/24", "dev", other)
        run("ip", "-n", NETNS, "link", "set", other, "up")
        yield
    finally:
        for process in STARTED:
            process.kill()
            process.wait()
        run("ip", "netns", "del", NETNS)


def demo(port, key, seconds, *more, scenario="race"):
    where = ["--publish", f"tcp://{HERE}:{port}", "--allow-remote", "--feed-key", key, "--feed-name", "pod-7"]
    return start(TOKENGAP, "demo", "--scenario", scenario, "--json", "--duration", f"{seconds}s", *where, *more)


def watch(port, key, *more, inside=True):
    return start(TOKENGAP, "watch", f"tcp://{HERE}:{port}", "--feed-key", key, "--json", *more, inside=inside)


def early_and_late(key):
    """Two encrypted watchers in another namespace, early and late: both end with the source's report."""
    source = demo(5601, key, 12)
    early = watch(5601, key)
    time.sleep(6)
    late = watch(5601, key)
    truth = report(source)
    for name, process in (("early", early), ("late", late)):
        wrong = differences(numbers(truth), numbers(report(process)))
        assert not wrong, (name, wrong)
    assert truth["chunks"]["dropped_confirmed"] > 0
    print(f"early and late reports are equal: {truth['tokens']['sent']} tokens sent, {truth['chunks']['tokens_lost']} lost")


def slow_watcher(key):
    """A watcher with a 64 KiB queue is stopped for seven seconds: the source is unaffected and the watcher reports no wrong numbers."""
    before = report(demo(5602, key, 14))
    source = demo(5602, key, 14, "--feed-queue", "64KiB")
    watcher = watch(5602, key)
    time.sleep(3)
    os.kill(watcher.pid, signal.SIGSTOP)
    time.sleep(1)
    before_bytes = rss(source.pid)
    time.sleep(6)
    grown = rss(source.pid) - before_bytes
    os.kill(watcher.pid, signal.SIGCONT)
    truth, seen = report(source), report(watcher)
    ratio = truth["tokens"]["sent"] / before["tokens"]["sent"]
    missed_lines = [line for line in seen["self"]["degraded"] if "were missed" in line]
    print(f"stopped watcher: source's tokens x{ratio:.3f}, its memory {grown / 2**20:+.1f} MiB; watcher's log: {missed_lines}")
    assert 0.9 < ratio < 1.1 and grown < 24 << 20
    for what in ("tokens", "chunks", "requests"):
        assert truth[what] == seen[what], (what, truth[what], seen[what])


def refused(key):
    """A watcher without the key, or with another key, receives nothing and logs the reason."""
    other = pathlib.Path(key).with_name("other.key")
    other.write_text("11" * 32)
    other.chmod(0o600)
    source = demo(5603, key, 6)
    time.sleep(1)
    keys = {"another": ["--feed-key", str(other)], "none": []}
    for name, args in keys.items():
        watcher = start(TOKENGAP, "watch", f"tcp://{HERE}:5603", "--json", "--duration", "2s", *args, inside=True)
        seen = report(watcher, exits=2)
        degraded = seen["self"]["degraded"]
        assert seen["tokens"]["sent"] == 0 and any("key" in line for line in degraded), (name, degraded)
    report(source)
    print("refused: wrong key, no key")


def several(key):
    """Watches three addresses: a pod that stays up, one that exits and is restarted, and one that does not exist."""
    first, second = demo(5604, key, 14), demo(5605, key, 3, scenario="backlog")
    places = [f"tcp://{HERE}:{port}" for port in (5604, 5605, 5606)]
    watcher = start(TOKENGAP, "watch", *places, "--feed-key", key, "--json", "--duration", "12s", inside=True)
    report(second)
    time.sleep(1)
    again = demo(5605, key, 20, scenario="backlog")
    seen = report(watcher)
    assert seen["schema"] == "tokengap.watch/1"
    states = [pod["state"] for pod in seen["pods"]]
    assert states == ["live", "live", "away"], states
    assert all(pod["report"]["tokens"]["sent"] > 0 for pod in seen["pods"][:2])
    away = seen["pods"][2]["report"]["self"]["degraded"]
    assert "has been unreachable for" in away[0], away
    again.send_signal(signal.SIGINT)
    report(first), report(again)
    print(f"several: {states}")


class Screen:
    """A program in tmux."""

    def __init__(self, command):
        self.folder = tempfile.TemporaryDirectory()
        self.tmux("new-session", "-d", "-x", "120", "-y", "40", f"export LC_ALL=C.UTF-8; {command}")

    def tmux(self, *args):
        return run("tmux", "-S", f"{self.folder.name}/tmux", "-f", "/dev/null", *args)

    def shows(self):
        return self.tmux("capture-pane", "-p")

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def close(self):
        self.tmux("kill-server")
        self.folder.cleanup()


def masked(screen):
    """The screen without its first line (clock and name) and its last two (drawing cost)."""
    lines = screen.rstrip("\n").split("\n")
    return [re.sub(r"\d+:\d\d", "TIME", line) for line in lines[1:-2]]


def same_screen(key, folder):
    """A tap of real messages and a late watcher in another namespace show the same screen."""
    import zmq

    ends = [f"ipc://{folder}/{name}.sock" for name in ("tap", "tokenizer")]
    pull = zmq.Context.instance().socket(zmq.PULL)
    pull.bind(ends[1])
    flags = f"--publish tcp://{HERE}:5607 --allow-remote --feed-key {key} --feed-name pod-7"
    source = Screen(f"{TOKENGAP} tap --listen {ends[0]} --upstream {ends[1]} --hop 'scheduler->tokenizer' {flags}")
    watcher = None
    try:
        time.sleep(1)
        push = zmq.Context.instance().socket(zmq.PUSH)
        push.connect(ends[0])
        frames = sorted((ROOT / "zmq-tap/fixtures/messages/0.5.9").glob("*.pkl"))
        for turn in range(300):
            push.send(frames[turn % len(frames)].read_bytes())
            pull.recv()
            time.sleep(0.01)
            if turn == 150:
                watcher = Screen(f"ip netns exec {NETNS} {TOKENGAP} watch tcp://{HERE}:5607 --feed-key {key}")
        # Rates cover the last ten seconds: wait until the window is full.
        time.sleep(12)
        for tab in "1245":
            source.press(tab), watcher.press(tab)
            # Ages grow every second, and the screens are not drawn at the same instant: compare several times.
            for _ in range(10):
                time.sleep(0.7)
                source_lines, watcher_lines = masked(source.shows()), masked(watcher.shows())
                wrong = [pair for pair in zip(source_lines, watcher_lines) if pair[0] != pair[1]]
                if not wrong:
                    break
            assert len(source_lines) > 30 and len(source_lines) == len(watcher_lines) and not wrong, (tab, wrong)
        watcher.press("7")
        time.sleep(1)
        assert "pod-7" in watcher.shows() and "all 1" in watcher.shows(), watcher.shows()
        print("screens equal: " + next(line.strip() for line in source_lines if line.strip()))
    finally:
        for screen in (source, watcher):
            if screen:
                screen.close()


def readers(key):
    """pyzmq and msgpack read an unencrypted feed on loopback."""
    del key
    source = start(TOKENGAP, "demo", "--json", "--duration", "12s", "--publish", "tcp://127.0.0.1:5608")
    time.sleep(1)
    reader = [sys.executable, str(ROOT / "feed/reader.py"), "tcp://127.0.0.1:5608", "4"]
    print("reader: " + run(*reader, timeout=30).strip())
    source.send_signal(signal.SIGINT)
    report(source)


def main():
    # On SIGTERM, exit through the context managers so that the namespace and the processes are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder, network():
        key = f"{folder}/feed.key"
        pathlib.Path(key).write_text(os.urandom(32).hex())
        os.chmod(key, 0o600)
        only = sys.argv[2:]
        for check in (readers, refused, several, early_and_late, slow_watcher, same_screen):
            if only and check.__name__ not in only:
                continue
            begun = time.monotonic()
            check(key, folder) if check is same_screen else check(key)
            print(f"  {check.__name__}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
