//! The trait by which discovery recognises an engine.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use trace::engine::{Mode, Version, Waiter};
use trace::event::Kind;

use super::hop::{Carries, Confidence, HopSeen};
use super::launch::{FlagName, Flags};
use super::python_version::PythonVersion;
use super::role::{Rank, Role, RoleSource};
use super::setting::{Origin, Setting};
use crate::requests::ParseRequests;

/// A role with its source.
pub type RoleWithSource = (Role, RoleSource);

/// Recognises the processes of one engine, or of a program that runs another engine inside (which has no roles of its own).
pub trait Recognise: fmt::Debug + Send + Sync {
    /// Word in records and tables.
    fn name(&self) -> &'static str;

    /// Name in headlines.
    fn title(&self) -> &'static str;

    /// The Python package whose version is the release.
    fn package(&self) -> Option<Package> {
        None
    }

    /// Roles in the order of the token path.
    fn roles(&self) -> &'static [Role] {
        &[]
    }

    /// Role with this other name, in lower case with dashes.
    fn role_with_alias(&self, _word: &str) -> Option<Role> {
        None
    }

    /// Role and rank according to a process title (`setproctitle`).
    fn role_of_title(&self, _title: &str) -> Option<(Role, Rank)> {
        None
    }

    /// Role of a main process with this command line, and the command for display without its arguments.
    fn recognise_command_line(&self, _argv: &[String]) -> Option<(Role, &'static str)> {
        None
    }

    /// Flags of the launcher that affect how tokens are sent.
    fn flags(&self) -> &'static [FlagName] {
        &[]
    }

    /// Environment variables that affect how tokens are sent.
    fn variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether a process that has mapped this file connects to its clients, instead of listening for them.
    fn connects_to_clients(&self, _mapped: &Path) -> bool {
        false
    }

    /// Whether this command starts a frontend: a process between such a process and the clients.
    fn is_frontend(&self, _argv: &[String]) -> bool {
        false
    }

    /// The server that a source may run inside its own process.
    fn inner_server(&self) -> Option<InnerServer> {
        None
    }

    /// Parses a log line of such a process: the id of a response stream, and the matching request id on the hops.
    fn ids_in_log<'a>(&self, _line: &'a str) -> Option<(&'a str, &'a str)> {
        None
    }

    /// Whether this message from a client over such a connection cancels the stream.
    fn cancels(&self, _message: &[u8]) -> bool {
        false
    }

    /// Parser of the requests that such a process reads from frontends.
    fn request_parser(&self) -> Option<Box<dyn ParseRequests>> {
        None
    }

    /// Port on which a server with this command line serves clients.
    fn served_port(&self, _argv: &[String]) -> Option<u16> {
        None
    }

    /// Directory or Hub name of the model that a command line names.
    fn model<'a>(&self, _argv: &'a [String]) -> Option<&'a str> {
        None
    }

    /// Directory or Hub name of the tokenizer that a command line names, for an engine whose messages carry no text.
    fn tokenizer<'a>(&self, _argv: &'a [String]) -> Option<&'a str> {
        None
    }

    /// Infers missing roles from parents and connections, and enters them in `_roles`. By default infers none.
    fn infer_roles(&self, _nodes: &[Node], _edges: &[Edge], _roles: &mut [Option<RoleWithSource>]) {}

    /// Content and direction of each wire, which is a connection between two processes. `None` for a wire that carries neither output nor
    /// requests, or whose processes have no role of this engine. By default a wire carries output from its connector to its acceptor, if
    /// the one sends output and the other receives it.
    fn hops(&self, wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
        wires.iter().map(|wire| read_output_wire(wire, roles, self.roles())).collect()
    }

    /// Settings of the engine as a whole.
    fn settings(&self, _evidence: &Evidence<'_>) -> Settings {
        Settings::default()
    }

    /// Role of a process that sends messages of this kind, if no other role sends them.
    fn sender_role_of(&self, _kind: Kind) -> Option<Role> {
        None
    }

    /// Role of a process that receives tokens, if nothing else is known of it.
    fn receiver(&self) -> Option<Role> {
        self.roles().iter().copied().find(|role| role.answers_clients())
    }
}

