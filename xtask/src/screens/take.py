"""Captures the screens in the documentation from the demo, in tmux.

usage: take.py TOKENGAP [picture]     needs the package rich; `picture`: write only the README's picture

In docs/screens.md and docs/recordings.md, a comment describes how to capture the block that follows:
`<!-- shown by: COMMAND; keys: K K; lines: 1-9 -->` is a screen after those keys; blocks with the same command share one run.
`<!-- printed by: COMMAND; lines: 1-9 -->` is standard output.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tmux import Tmux

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs/overview.svg"
GUIDES = [ROOT / "docs/screens.md", ROOT / "docs/recordings.md"]
SIZE = (100, 30)
# Seconds after which the demo is unhealthy.
WARM_S = 15
SETTLE_S = 1.5
# Arguments of the run in the README's picture, and of the run whose recording the pages replay.
PICTURED = "demo --scenario race --theme dark"
RECORD = "demo --scenario race --headless --duration 20s --record race.tgap"

BLOCK = re.compile(r"^<!-- (?P<how>shown|printed) by: (?P<command>[^\n]*?)(?:; keys: (?P<keys>[^\n]*?))?; lines: (?P<first>\d+)-(?P<last>\d+) -->\n"
                   r"```text\n(?P<old>.*?)^```\n", re.MULTILINE | re.DOTALL)  # fmt: skip


def retake(page, program, folder):
    """The page with its blocks captured again in `folder`, and their number.

    >>> page = "a\\n<!-- printed by: printf '1\\\\n2\\\\n3\\\\n'; lines: 2-3 -->\\n```text\\nold\\n```\\nb\\n"
    >>> new, received = retake(page, "/bin/true", "/")
    >>> received, new == page.replace("old", "2\\n3")
    (1, True)
    """
    sessions = {}

    def shown(command, keys):
        if command not in sessions:
            line = command.replace("tokengap", str(program), 1)
            sessions[command] = Tmux(SIZE, f"cd {folder}; exec {line}", WARM_S)
        sessions[command].press(keys.split(), SETTLE_S)
        return sessions[command].pane()

    def printed(command):
        env = os.environ | {"PATH": f"{Path(program).parent}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout

    def new(block):
        shows = block["how"] == "shown"
        text = shown(block["command"], block["keys"]) if shows else printed(block["command"])
        lines = [line.rstrip() for line in text.splitlines()[max(int(block["first"]), 1) - 1 : int(block["last"])]]
        return block[0].replace(f"```text\n{block['old']}", "```text\n" + "\n".join(lines).rstrip() + "\n", 1)

    try:
        return BLOCK.subn(new, page)
    finally:
        for session in sessions.values():
            session.end()


def main():
    from picture import svg

    program = sys.argv[1]
    with Tmux(SIZE, f"exec {program} {PICTURED}", WARM_S) as tmux:
        PICTURE.write_text(svg(tmux.pane("-e"), SIZE))
    print(f"{PICTURE} written")
    if "picture" in sys.argv:
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, *RECORD.split()], cwd=folder, stdout=subprocess.DEVNULL, check=True)
        for guide in GUIDES:
            page = guide.read_text()
            new, received = retake(page, program, folder)
            if received != len(re.findall(r"^<!-- (?:shown|printed) by: ", page, re.MULTILINE)):
                sys.exit(f"{guide}: invalid `shown by` or `printed by` comment, or no text block after it")
            guide.write_text(new)
            print(f"{received} blocks of {guide} replaced")


if __name__ == "__main__":
    main()
