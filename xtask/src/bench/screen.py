"""The screen as a user sees it: tokengap in tmux, on a recording of a busy engine and on an idle relay. Drawing times are logged by the
program at exit with `-v`; key response time is measured from outside, through tmux."""

import subprocess
import tempfile
import time
from pathlib import Path

from common import Tmux, example, median, memory_mib, result, share, tokengap, until

LIVE, SECONDS, KEYS = 10_000, 40, 20


def busy(program, folder):
    recording, log = Path(folder) / "busy.tgap", Path(folder) / "log"
    subprocess.run([example("recording", "busy"), recording, str(SECONDS), str(LIVE), "2000"], check=True, stdout=subprocess.DEVNULL)
    with Tmux(f"{program} -v replay {recording} --speed 1x 2>{log}") as tmux:
        tmux.shows("tok/s")
        tmux.press("2")
        tmux.shows("flags")
        time.sleep(3)
        cpu, mib, answers = share(tmux.pid, SECONDS - 15), memory_mib(tmux.pid), []
        for key, sign in [("4", "frames by queue wait"), ("2", "flags")] * (KEYS // 2):
            begun = time.monotonic()
            tmux.press(key)
            tmux.shows(sign)
            answers.append((time.monotonic() - begun) * 1e3)
        tmux.press("q")
        drawn, _ = until(lambda: [line for line in log.read_text().splitlines() if "drawn in " in line], "the log")
    print(f"{LIVE} live requests, 132,000 chunks per second, 200x50:{drawn[0].split('screen:')[1]}")
    print(f"key response through tmux: median {median(answers):.0f} ms, maximum {max(answers):.0f} ms")
    print(f"decoding, analysis and screen: {cpu:.1f} % of a core, {mib:.0f} MiB")
    result("screen.draw", float(drawn[0].split("drawn in ")[1].split()[0]) / 1e3)


def at_rest(program, folder):
    with Tmux(f"{program} tap --listen ipc://{folder}/in --upstream ipc://{folder}/out") as tmux:
        tmux.shows("tokengap")
        time.sleep(2)
        cpu = share(tmux.pid, 15)
        print(f"an idle relay: {cpu:.2f} % of a core, {memory_mib(tmux.pid):.0f} MiB")
        result("screen.idle", cpu)


def run(_quick):
    program = tokengap()
    with tempfile.TemporaryDirectory() as folder:
        busy(program, folder)
        at_rest(program, folder)
