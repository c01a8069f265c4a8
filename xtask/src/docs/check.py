"""Checks the commands shown in the documentation.

usage: check.py list                              links; prints every `cargo xtask` command
       check.py run TOKENGAP RELEASE [PAGE]       runs every block, or those of one page; as root alone in a PID namespace, so that
                                                  there is only one engine to attach to
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from pages import ROOT, blocks, broken, pages

from testbed.served import Served

# Run time of a live command; overrides the one in the page.
LIVE = "2s"
# A command that runs longer counts as hung.
PATIENCE_S = 60
# Commands that run until stopped.
ENDLESS = ("attach", "demo", "splice", "tap", "watch")


def shortened(command, pid=None):
    """The command with a limited run time, and with the real process id of the engine.

    >>> shortened("sudo tokengap attach --pid 4711 > a.json")
    'sudo tokengap attach --duration 2s --pid 4711 > a.json'
    >>> shortened("tokengap splice --pid 4711 --duration 1m", 12)
    'tokengap splice --pid 12 --duration 2s'
    >>> shortened("tokengap report a.tgap")
    'tokengap report a.tgap'
    """
    words = [str(pid) if word == "4711" and pid else word for word in command.split(" ")]
    at = words.index("tokengap") + 1 if "tokengap" in words else len(words)
    if at < len(words) and words[at] in ENDLESS:
        if "--duration" in words:
            words[words.index("--duration") + 1] = LIVE
        else:
            words[at + 1 : at + 1] = ["--duration", LIVE]
    return " ".join(words)


class Page:
    """Working folder of a page. Blocks run in order, so that later ones can use the files of earlier ones."""

    def __init__(self, binary, folder):
        self.folder = Path(folder)
        programs = self.folder / ".bin"
        programs.mkdir()
        (programs / "tokengap").symlink_to(binary)
        # Provide a stand-in for sudo, which pages use and this machine may lack.
        (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (programs / "sudo").chmod(0o755)
        self.env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, block, pid):
        """Runs a command; returns its error, if any."""
        if block.first and (wrong := self.end(self.start(block.first, pid))):
            return wrong
        if "together" not in block.how:
            return next(filter(None, (self.end(self.start(command, pid)) for command in block.commands)), None)
        running = []
        for command in block.commands:
            running.append(self.start(command, pid))
            time.sleep(0.3)
        return "\n".join(filter(None, map(self.end, running)))

    def start(self, command, pid):
        line = ["bash", "-euo", "pipefail", "-c", shortened(command, pid)]
        complaints = tempfile.TemporaryFile("w+")
        return complaints, subprocess.Popen(line, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=complaints)  # fmt: skip

    def end(self, started):
        complaints, process = started
        command = process.args[-1]
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"`{command}` did not exit within {PATIENCE_S} s"
        # `doctor` and `--fail-on` report findings through the exit code.
        finds = "doctor" in command or "--fail-on" in command
        complaints.seek(0)
        said = complaints.read().rstrip()
        idle = status == 2 and ("nothing passed through the relay" in said or "no traffic was received" in said)
        if status == 0 or (finds and status == 1) or idle:
            return None
        return f"`{command}` exited with {status}: {said}"


def run(binary, release, only=None):
    ran = skipped = 0
    wrong = []
    for path in pages():
        name = str(path.relative_to(ROOT))
        if only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as engine_folder:
            page = Page(binary, folder)
            for block in blocks(path.read_text()):
                place, with_engine = f"{name}:{block.line}", "with an engine" in block.how
                reason = block.reason or ("attach needs root" if with_engine and os.geteuid() else "")
                if reason:
                    skipped += len(block.commands)
                    print(f"{place}: not run: {reason}")
                    continue
                ran += len(block.commands)
                begun = time.monotonic()
                with Served(release, engine_folder) if with_engine else nullcontext() as engine:
                    failed = page.run(block, engine and engine.pid)
                print(f"{place}: {failed or f'{time.monotonic() - begun:.1f} s'}", flush=True)
                wrong += [f"{place}: {failed}"] if failed else []
    if wrong or not ran + skipped:
        sys.exit("\n".join(wrong) or "no page shows a command")
    print(f"{ran} commands run, {skipped} skipped for the reasons above")


def list_commands():
    wrong = broken()
    for path in pages():
        try:
            for block in blocks(path.read_text()):
                for command in block.commands:
                    if "cargo xtask " in command:
                        print(f"{path.relative_to(ROOT)}:{block.line}: {command}")
        except ValueError as error:
            wrong.append(f"{path}: {error}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    {"list": list_commands, "run": run}[sys.argv[1]](*sys.argv[2:])
