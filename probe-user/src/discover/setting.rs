//! A fact about an engine, together with where it was read.

use std::fmt;
use std::path::PathBuf;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// What holds.
    pub value: T,
    /// How we know.
    pub origin: Origin,
}

impl<T> Setting<T> {
    pub(crate) fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}

/// Where a fact was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An argument of a process's command line.
    Argument {
        /// Whose.
        pid: u32,
        /// As it stands there.
        argument: String,
    },
    /// The command line was read and has no such argument, so the release's default holds.
    NoArgument {
        /// Whose.
        pid: u32,
        /// The one that would have changed it.
        argument: &'static str,
    },
    /// A variable a process was started with. Changes it made to its own environment later do not show.
    Environment {
        /// Whose.
        pid: u32,
        /// Name and value, `NAME=value`.
        variable: String,
    },
    /// The environment was read and has no such variable, so the release's default holds.
    NoVariable {
        /// Whose.
        pid: u32,
        /// The one that would have changed it.
        variable: &'static str,
    },
    /// A file of the installed package, as the process sees it.
    File(PathBuf),
    /// The path or name of a mapped file.
    Mapped(PathBuf),
    /// Every build of that release does it.
    Release(String),
    /// The way its processes are connected.
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
