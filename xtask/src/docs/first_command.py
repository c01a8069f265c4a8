"""Runs the README's first command with Rust as it is printed there, in a terminal: the screen must show a verdict, and `q` must end it with a report.

usage: first_command.py
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TMUX = ["tmux", "-L", f"tokengap-readme-{os.getpid()}", "-f", "/dev/null"]
# A build from nothing on two cores takes about three minutes.
BUILT_S, SHOWN_S = 900, 30


def first_command(readme: str) -> str:
    r"""The first block after "With Rust:".

    >>> first_command("x\nWith Rust:\n\n<!-- note -->\n```sh\ncargo run\n```\n```sh\nother\n```\n")
    'cargo run'
    """
    return re.search(r"^With Rust:$.*?^```sh\n(.*?)\n```$", readme, re.DOTALL | re.MULTILINE)[1]


def tmux(*arguments: str) -> str:
    return subprocess.run([*TMUX, *arguments], check=True, capture_output=True, text=True).stdout


def wait_for(pattern: str, seconds: float) -> str:
    """Waits until the screen has the pattern; returns the screen."""
    end = time.monotonic() + seconds
    while not re.search(pattern, screen := tmux("capture-pane", "-p", "-J", "-S", "-200"), re.MULTILINE):
        if time.monotonic() > end:
            sys.exit(f"no {pattern!r} on the screen after {seconds} s:\n{screen}")
        time.sleep(0.5)
    return screen


def main() -> None:
    command = first_command((ROOT / "README.md").read_text())
    print(command)
    tmux("new-session", "-d", "-x", "100", "-y", "30", "-c", str(ROOT), "sh")
    try:
        tmux("send-keys", f"PS1='$ '; clear; {command}; echo exit=$?", "Enter")
        wait_for(r"tokengap demo|Overview", BUILT_S)
        wait_for(r"(CRITICAL|WARNING)  ", SHOWN_S)
        tmux("send-keys", "q")
        shown = wait_for(r"^exit=0$", SHOWN_S)
        if not re.search(r"^(CRITICAL|WARNING): ", shown, re.MULTILINE):
            sys.exit(f"no report after q:\n{shown}")
    finally:
        tmux("kill-server")
    print("the screen showed a verdict, and q printed the report")


if __name__ == "__main__":
    main()
