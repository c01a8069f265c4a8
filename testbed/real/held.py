"""Stops one thread of a process, as a debugger does. The other threads run on."""

import ctypes
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WAIT_FOR_THREADS = 0x40000000
# Time before the stop, so that the load has begun.
LEAD_SECONDS = 3
# Time limit until the main thread waits.
FULL_SECONDS = 200


def ran(pid: int) -> int:
    """CPU time of the main thread in nanoseconds."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def wait_until_blocked(pid: int, seconds: float) -> float:
    """Waits until the main thread has not run for this time. Returns when it ran last."""
    last, ends = time.monotonic(), time.monotonic() + FULL_SECONDS
    before = ran(pid)
    while time.monotonic() - last < seconds:
        time.sleep(0.02)
        if before != (before := ran(pid)):
            last = time.monotonic()
        if last > ends:
            raise TimeoutError(f"the main thread of process {pid} still runs after {FULL_SECONDS} s")
    return last


def hold(pid: int, name: str, seconds: float, until_blocked: bool) -> dict[str, float]:
    """Returns for how many seconds the thread was stopped, and for how many of them the main thread waited for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    threads = Path(f"/proc/{pid}/task").iterdir()
    tid = next(int(thread.name) for thread in threads if (thread / "comm").read_text().startswith(name))
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, tid, None, None):
            raise OSError(ctypes.get_errno(), f"cannot stop thread {tid} ({name}) of process {pid}")
    os.waitpid(tid, WAIT_FOR_THREADS)
    begun = time.monotonic()
    if until_blocked:
        last = wait_until_blocked(pid, seconds)
    else:
        time.sleep(seconds)
        last = time.monotonic()
    libc.ptrace(PTRACE_DETACH, tid, None, None)
    ended = time.monotonic()
    return {"stopped": ended - begun, "blocked": ended - last}


@contextmanager
def held_thread(pid: int, name: str, seconds: float, until_blocked: bool):
    """Stops the first thread of this name during the block for this time, or until the main thread has waited for it for this time. Yields
    the times of `hold`, set at the end of the block. A process of its own traces it, since its end releases the thread."""
    words = [sys.executable, __file__, str(pid), name, str(seconds), str(int(until_blocked))]
    times, holder = {}, subprocess.Popen(words, stdout=subprocess.PIPE)
    yield times
    printed = holder.communicate()[0]
    if holder.returncode:
        raise RuntimeError(f"the thread {name} of process {pid} was not stopped")
    times.update(json.loads(printed))


if __name__ == "__main__":
    time.sleep(LEAD_SECONDS)
    print(json.dumps(hold(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4] == "1")))
