"""Makes uvicorn wait for its workers. It kills one that does not answer within five seconds; importing SGLang takes longer on two cores."""

import sys

if "sglang.launch_server" in sys.orig_argv:
    from uvicorn.supervisors.multiprocess import Process

    is_alive = Process.is_alive
    Process.is_alive = lambda process, timeout=5: is_alive(process, max(timeout, 300))
