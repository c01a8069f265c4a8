"""Start and end of a process of the harness. It exits when it is done, on request, or at its deadline."""

import os
import signal
import sys
import threading
import time


class Life:
    """The handshake with the parent process.

    Prints `READY pid endpoint...` when the sockets are open, and `DONE {totals}` at the end. With `--wait-go`, work starts at the line
    `go` on standard input, and ends at `stop` or at the end of input. `driven` is true if the parent sends these lines.
    """

    def __init__(self, deadline_s: float, wait_go: bool):
        self.ends = time.monotonic() + deadline_s
        self.stopped = threading.Event()
        self._go = threading.Event()
        self._steps = threading.Semaphore(0)
        self.driven = wait_go
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        # If the process hangs in a library, exit at most 10 s after the deadline.
        exit_timer = threading.Timer(deadline_s + 10, os._exit, (4,))
        exit_timer.daemon = True
        exit_timer.start()

    def _signalled(self, _number, _frame):
        self.stopped.set()
        self._go.set()

    def _listen(self):
        for line in sys.stdin:
            if line.strip() == "go":
                self._go.set()
            elif line.strip() == "step":
                self._steps.release()
            elif line.strip() == "stop":
                break
        self.stopped.set()
        self._go.set()
        self._steps.release()

    def ready(self, *endpoints: str) -> None:
        """Prints READY, and starts reading commands if there is a driver."""
        print("READY", os.getpid(), *endpoints, flush=True)
        if self.driven:
            threading.Thread(target=self._listen, daemon=True).start()

    @property
    def may_go(self) -> bool:
        """Whether work may start."""
        return self._go.is_set() or not self.driven

    def wait_go(self) -> None:
        """Blocks until work may start."""
        while not self.may_go and not self.expired:
            time.sleep(0.005)

    def wait_step(self) -> None:
        """Blocks until the driver requests one more step."""
        self._steps.acquire(timeout=self.left_ms() / 1000)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.ends

    @property
    def over(self) -> bool:
        """Whether to stop: on request, or at the deadline."""
        return self.stopped.is_set() or self.expired

    def left_ms(self) -> int:
        """Milliseconds until the deadline."""
        return max(0, int((self.ends - time.monotonic()) * 1000))


def add_options(parser) -> None:
    """Options of every process."""
    group = parser.add_argument_group("process")
    group.add_argument("--truth", metavar="FILE", help="file for the truth, as JSON lines")
    group.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS", help="exit after this time")
    group.add_argument("--wait-go", action="store_true", help="start at the line `go` on standard input")
