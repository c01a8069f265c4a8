"""`python testbed/sglang/launch_server.py RELEASE receive ...`: runs `python -m testbed` with a command line like that of a real server."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("testbed", run_name="__main__", alter_sys=False)
