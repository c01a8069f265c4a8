"""End-to-end checks of the endpoint and of `watch`: sources and clients run as processes, the clients in another network namespace.

Usage: python3 xtask/src/watch/check.py TOKENGAP [CHECK]... Needs root, iproute2 and tmux. Removes everything it creates.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TOKENGAP = str(pathlib.Path(sys.argv[1]).resolve())
NETNS, HERE, THERE = f"tgwatch{os.getpid() % 10000}", "10.213.78.1", "10.213.78.2"
# Report fields that differ between processes: their own resource use and the wall-clock time of the report.
OWN = ("self", "window_wall_ns")
STARTED = []
# Requests a path and prints the response's status, and the size or the whole of its body; reads nothing for SECONDS if they are given.
CLIENT = """
import socket, sys, time, urllib.error, urllib.request
url, token, output, seconds = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
try:
    response = urllib.request.urlopen(request, timeout=30)
    time.sleep(float(seconds))
    body = response.read()
except urllib.error.HTTPError as error:
    response, body = error, error.read()
except Exception as error:
    sys.exit(f"broken off: {error}")
print(response.status)
open(output, "wb").write(body)
"""


def run(*args, **more):
    return subprocess.run(args, check=True, capture_output=True, text=True, **more).stdout


def start(*args, inside=False, **more):
    inside = ["ip", "netns", "exec", NETNS] if inside else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*inside, *args], **pipes, **more)
    STARTED.append(process)
    return process


def report(process, patience=90, exits=0):
    out, err = process.communicate(timeout=patience)
    assert process.returncode == exits, (process.returncode, err)
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


def demo(port, token, seconds, *more, scenario="race"):
    serve = ["--metrics", f"{HERE}:{port}", "--token-file", token]
    source = start(TOKENGAP, "demo", "--scenario", scenario, "--json", "--duration", f"{seconds}s", *serve, *more)
    deadline = time.monotonic() + 20
    while "LISTEN" not in run("ss", "-tln", "src", f"{HERE}:{port}"):
        assert source.poll() is None and time.monotonic() < deadline, "the demo does not listen"
        time.sleep(0.05)
    return source


def watch(port, token, *more):
    return start(TOKENGAP, "watch", f"{HERE}:{port}", "--token-file", token, "--json", *more, inside=True)


def client(port, path, output, token="", seconds=0):
    url = f"http://{HERE}:{port}{path}"
    return start(sys.executable, "-c", CLIENT, url, token, str(output), str(seconds), inside=True)


def get(port, path, token, folder):
    """Status and body of a response, requested in the other namespace."""
    output = folder / "body"
    out, err = client(port, path, output, token).communicate(timeout=60)
    return int(out or 0), output.read_bytes() if out else err


def early_and_late(token, _folder):
    """Two watchers in another namespace, early and late: both end with the source's report."""
    source = demo(5601, token, 12)
    early = watch(5601, token)
    time.sleep(6)
    late = watch(5601, token)
    truth = report(source)
    for name, process in (("early", early), ("late", late)):
        wrong = differences(numbers(truth), numbers(report(process)))
        assert not wrong, (name, wrong)
    assert truth["chunks"]["dropped_confirmed"] > 0
    print(f"early and late reports are equal: {truth['tokens']['sent']} tokens sent, {truth['chunks']['tokens_lost']} lost")


def paths(token, folder):
    """The streams of a run, saved to files, are its recording and its events."""
    secret = pathlib.Path(token).read_text()
    source = demo(5602, token, 10)
    recording, events = folder / "run.tgap", folder / "run.jsonl"
    streams = [client(5602, "/recording", recording, secret), client(5602, "/events", events, secret)]
    time.sleep(4)
    status, body = get(5602, "/report", secret, folder)
    assert status == 200 and json.loads(body)["schema"] == "tokengap.report/2", (status, body)
    status, body = get(5602, "/metrics", secret, folder)
    assert status == 200 and b'tokengap_self_stream_clients{path="/recording"} 1' in body, (status, body)
    status, body = get(5602, "/healthz", "", folder)
    health = json.loads(body)
    assert status == 200 and health["alive"] and health["attached"] and health["tokens_since"], (status, health)
    truth = report(source)
    for stream in streams:
        out, err = stream.communicate(timeout=30)
        assert out == "200\n", (out, err)
    replayed = json.loads(run(TOKENGAP, "report", str(recording), "--format", "json"))
    wrong = differences(numbers(truth), numbers(replayed))
    assert not wrong, wrong
    exported = run(TOKENGAP, "export", str(recording), "--format", "events")
    assert exported == events.read_text(), "the lines of /events differ from the export of /recording"
    print(f"paths: {len(recording.read_bytes())} bytes of recording, {exported.count(chr(10))} lines of events")