/// A server inside a source's process, which answers its clients. The source passes each batch of output to a method of a `CPython`
/// extension; the first argument is a bytes object with a message.
#[derive(Clone, Copy, Debug)]
pub struct InnerServer {
    /// Role of the server in hop names.
    pub role: Role,
    /// Whether this mapped file is the extension.
    pub is_extension: fn(&Path) -> bool,
    /// Names of the method in all releases.
    pub methods: &'static [&'static str],
}

/// A known engine; two are equal if they have the same name.
#[derive(Clone, Copy)]
pub struct EngineKind {
    engine: &'static dyn Recognise,
}

impl EngineKind {
    /// Makes an entry of a registry.
    pub const fn new(engine: &'static dyn Recognise) -> Self {
        Self { engine }
    }
}

impl Deref for EngineKind {
    type Target = dyn Recognise;

    fn deref(&self) -> &Self::Target {
        self.engine
    }
}

impl PartialEq for EngineKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for EngineKind {}

impl fmt::Debug for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Registry of known engines. Where a process matches several, the first decides.
pub type Engines = &'static [EngineKind];

/// Names of the roles of these engines, each once, for error messages.
pub fn role_words(engines: Engines) -> String {
    let mut words: Vec<&str> = Vec::new();
    for role in engines.iter().flat_map(|engine| engine.roles()) {
        if !words.contains(&role.word()) {
            words.push(role.word());
        }
    }
    words.join(", ")
}

/// The Python package of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Name as in `dist-info`, in lower case with underscores.
    pub name: &'static str,
    /// Files of a source tree that assign `__version__`, relative to an import directory.
    pub source: &'static [&'static str],
}

/// Release of an engine's package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRelease {
    /// The engine.
    pub engine: EngineKind,
    /// Its release.
    pub release: Setting<String>,
}

/// Program that started an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Engine that recognised the command.
    pub engine: EngineKind,
    /// Role of the process.
    pub role: Role,
    /// Command for display.
    pub command: &'static str,
}

impl Launcher {
    /// The launcher of the first engine that recognises the command line as that of its main process. `None` if none does.
    pub fn of_command(argv: &[String], engines: &[EngineKind]) -> Option<Self> {
        engines.iter().find_map(|&engine| {
            let (role, command) = engine.recognise_command_line(argv)?;
            Some(Self { engine, role, command })
        })
    }

    /// Name of the launcher.
    pub fn word(&self) -> &'static str {
        self.engine.name()
    }
}

/// Properties of a process that inference uses.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Role from the user, the title or the command.
    pub stated: Option<RoleWithSource>,
    /// Index of the process that started it.
    pub parent: Option<usize>,
    /// Whether the process may use ZMQ.
    pub zmq: bool,
}

/// A connection: the process that connected, and the one that accepted.
pub type Edge = (usize, usize);

/// A connection between processes, given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire<'a> {
    /// Process that connected; `None` if it is not visible.
    pub connector: Option<usize>,
    /// Process that bound the endpoint.
    pub acceptor: usize,
    /// Endpoint in ZMQ's notation.
    pub endpoint: &'a str,
}

/// Interpretation of a wire. `reversed`: the content flows from the side that bound to the side that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Direction.
    pub reversed: bool,
    /// Content.
    pub carries: Carries,
    /// Certainty.
    pub confidence: Confidence,
}

impl Reading {
    /// Content that flows from the side that connected.
    pub const fn forward(carries: Carries, confidence: Confidence) -> Self {
        Self { reversed: false, carries, confidence }
    }

