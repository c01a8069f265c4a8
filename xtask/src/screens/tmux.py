"""Runs a program in a separate tmux server and reads its screen."""

import subprocess
import tempfile
import time


class Tmux:
    """A pane with a shell command that has run for `warm_s` seconds."""

    def __init__(self, size, command, warm_s):
        self.folder = tempfile.TemporaryDirectory()
        columns, rows = map(str, size)
        self._ask("new-session", "-d", "-x", columns, "-y", rows, f"export LC_ALL=C.UTF-8; {command}")
        time.sleep(warm_s)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        # The server exits with its pane, too.
        self._ask("kill-server", check=False)
        self.folder.cleanup()

    def pane(self, *options):
        """The text of the pane; with `-e`, includes colours and weights as SGR sequences."""
        return self._ask("capture-pane", "-p", *options)

    def press(self, keys, pause_s):
        """Sends keys by their tmux names, with a pause after each."""
        for key in keys:
            self._ask("send-keys", key)
            time.sleep(pause_s)

    def _ask(self, *args, check=True):
        command = ["tmux", "-S", f"{self.folder.name}/tmux", "-f", "/dev/null", *args]
        return subprocess.run(command, capture_output=True, text=True, check=check).stdout
