"""Privilege levels of a pod, and the features of attach that work at each: the rows of the table in docs/install.md."""

from dataclasses import dataclass

# Columns of the table: the names of doctor's features, with the letter of each in `Level.works`.
FEATURES = {
    "f": "frames",
    "h": "processed",
    "s": "thread states",
    "w": "wakeups",
    "q": "kernel queues",
    "d": "deliveries",
    "p": "Python stacks",
}
NOTHING = "-" * len(FEATURES)
# On Linux 6.6 and later.
EVERYTHING = "".join(FEATURES)


@dataclass
class Level:
    name: str
    # `capabilities.add`, after `drop: [ALL]`.
    add: str = ""
    works: str = NOTHING
    uid: int = 0
    # `seccompProfile: RuntimeDefault` of a runtime older than 2023.
    seccomp: bool = False
    # Namespaces. "pod": shares the PID and network namespaces. "node": has its own network namespace, as with `hostPID`. "isolated": has
    # its own PID namespace, without `--target` or `shareProcessNamespace`. "mapped": `hostUsers: false`, so that capabilities have no
    # effect outside its user namespace.
    place: str = "pod"
    # The engine runs as a non-root user.
    other_user: bool = False

    def capabilities(self):
        return [f"CAP_{name}" for name in self.add.split()]


PROBES = "BPF PERFMON SYS_PTRACE"
ADMIN = "SYS_ADMIN SYS_PTRACE"
READ = "DAC_READ_SEARCH"
OTHERS = "engine of another user"
OLD = "`RuntimeDefault` of an older runtime"

LEVELS = [
    Level("not root, nothing added", uid=65532),
    Level("not root, `add: [BPF, PERFMON, SYS_PTRACE]`", PROBES, uid=65532),
    Level("root, `drop: [ALL]`"),
    Level("root, `add: [SYS_PTRACE]`", "SYS_PTRACE"),
    Level("root, `add: [BPF, PERFMON]`", "BPF PERFMON"),
    Level("root, `add: [BPF, PERFMON, SYS_PTRACE]`", PROBES, EVERYTHING),
    Level(f"root, `add: [BPF, PERFMON, SYS_PTRACE]`, {OTHERS}", PROBES, "--sw---", other_user=True),
    Level(f"root, `add: [BPF, PERFMON, SYS_PTRACE, {READ}]`, {OTHERS}", f"{PROBES} {READ}", EVERYTHING, other_user=True),
    Level("root, `add: [SYS_ADMIN, SYS_PTRACE]`", ADMIN, EVERYTHING),
    Level(f"root, `add: [BPF, PERFMON, SYS_PTRACE]`, {OLD}", PROBES, seccomp=True),
    Level(f"root, `add: [SYS_ADMIN, SYS_PTRACE]`, {OLD}", ADMIN, EVERYTHING, seccomp=True),
    Level(f"DaemonSet, `add: [BPF, PERFMON, SYS_PTRACE, {READ}]`", f"{PROBES} {READ}", "f-s--dp", place="node"),
    Level(f"DaemonSet, `add: [SYS_ADMIN, SYS_PTRACE, {READ}]`, `RuntimeDefault`", f"{ADMIN} {READ}", EVERYTHING,
          seccomp=True, place="node"),  # fmt: skip
    Level("`hostUsers: false`, `add: [BPF, PERFMON, SYS_PTRACE, SYS_ADMIN]`", f"{PROBES} SYS_ADMIN", place="mapped"),
]
# All privileges granted, but the engine's processes are not visible.
ISOLATED = Level("separate PID namespace, `add: [BPF, PERFMON, SYS_PTRACE]`", PROBES, place="isolated")