def slow_clients(token, folder):
    """A stopped watcher and clients that do not read cost the source neither time nor memory; the latter are dropped and counted."""
    secret = pathlib.Path(token).read_text()
    before = report(demo(5603, token, 14))
    source = demo(5603, token, 70)
    watcher = watch(5603, token)
    time.sleep(3)
    os.kill(watcher.pid, signal.SIGSTOP)
    time.sleep(1)
    before_bytes = rss(source.pid)
    not_reading = [client(5603, path, folder / path[1:], secret, 120) for path in ("/recording", "/events")]
    time.sleep(8)
    grown = rss(source.pid) - before_bytes
    os.kill(watcher.pid, signal.SIGCONT)
    dropped = b'tokengap_self_stream_dropped_total{path="/recording"} 1'
    deadline = time.monotonic() + 50
    while dropped not in (body := get(5603, "/metrics", secret, folder)[1]):
        assert time.monotonic() < deadline, body.decode()
        time.sleep(1)
    truth, seen = report(source), report(watcher)
    ratio = truth["tokens"]["sent"] / 70 / (before["tokens"]["sent"] / 14)
    degraded = [line for line in truth["self"]["degraded"] if "read too slowly" in line]
    print(f"slow clients: source's tokens x{ratio:.3f}, its memory {grown / 2**20:+.1f} MiB; {degraded}")
    assert 0.9 < ratio < 1.1 and grown < 40 << 20 and degraded
    for what in ("tokens", "chunks", "requests"):
        assert truth[what] == seen[what], (what, truth[what], seen[what])
    for process in not_reading:
        process.kill()


def refused(token, folder):
    """Clients without the token, or with another one, receive nothing and log the reason. Nothing is served to others without consent."""
    other = folder / "other.token"
    other.write_text("another")
    other.chmod(0o600)
    source = demo(5604, token, 8)
    for name, args in {"another": ["--token-file", str(other)], "none": []}.items():
        watcher = start(TOKENGAP, "watch", f"{HERE}:5604", "--json", "--duration", "2s", *args, inside=True)
        seen = report(watcher, exits=2)
        degraded = seen["self"]["degraded"]
        assert seen["tokens"]["sent"] == 0 and any("token" in line for line in degraded), (name, degraded)
    for path in ("/metrics", "/report", "/recording", "/events"):
        status, body = get(5604, path, "another", folder)
        assert status == 401, (path, status, body)
    degraded = report(source)["self"]["degraded"]
    assert any("requests without the token" in line for line in degraded), degraded
    open_to_all = start(TOKENGAP, "demo", "--headless", "--metrics", f"{HERE}:5604")
    _, err = open_to_all.communicate(timeout=20)
    assert open_to_all.returncode == 2 and "--token-file" in err and "--insecure" in err, err
    print("refused: wrong token, no token, an open address without consent")


def several(token, _folder):
    """Watches three addresses: a pod that stays up, one that exits and is restarted, and one that does not exist."""
    first, second = demo(5605, token, 16), demo(5606, token, 3, scenario="backlog")
    places = [f"{HERE}:{port}" for port in (5605, 5606, 5607)]
    watcher = start(TOKENGAP, "watch", *places, "--token-file", token, "--json", "--duration", "13s", inside=True)
    report(second)
    time.sleep(1)
    again = demo(5606, token, 20, scenario="backlog")
    seen = report(watcher)
    assert seen["schema"] == "tokengap.watch/2"
    states = [run["state"] for run in seen["runs"]]
    assert states == ["live", "live", "away"], states
    assert all(run["report"]["tokens"]["sent"] > 0 for run in seen["runs"][:2])
    away = seen["runs"][2]["report"]["self"]["degraded"]
    assert "has been unreachable for" in away[0], away
    again.send_signal(signal.SIGINT)
    report(first), report(again)
    print(f"several: {states}")


class Screen:
    """A program in tmux."""

    def __init__(self, command):
        self.folder = tempfile.TemporaryDirectory()
        self.tmux("new-session", "-d", "-x", "160", "-y", "40", f"export LC_ALL=C.UTF-8; {command}")

    def tmux(self, *args):
        return run("tmux", "-S", f"{self.folder.name}/tmux", "-f", "/dev/null", *args)

    def until_shows(self, *words):
        deadline = time.monotonic() + 20
        while not all(word in (shown := self.tmux("capture-pane", "-p")) for word in words):
            assert time.monotonic() < deadline, f"not shown: {words}\n{shown}"
            time.sleep(0.2)

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def close(self):
        self.tmux("kill-server")
        self.folder.cleanup()


def on_screen(token, _folder):
    """The screen of a late watcher says when its numbers begin, and that the source was lost."""
    source = demo(5608, token, 60, "--metrics-past", "64KiB")
    time.sleep(8)
    screen = Screen(f"ip netns exec {NETNS} {TOKENGAP} watch {HERE}:5608 --token-file {token}")
    try:
        screen.until_shows("live since", "degraded (5)")
        screen.press("5")
        screen.until_shows("earlier records are not in them")
        screen.press("7")
        screen.until_shows(os.uname().nodename, "all 1")
        source.kill()
        screen.until_shows("LOST")
        print("screen: late start and lost source are shown")
    finally:
        screen.close()


def main():
    # On SIGTERM, exit through the context managers so that the namespace and the processes are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder, network():
        token = f"{folder}/metrics.token"
        pathlib.Path(token).write_text(os.urandom(32).hex())
        os.chmod(token, 0o600)
        only = sys.argv[2:]
        for check in (paths, refused, several, early_and_late, on_screen, slow_clients):
            if only and check.__name__ not in only:
                continue
            begun = time.monotonic()
            check(token, pathlib.Path(folder))
            print(f"  {check.__name__}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
