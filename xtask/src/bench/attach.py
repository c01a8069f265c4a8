"""`attach` on an engine's traffic: real frames of 256 requests between libzmq peers, with 4,096 live requests. The rate is 132,000 tokens a
second, then multiples of it until observations are missed. The counts of `attach` must match those of the peers."""

import json
import os
import select
import socket
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from common import FIXTURE, PATIENCE, Process, Tmux, attached, compile_c, cpu, median, memory_mib, result, root, tokengap, until
from frames import write_frames

GROUPS, REQUESTS, RATE = 16, 256, 132_000


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def scrape(port):
    """Scrapes the metrics endpoint like Prometheus."""
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
    return urllib.request.urlopen(request, timeout=PATIENCE).read().decode()


class Kit:
    """The compiled peers and their files of frames."""

    def __init__(self, folder):
        self.peer, self.frames = compile_c("engine.c", folder), Path(folder) / "frames"
        write_frames(FIXTURE, GROUPS, REQUESTS, self.frames)


class Engine:
    """A scheduler and a tokenizer in C on libzmq, which exchange frames and count them."""

    def __init__(self, kit):
        self.folder = tempfile.TemporaryDirectory()
        endpoint = f"ipc://{self.folder.name}/scheduler.ipc"
        self.receiver = Process(kit.peer, "recv", endpoint).expect("READY")
        self.sender = Process(kit.peer, "send", endpoint, kit.frames).expect("READY")
        self.sent, self.pids = defaultdict(float), [self.sender.pid, self.receiver.pid]
        self.flags = ["--pid", f"{self.sender.pid}=scheduler", "--pid", f"{self.receiver.pid}=tokenizer"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sender.__exit__()
        self.receiver.__exit__()
        self.folder.cleanup()

    def send(self, frames, rate):
        """Sends frames; returns tokens per second, and CPU microseconds per frame of sender and receiver."""
        before = [cpu(pid) for pid in self.pids]
        numbers = [float(number) for number in self.sender.ask(f"{frames} {rate}").split()]
        spent = [(cpu(pid) - was) * 1e6 / frames for pid, was in zip(self.pids, before)]
        for key, value in zip(("frames", "tokens", "begun", "ended"), numbers):
            self.sent[key] += value
        return numbers[1] / numbers[4], spent

    def pass_by(self, times, seconds):
        """Sends at a multiple of the rate, then slowly: sequence numbers of the last frames reveal earlier misses. Waits for all."""
        rate = times * RATE / REQUESTS
        sent = self.send(int(rate * seconds), rate)
        self.send(32, 200.0)
        until(lambda: int(self.receiver.ask("received")) == self.sent["frames"], "the receiver")
        # The probe's reader polls every few milliseconds and reads its loss counters every 100 ms.
        time.sleep(0.5)
        return sent


def with_screen(kit, program, times, seconds):
    """Measures `attach` with a 200x50 screen. Counts come from the metrics endpoint."""
    with Engine(kit) as engine:
        _, alone = engine.pass_by(times, min(seconds, 10))
    port = free_port()
    with Engine(kit) as engine, Tmux(f"{program} attach {' '.join(engine.flags)} --metrics {port}") as tmux:
        tmux.shows("tokengap")
        before, begun = cpu(tmux.pid), time.monotonic()
        per_s, spent = engine.pass_by(times, seconds)
        share, mib = (cpu(tmux.pid) - before) / (time.monotonic() - begun) * 100, memory_mib(tmux.pid)
        counted = defaultdict(float)
        for line in scrape(port).splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                counted[name.split("{")[0].removeprefix("tokengap_").removesuffix("_total")] += float(value)
        sent, missed = engine.sent, counted["self_events_missed"]
        print(f"{per_s:.0f} tokens/s with a screen: {share:.1f} % of a core, {mib:.0f} MiB, {missed:.0f} missed")
        for what, key, observed in [("frames", "frames", "hop_frames_sent"), ("tokens", "tokens", "tokens_sent"), ("requests", "begun", "requests_seen")]:
            print(f"  {what}: {sent[key]:.0f} sent, {counted[observed]:.0f} observed")
        for peer, without, watched in zip(("sender", "receiver"), alone, spent):
            print(f"  {peer}: {without:.1f} us per frame alone, {watched:.1f} attached")
    for what, value in [("cpu", share), ("memory", mib), ("missed", missed)]:
        result(f"attach.{times}.{what}", value)


def without_screen(kit, program, times, seconds):
    """Measures `attach` without a screen: frames neither observed nor counted as missed, and tokens reported missing."""
    with Engine(kit) as engine, attached(program, *engine.flags) as attach:
        before, begun = cpu(attach.pid), time.monotonic()
        per_s, _ = engine.pass_by(times, seconds)
        share, mib = (cpu(attach.pid) - before) / (time.monotonic() - begun) * 100, memory_mib(attach.pid)
        report = json.loads(attach.interrupt())
        sent = engine.sent
    observed = report["hops"][0]["frames_sent"]
    missed = ((report["source"]["wire"] or {}).get("missed") or {}).get("sends") or 0
    missing = (report["tokens"]["missing_on_wire"] or 0) + (report["chunks"]["tokens_lost"] or 0)
    print(
        f"{times:3} times, {per_s:.0f} tokens/s: {share:.1f} % of a core, {mib:.0f} MiB; of {sent['frames']:.0f} frames {observed} observed,"
        f" {missed} missed; {missing} tokens reported missing"
    )
    if not missed and report["tokens"]["sent"] != sent["tokens"]:
        raise RuntimeError(f"{report['tokens']['sent']} of {sent['tokens']:.0f} tokens observed")
    return abs(sent["frames"] - observed - missed), missing


def starts(kit, program, times):
    """Measures the time to the first number on the screen, and from `q` to the exit of the process."""
    has_number = lambda pane: any(line.startswith(" tokens ") and line.split()[1][0] in "123456789" for line in pane.splitlines() if " sent" in line)
    first_ms, quit_ms = [], []
    with Engine(kit) as engine:
        engine.sender.write_line(f"{2**62} {RATE / REQUESTS}")
        for _ in range(times):
            begun = time.monotonic()
            with Tmux(f"{program} attach {' '.join(engine.flags)}") as tmux:
                tmux.shows(has_number)
                first_ms.append((time.monotonic() - begun) * 1e3)
                process, begun = os.pidfd_open(tmux.pid), time.monotonic()
                tmux.press("q")
                select.select([process], [], [], PATIENCE)
                quit_ms.append((time.monotonic() - begun) * 1e3)
                os.close(process)
    for key, what, ms in [("first", "start to first number", first_ms), ("gone", "`q` to exit", quit_ms)]:
        print(f"{what}: median {median(ms):.0f} ms, {min(ms):.0f}..{max(ms):.0f} of {times}")
        result(f"attach.{key}", median(ms))


def run(quick):
    root()
    program = tokengap()
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(folder)
        burst = 2 if quick else 4
        with_screen(kit, program, 1, 5 if quick else 30)
        with_screen(kit, program, 2, burst)
        accounts = [without_screen(kit, program, times, burst) for times in ([1, 2] if quick else [2, 16, 64])]
        result("attach.unaccounted", max(frames for frames, _ in accounts))
        result("attach.false", max(tokens for _, tokens in accounts))
        starts(kit, program, 3 if quick else 5)
