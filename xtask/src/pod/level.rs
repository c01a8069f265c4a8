//! What a pod may grant, and what attach was seen to do with it.

/// Who the container's process is, and what it may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// As in docs/KUBERNETES.md.
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    /// `capabilities.add`, after `drop: [ALL]`.
    pub(crate) add: &'static [&'static str],
    /// `seccompProfile: RuntimeDefault`, as a runtime older than 2023 has it.
    pub(crate) seccomp: bool,
    /// A network namespace of its own: the daemon on the node.
    pub(crate) apart: bool,
    /// `hostUsers: false`: the capabilities are worth nothing outside of its user namespace.
    pub(crate) mapped: bool,
    /// The engine runs as another user than root.
    pub(crate) other_user: bool,
    /// What works on Linux 6.6 and later, letter by letter of [`super::observed::LETTERS`].
    pub(crate) works: &'static str,
}

const PLAIN: Level = Level {
    name: "",
    uid: 0,
    add: &[],
    seccomp: false,
    apart: false,
    mapped: false,
    other_user: false,
    works: "-------",
};
const PROBES: &[&str] = &["BPF", "PERFMON", "SYS_PTRACE"];
const ALL: &[&str] = &["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"];

/// Every level that the manifests and the documents speak of.
pub(crate) const LEVELS: [Level; 13] = [
    Level {
        name: "not root, nothing added",
        uid: 65532,
        ..PLAIN
    },
    Level {
        name: "not root, `add: [BPF, PERFMON, SYS_PTRACE]`",
        uid: 65532,
        add: PROBES,
        ..PLAIN
    },
    Level {
        name: "root, `drop: [ALL]`",
        ..PLAIN
    },
    Level {
        name: "root, `add: [SYS_PTRACE]`",
        add: &["SYS_PTRACE"],
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON]`",
        add: &["BPF", "PERFMON"],
        works: "--s--d-",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE]`",
        add: PROBES,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "the same, the engine runs as another user",
        add: PROBES,
        other_user: true,
        works: "fhsw-dp",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]`, the engine runs as another user",
        add: ALL,
        other_user: true,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "root, `add: [SYS_ADMIN, SYS_PTRACE]`",
        add: &["SYS_ADMIN", "SYS_PTRACE"],
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE]`, an older runtime's `RuntimeDefault`",
        add: PROBES,
        seccomp: true,
        ..PLAIN
    },
    Level {
        name: "root, `add: [SYS_ADMIN, SYS_PTRACE]`, an older runtime's `RuntimeDefault`",
        add: &["SYS_ADMIN", "SYS_PTRACE"],
        seccomp: true,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "the node's daemon: `hostPID`, a network of its own, `add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]`",
        add: ALL,
        apart: true,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "`hostUsers: false`, `add: [BPF, PERFMON, SYS_PTRACE, SYS_ADMIN]`",
        add: &["BPF", "PERFMON", "SYS_PTRACE", "SYS_ADMIN"],
        mapped: true,
        ..PLAIN
    },
];
