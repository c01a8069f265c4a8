//! A connection between two processes of an engine, with its content and direction.

use trace::path::{Ends, UNKNOWN};

use super::role::{Role, RoleSource};

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// Process that holds it.
    pub pid: u32,
    /// Number of its descriptor.
    pub fd: u32,
    /// Inode of the socket.
    pub inode: u64,
    /// Role of the process.
    pub role: Role,
}

/// Content of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carries {
    /// Tokens on the way to the client.
    Output,
    /// Requests on the way to the source.
    Requests,
    /// Output or control messages, which cannot be distinguished from outside.
    Unknown,
}

/// Certainty of a hop's direction and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Both roles are stated, and the engine connects the two in only one way.
    Certain,
    /// Derived from roles or connections that were inferred themselves.
    Inferred,
}

impl Confidence {
    /// Certainty of a hop between roles with these sources.
    pub fn of_sources(sources: [RoleSource; 2]) -> Self {
        if sources.iter().all(|source| *source < RoleSource::Sockets) { Self::Certain } else { Self::Inferred }
    }
}

/// A connection between two processes of an engine, in the direction of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopSeen {
    /// Sending end; `None` when only the other end is visible.
    pub from: Option<End>,
    /// Receiving end; `None` when only the other end is visible.
    pub to: Option<End>,
    /// Endpoint in ZMQ's notation. The receiver binds on the output path, the sender on the request path.
    pub endpoint: String,
    /// Content.
    pub carries: Carries,
    /// Certainty.
    pub confidence: Confidence,
}

impl HopSeen {
    /// Whether this is the first hop of the token path.
    pub fn starts_at_source(&self) -> bool {
        self.carries != Carries::Requests && self.from.is_some_and(|end| end.role.is_source())
    }

    /// Whether this is the last hop of the token path, whose receiver responds to clients.
    pub fn ends_at_receiver(&self) -> bool {
        self.carries != Carries::Requests && self.to.is_some_and(|end| end.role.answers_clients())
    }

    /// Roles at its ends, with `?` for an invisible end.
    pub fn ends(&self) -> Ends<&'static str> {
        Ends::new(role_word(self.from), role_word(self.to))
    }
}

/// Name of the role at an end; `?` if the end is not visible.
fn role_word(end: Option<End>) -> &'static str {
    end.map_or(UNKNOWN, |end| end.role.word())
}
