//! Role of a process on the token path, with the source of that knowledge.

use std::fmt;

/// Function of a role on the token path, in terms that hold for every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Function {
    /// Generates tokens: the start of the token path.
    Source,
    /// Receives tokens and sends them on.
    Intermediate,
    /// Receives tokens and responds to clients: the end of the token path.
    Receiver,
    /// Sends and receives no tokens.
    Control,
}

/// Role of a process, named by its engine. Roles are ordered by their position on the token path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role {
    position: u8,
    word: &'static str,
    function: Function,
    main: bool,
}

impl Role {
    /// Creates a role. `position` orders the roles of one engine along the token path.
    pub const fn new(position: u8, word: &'static str, function: Function) -> Self {
        Self { position, word, function, main: false }
    }

    /// Marks the role of the engine's main process, which starts the others.
    #[must_use]
    pub const fn main(self) -> Self {
        Self { main: true, ..self }
    }

    /// Name on screen, in hop names and in `--pid PID=ROLE`.
    pub const fn word(self) -> &'static str {
        self.word
    }

    /// Function on the token path.
    pub const fn function(self) -> Function {
        self.function
    }

    /// Whether it is the role of the engine's main process.
    pub const fn is_main(self) -> bool {
        self.main
    }

    /// Whether it generates the tokens.
    pub const fn is_source(self) -> bool {
        matches!(self.function, Function::Source)
    }

    /// Whether it responds to clients.
    pub const fn answers_clients(self) -> bool {
        matches!(self.function, Function::Receiver)
    }

    /// Whether it sends tokens to another process of the engine.
    pub const fn sends_output(self) -> bool {
        matches!(self.function, Function::Source | Function::Intermediate)
    }

    /// Whether it also forwards requests to the scheduler: a main process that leaves the clients to others.
    pub const fn forwards_requests(self) -> bool {
        self.main && matches!(self.function, Function::Intermediate)
    }

    /// Whether it receives tokens from another process of the engine.
    pub const fn receives_output(self) -> bool {
        matches!(self.function, Function::Intermediate | Function::Receiver)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word)
    }
}

/// Source of a role, from the most to the least reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleSource {
    /// The user named it (`--pid PID=ROLE`).
    Hand,
    /// The process title (`setproctitle`).
    Title,
    /// The command line.
    CommandLine,
    /// It started processes with known roles.
    Children,
    /// Its connections match the role.
    Sockets,
}

impl fmt::Display for RoleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hand => "set with --pid",
            Self::Title => "title",
            Self::CommandLine => "command line",
            Self::Children => "its children",
            Self::Sockets => "its sockets",
        })
    }
}

/// Rank of a scheduler according to its title; `None` for parts that the title omits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Data-parallel replica.
    pub dp: Option<u16>,
    /// Pipeline stage.
    pub pp: Option<u16>,
    /// Tensor-parallel rank.
    pub tp: Option<u16>,
    /// Expert-parallel rank.
    pub ep: Option<u16>,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("DP", self.dp), ("PP", self.pp), ("TP", self.tp), ("EP", self.ep)];
        let words: Vec<String> =
            parts.iter().filter_map(|(axis, rank)| rank.map(|number| format!("{axis}{number}"))).collect();
        f.pad(&words.join(" "))
    }
}
