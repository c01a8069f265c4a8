"""Stops one thread of a process, as a debugger does. The other threads run on."""

import ctypes
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


def hold(pid: int, name: str, seconds: float) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    threads = Path(f"/proc/{pid}/task").iterdir()
    tid = next(int(thread.name) for thread in threads if (thread / "comm").read_text().startswith(name))
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, tid, None, None):
            raise OSError(ctypes.get_errno(), f"cannot stop thread {tid} ({name}) of process {pid}")
    os.waitpid(tid, WAIT_FOR_THREADS)
    time.sleep(seconds)
    libc.ptrace(PTRACE_DETACH, tid, None, None)


@contextmanager
def held_thread(pid: int, name: str, seconds: float):
    """Stops the first thread of this name during the block. A process of its own traces it, since its end releases the thread."""
    holder = subprocess.Popen([sys.executable, __file__, str(pid), name, str(seconds)])
    yield
    if holder.wait():
        raise RuntimeError(f"the thread {name} of process {pid} was not stopped")


if __name__ == "__main__":
    time.sleep(LEAD_SECONDS)
    hold(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
