//! Privileges that a pod may grant, and the results of attach with them.

/// User and privileges of the container's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// As in docs/install.md.
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    /// `capabilities.add`, after `drop: [ALL]`.
    pub(crate) add: &'static [&'static str],
    /// `seccompProfile: RuntimeDefault`, as a runtime older than 2023 has it.
    pub(crate) seccomp: bool,
    pub(crate) place: Place,
    /// The engine runs as a user other than root.
    pub(crate) other_user: bool,
    /// Features that work on Linux 6.6 and later, in the letters of [`super::observed::LETTERS`].
    pub(crate) works: &'static str,
}

/// Namespaces shared with the engine, apart from the PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The pod's network.
    Pod,
    /// `hostPID` with a separate network.
    Node,
    /// The pod's network with a separate PID namespace: neither `--target` nor `shareProcessNamespace`.
    Apart,
    /// The pod's network with `hostUsers: false`: the capabilities have no effect outside its user namespace.
    Mapped,
}

const PLAIN: Level = Level {
    name: "",
    uid: 0,
    add: &[],
    seccomp: false,
    place: Place::Pod,
    other_user: false,
    works: "-------",
};
/// All privileges granted, but the engine's processes are not visible.
pub(crate) const APART: Level = Level {
    name: "a PID namespace of its own, `add: [BPF, PERFMON, SYS_PTRACE]`",
    add: PROBES,
    place: Place::Apart,
    ..PLAIN
};
const PROBES: &[&str] = &["BPF", "PERFMON", "SYS_PTRACE"];
const ALL: &[&str] = &["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"];

/// All levels in the manifests and the documentation.
pub(crate) const LEVELS: [Level; 14] = [
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
        works: "--s----",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE]`",
        add: PROBES,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE]`, the engine is another user's",
        add: PROBES,
        other_user: true,
        works: "--sw---",
        ..PLAIN
    },
    Level {
        name: "root, `add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]`, the engine is another user's",
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
        name: "a DaemonSet's, `add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH]`",
        add: ALL,
        place: Place::Node,
        works: "--sw---",
        ..PLAIN
    },
    Level {
        name: "a DaemonSet's, `add: [SYS_ADMIN, SYS_PTRACE, DAC_READ_SEARCH]`, `RuntimeDefault`",
        add: &["SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"],
        seccomp: true,
        place: Place::Node,
        works: "fhswqdp",
        ..PLAIN
    },
    Level {
        name: "`hostUsers: false`, `add: [BPF, PERFMON, SYS_PTRACE, SYS_ADMIN]`",
        add: &["BPF", "PERFMON", "SYS_PTRACE", "SYS_ADMIN"],
        place: Place::Mapped,
        ..PLAIN
    },
];
