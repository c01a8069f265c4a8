"""`python engine/sglang/launch_server.py RELEASE receive ...`: runs `python -m engine` with a command line like that of a real server."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("engine", run_name="__main__", alter_sys=False)
