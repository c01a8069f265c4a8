//! Selects the listeners of an engine's token path to move, and locates their socket files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use adapter::discover::Carries;
use anyhow::{Context, bail, ensure};
use confine::Account;
use probe_user::discover::Engine;
use zmq_tap::splice::{Folder, HeldFile, HeldPath, read_socket_type};

use crate::account;

/// Type of the sockets that can be moved: their senders keep messages while they reconnect. A ROUTER discards messages for a peer that
/// reconnects.
const MOVABLE_SOCKET_TYPE: &str = "PULL";

/// A listener to be moved.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Names of the hops that end at it.
    names: Vec<String>,
    /// Path that the engine bound.
    pub bound: PathBuf,
    /// Pid of the listening process.
    pub receiver: u32,
    /// Its folder.
    pub folder: Folder,
    /// File name of the socket in the folder.
    pub file: String,
    /// The socket file.
    pub socket: HeldFile,
}

impl Planned {
    /// Name of the hop; `None` if several hops end at this listener.
    pub fn name(&self) -> Option<&str> {
        match self.names.as_slice() {
            [name] => Some(name),
            _ => None,
        }
    }

    /// Names of all its hops, for display.
    pub fn title(&self) -> String {
        self.names.join(", ")
    }

    /// Endpoint that the engine bound.
    pub fn endpoint(&self) -> String {
        format!("ipc://{}", self.bound.display())
    }
}

/// Listeners of an engine's token path, with their files. No connection was made.
#[derive(Debug)]
pub struct Located {
    found: Vec<Planned>,
    /// Why other listeners of the engine are not moved.
    unmovable: Vec<String>,
    /// User of the engine's receivers, who owns the sockets.
    pub account: Account,
}

/// The listeners of [`Located`] that can be moved, and why the others cannot.
#[derive(Debug)]
pub struct Movable {
    /// Those that can be moved.
    pub planned: Vec<Planned>,
    /// Why each of the others cannot.
    pub unmovable: Vec<String>,
}

/// Where a process listens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Listener<'a> {
    receiver: u32,
    endpoint: &'a str,
}

impl<'a> Listener<'a> {
    /// Path of the socket; an error says why it cannot be moved.
    fn movable_path(self, engine: &Engine) -> Result<&'a Path, String> {
        let Self { receiver, endpoint } = self;
        let has_libzmq = engine.process_with_pid(receiver).is_some_and(|process| process.libzmq.is_some());
        if !has_libzmq {
            let why = "has no libzmq, so its idleness is not observed; use tokengap attach";
            return Err(format!("process {receiver} {why}"));
        }
        let Some(path) = endpoint.strip_prefix("ipc://") else {
            return Err("only ipc sockets can be moved; use tokengap tap, or attach".to_owned());
        };
        if path.starts_with('@') {
            return Err("an abstract name has no file to move; use tokengap tap".to_owned());
        }
        Ok(Path::new(path))
    }
}

impl Located {
    /// Finds the sockets on which the engine's processes listen for tokens, or only those of hops named `wanted_hop`. Notes why each other
    /// one cannot be moved. Fails if none can, or if they belong to several users.
    pub fn find(engine: &Engine, wanted_hop: Option<&str>) -> anyhow::Result<Self> {
        let mut unmovable = Vec::new();
        let mut found = Vec::new();
        let mut accounts = Vec::new();
        for (listener, names) in hop_names_by_listener(engine, &mut unmovable) {
            let Listener { receiver, endpoint } = listener;
            if wanted_hop.is_some_and(|wanted| !names.iter().any(|name| name == wanted)) {
                unmovable.push(format!("{} ({endpoint}): not selected", names.join(", ")));
                continue;
            }
            let path = match listener.movable_path(engine) {
                Ok(path) => path,
                Err(why) => {
                    unmovable.push(format!("{endpoint}: {why}"));
                    continue;
                }
            };
            account::require_same_mounts_and_root(receiver)?;
            let account = account::account_of_process(receiver)?;
            match open_planned_socket(names, path, receiver, account) {
                Ok(planned) => {
                    found.push(planned);
                    accounts.push(account);
                }
                Err(why) => unmovable.push(format!("{why:#}")),
            }
        }
        let Some(&account) = accounts.first() else { return fail_with_nothing_to_move(&unmovable) };
        // tokengap takes the rights of this user, so it cannot move the sockets of another.
        ensure!(
            accounts.iter().all(|other| *other == account),
            "the engine's processes run as several users, and tokengap moves the sockets of one: use --hop, or tokengap attach"
        );
        Ok(Self { found, unmovable, account })
    }

