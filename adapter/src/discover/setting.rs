//! A fact about an engine, with its source.

use std::fmt;
use std::path::PathBuf;

/// A value with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Source of the value.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Creates a fact.
    pub fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}

/// Source of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum Origin {
    /// An argument of a process's command line, as written.
    Argument { pid: u32, argument: String },
    /// The command line has no such argument, so the release's default applies.
    NoArgument { pid: u32, argument: &'static str },
    /// A variable in a process's initial environment, as `NAME=value`. Later changes by the process are not visible.
    Environment { pid: u32, variable: String },
    /// The environment has no such variable, so the release's default applies.
    NoVariable { pid: u32, variable: &'static str },
    /// A file of the installed package, at its path in the process's root.
    File(PathBuf),
    /// The path or name of a mapped file.
    Mapped(PathBuf),
    /// Behaviour of every build of that release.
    Release(String),
    /// The connections between its processes.
    Sockets,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument { pid, argument } => write!(f, "`{argument}` of pid {pid}"),
            Self::NoArgument { pid, argument } => write!(f, "pid {pid} has no `{argument}`"),
            Self::Environment { pid, variable } => write!(f, "{variable} in the environment of pid {pid}"),
            Self::NoVariable { pid, variable } => write!(f, "no {variable} in the environment of pid {pid}"),
            Self::File(path) | Self::Mapped(path) => write!(f, "{}", path.display()),
            Self::Release(release) => write!(f, "what {release} does"),
            Self::Sockets => f.write_str("its sockets"),
        }
    }
}
