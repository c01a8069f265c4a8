"""Runs the program in a container like containerd: runc, read-only root with the image's files, the capabilities of a level."""

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

# Default seccomp profile of Debian's container tools.
PROFILE = "/usr/share/containers/seccomp.json"
# Time limit: attaching takes seconds on a busy machine.
PATIENCE_S = 60


class Image:
    """A root folder with the program as its only file."""

    def __init__(self, program, folder):
        self.folder, self.root = Path(folder), Path(folder) / "rootfs"
        for sub in ("usr/bin", "proc", "sys", "dev"):
            (self.root / sub).mkdir(parents=True)
        shutil.copy(program, self.root / "usr/bin/tokengap")

    def run(self, level, name, *args):
        """Runs `tokengap ARGS` at this level, in the PID namespace of the caller; returns the completed process."""
        bundle = self.folder / name
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(spec(level, self.root, args)))
        container = f"tokengap-pod-{os.getpid()}-{name}"
        command = ["runc", "--root", self.folder / "runc", "run", "--bundle", bundle, container]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)


def spec(level, root, args):
    """The OCI runtime configuration. For a user other than root, added capabilities are only in the bounding set."""
    capabilities = level.capabilities()
    namespaces = ["mount", "ipc", "uts"]
    namespaces += {"pod": [], "node": ["network"], "isolated": ["pid"], "mapped": ["user"]}[level.place]
    linux = {
        "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/scsi",
                        "/sys/firmware"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        "namespaces": [{"type": name} for name in namespaces],
    }  # fmt: skip
    if level.place == "mapped":
        linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": 1_000_000, "size": 65_536}]
    if level.seccomp:
        linux["seccomp"] = seccomp(json.loads(Path(PROFILE).read_text()), capabilities)

    def mount(at, kind, source, *options):
        return {"destination": at, "type": kind, "source": source, "options": options}

    if level.place == "mapped":
        # A user namespace cannot mount /proc and /sys of namespaces that it does not own: bind them.
        system = [mount("/proc", "bind", "/proc", "rbind"), mount("/sys", "bind", "/sys", "rbind", "ro")]
    else:
        system = [mount("/proc", "proc", "proc"), mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro")]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": level.uid, "gid": level.uid},
            "args": ["/usr/bin/tokengap", *args],
            "env": ["PATH=/usr/bin", "TMPDIR=/dev/shm"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            *system,
            mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=65536k"),
            mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        ],
        "linux": linux,
    }


def seccomp(profile, capabilities):
    """The rules of a seccomp profile for these capabilities on this machine, as a runtime applies them.

    >>> bpf = [{"names": ["bpf"], "action": "ALLOW", "includes": {"caps": ["CAP_BPF"]}},
    ...        {"names": ["bpf"], "action": "ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_BPF"]}}]
    >>> profile = {"defaultAction": "ERRNO", "defaultErrnoRet": 38, "syscalls": bpf}
    >>> seccomp(profile, ["CAP_BPF"])["syscalls"]
    [{'names': ['bpf'], 'action': 'ALLOW'}]
    >>> seccomp(profile, [])["syscalls"]
    [{'names': ['bpf'], 'action': 'ERRNO', 'errnoRet': 1}]
    """
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

    def applies(rule):
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        return (
            arch in (includes.get("arches") or [arch])
            and arch not in (excludes.get("arches") or [])
            and set(includes.get("caps") or []) <= set(capabilities)
            and not set(excludes.get("caps") or []) & set(capabilities)
        )

    kept = ("names", "action", "args", "errnoRet")
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": [
            {key: rule[key] for key in kept if rule.get(key) is not None} for rule in profile["syscalls"] if applies(rule)
        ],
    }