    /// Folders of the sockets.
    pub fn folders(&self) -> Vec<Folder> {
        self.found.iter().map(|listener| listener.folder.clone()).collect()
    }

    /// Selects the listeners that can be moved. Connects to each, to read its socket type.
    pub fn select_movable(self) -> anyhow::Result<Movable> {
        let Self { found, mut unmovable, .. } = self;
        let mut planned = Vec::new();
        for listener in found {
            let endpoint = listener.endpoint();
            match read_socket_type(&listener.socket) {
                Ok(socket_type) if socket_type == MOVABLE_SOCKET_TYPE => planned.push(listener),
                Ok(socket_type) => {
                    unmovable.push(format!(
                        "{endpoint}: its socket type {socket_type} loses messages while peers reconnect"
                    ));
                }
                Err(error) => unmovable.push(format!("{endpoint}: cannot read its ZMQ socket type: {error}")),
            }
        }
        if planned.is_empty() {
            return fail_with_nothing_to_move(&unmovable);
        }
        Ok(Movable { planned, unmovable })
    }
}

/// Names of the hops of an engine's token path, by the listener at which they end. Hops without a visible receiver are added to
/// `unmovable_to_report`.
fn hop_names_by_listener<'e>(
    engine: &'e Engine,
    unmovable_to_report: &mut Vec<String>,
) -> BTreeMap<Listener<'e>, Vec<String>> {
    let mut names_by_listener: BTreeMap<Listener<'_>, Vec<String>> = BTreeMap::new();
    for hop in engine.hops.iter().filter(|hop| hop.carries != Carries::Requests) {
        match hop.to {
            // A receiver that gets no output is not on the path of tokens.
            Some(to) if !to.role.receives_output() => {}
            Some(to) => {
                let listener = Listener { receiver: to.pid, endpoint: &hop.endpoint };
                names_by_listener.entry(listener).or_default().push(hop.ends().to_string());
            }
            None => unmovable_to_report.push(format!("{}: its receiver is not visible", hop.endpoint)),
        }
    }
    // Several senders of one role connect to one listener.
    for names in names_by_listener.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    names_by_listener
}

/// Always returns an error, which lists why each listener cannot be moved.
fn fail_with_nothing_to_move<T>(unmovable: &[String]) -> anyhow::Result<T> {
    let reasons = unmovable.join("\n  ");
    let separator = if reasons.is_empty() { "" } else { ":\n  " };
    bail!("no hop to move{separator}{reasons}")
}

/// Opens the socket file that process `receiver_pid` of user `account` bound as `path`. Fails if the file belongs to another user.
fn open_planned_socket(
    hop_names: Vec<String>,
    path: &Path,
    receiver_pid: u32,
    account: Account,
) -> anyhow::Result<Planned> {
    let no_name = || format!("{} is not the name of a socket file", path.display());
    let parent = path.parent().with_context(no_name)?;
    let file = path.file_name().and_then(|name| name.to_str()).with_context(no_name)?;
    // The path is opened as the process sees it, which may run in a container.
    let base = if parent.is_absolute() { "root" } else { "cwd" };
    let folder = Folder::open_in_root(Path::new(&format!("/proc/{receiver_pid}/{base}/")), parent);
    let folder =
        folder.with_context(|| format!("cannot open the folder {} of process {receiver_pid}", parent.display()))?;
    let socket = HeldPath::find_socket(&folder, file)?;
    ensure!(
        socket.owner_uid() == account.user,
        "{} belongs to user {}, and process {receiver_pid} runs as user {}",
        path.display(),
        socket.owner_uid(),
        account.user
    );
    Ok(Planned {
        names: hop_names,
        bound: path.to_owned(),
        receiver: receiver_pid,
        folder,
        file: file.to_owned(),
        socket,
    })
}
