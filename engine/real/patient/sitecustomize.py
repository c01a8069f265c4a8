"""Lets uvicorn wait for its workers. It ends one that does not answer within five seconds, and importing SGLang takes longer on two cores."""

import sys

if "sglang.launch_server" in sys.orig_argv:
    from uvicorn.supervisors.multiprocess import Process

    is_alive = Process.is_alive
    Process.is_alive = lambda process, timeout=5: is_alive(process, max(timeout, 300))
