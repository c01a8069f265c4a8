"""Kernel privileges that attach needs, and the kernel objects that it holds."""

import json
import re
import subprocess
from pathlib import Path

KINDS = {"programs": "prog_id:", "links": "link_id:", "maps": "map_id:"}
# Capability bits, from include/uapi/linux/capability.h.
SYS_PTRACE, SYS_ADMIN = 1 << 19, 1 << 21


def refused() -> str | None:
    """Reason why attach cannot work here; `None` if it can."""
    effective = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
    return None if effective & SYS_PTRACE and effective & SYS_ADMIN else "needs root, or CAP_SYS_ADMIN and CAP_SYS_PTRACE"


def objects_of(pid: int) -> dict[str, set[int]]:
    """Ids of the programs, links and maps that a process holds open. The kernel does not reuse them soon."""
    found: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = file.read_text()
        except OSError:  # closed during the scan
            continue
        for kind, field in KINDS.items():
            found[kind] |= {int(id) for id in re.findall(rf"^{field}\s*(\d+)", text, re.MULTILINE)}
    return found


def still_loaded(run, objects: dict[str, set[int]]) -> dict[str, set[int]]:
    """Those that are loaded in the kernel."""
    listed = subprocess.run([run.options.xtask, "kernel-objects"], check=True, capture_output=True).stdout
    present = json.loads(listed)
    return {kind: ids & set(present[kind]) for kind, ids in objects.items()}