    /// Requests that flow from the side that bound.
    pub const fn requests_back(confidence: Confidence) -> Self {
        Self { reversed: true, carries: Carries::Requests, confidence }
    }
}

/// Role of a process if it is one of `roles`. `None` for a process of another engine.
pub fn role_among(roles: &[Role], of_process: Option<RoleWithSource>) -> Option<RoleWithSource> {
    of_process.filter(|(role, _)| roles.contains(role))
}

/// Interprets a wire from a process that sends output to one that receives it. `None` for any other wire, if the connecting process is not
/// visible, and if the role of either process is not one of `roles_of_engine`.
fn read_output_wire(wire: &Wire<'_>, roles: &[Option<RoleWithSource>], roles_of_engine: &[Role]) -> Option<Reading> {
    let (connector, connector_source) = role_among(roles_of_engine, roles[wire.connector?])?;
    let (acceptor, acceptor_source) = role_among(roles_of_engine, roles[wire.acceptor])?;
    if !connector.sends_output() || !acceptor.receives_output() {
        return None;
    }
    let confidence = Confidence::of_sources([connector_source, acceptor_source]);
    Some(Reading::forward(Carries::Output, confidence))
}

/// Properties of an engine's main process, and of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Process id.
    pub pid: u32,
    /// Command that started it.
    pub launcher: Option<Launcher>,
    /// Flags of the command.
    pub flags: &'a Flags,
    /// Names and values of the relevant variables; `None` when the environment is unreadable.
    pub environment: Option<&'a [(String, String)]>,
    /// Releases of packages on its import path.
    pub releases: &'a [PackageRelease],
    /// Version of its interpreter.
    pub python: Option<&'a Setting<PythonVersion>>,
    /// Hops of the engine.
    pub hops: &'a [HopSeen],
}

impl Evidence<'_> {
    /// Whether this engine's command started it.
    pub fn is_launched_by(&self, engine: &dyn Recognise) -> bool {
        self.launcher.is_some_and(|launcher| launcher.word() == engine.name())
    }

    /// Release of an engine's package.
    pub fn release(&self, engine: &dyn Recognise) -> Option<Version> {
        let installed = self.releases.iter().find(|known| known.engine.name() == engine.name());
        installed.and_then(|known| Version::parse_package_version(&known.release.value))
    }

    /// Value of an environment variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment?.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Origin of a setting that an argument determines.
    pub fn argument(&self, argument: &str) -> Origin {
        Origin::Argument { pid: self.pid, argument: argument.to_owned() }
    }
}

/// Settings of an engine that affect how tokens are sent. Unknown ones are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Serialisation format of frames.
    pub codec: Option<Setting<Codec>>,
    /// Whether the scheduler sends token ids directly to the process that responds to clients.
    pub skip_tokenizer_init: Option<Setting<bool>>,
    /// Side of a disaggregated pair.
    pub disaggregation: Option<Setting<Disaggregation>>,
    /// Output mode.
    pub mode: Option<Setting<Mode>>,
    /// Behaviour of a waiter with several queued chunks.
    pub waiter: Option<Setting<Waiter>>,
    /// Number of event-loop turns from the wake-up of a waiter to its run.
    pub turnaround: Option<Setting<u8>>,
    /// Whether responses to clients contain exactly the text of the frames: no parser moves or removes any.
    pub exact_text: Option<Setting<bool>>,
    /// The variable, as `NAME=value`, that makes output bypass ZMQ.
    pub avoids_zmq: Option<String>,
}

/// Serialisation format of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// `pickle`.
    Pickle,
    /// `msgpack`.
    Msgpack,
}

impl Codec {
    /// Name of the codec.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pickle => "pickle",
            Self::Msgpack => "msgpack",
        }
    }
}

/// Side of an engine in a disaggregated pair of servers, named by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disaggregation {
    /// Name of the side: `prefill`, `decode`.
    pub word: &'static str,
    /// Description of the output on its hops.
    pub sends: &'static str,
}
