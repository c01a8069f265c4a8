//! Selects the listeners of an engine's token path to move, and locates their socket files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use probe_user::discover::{Carries, Engine};
use zmq_tap::splice::{Folder, socket_type};

/// Type of the sockets that can be moved: their senders keep messages while they reconnect. A ROUTER discards messages for a peer that
/// reconnects.
const MOVABLE: &str = "PULL";

/// A listener to be moved.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// Names of the hops that end at it.
    names: Vec<String>,
    /// Path that the engine bound.
    pub(crate) bound: PathBuf,
    /// Pid of the listening process.
    pub(crate) receiver: u32,
    /// Path of its folder from here, across mount namespaces.
    pub(crate) folder: PathBuf,
    /// File name of the socket in the folder.
    pub(crate) file: String,
}

impl Planned {
    /// Name of the hop; `None` if several hops end at this listener.
    pub(crate) fn name(&self) -> Option<&str> {
        match self.names.as_slice() {
            [name] => Some(name),
            _ => None,
        }
    }

    /// Names of all its hops, for display.
    pub(crate) fn title(&self) -> String {
        self.names.join(", ")
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("ipc://{}", self.bound.display())
    }

    pub(crate) fn open(&self) -> anyhow::Result<Folder> {
        let shown = self.bound.parent().unwrap_or(Path::new("/"));
        Ok(Folder::open(&self.folder, shown)?)
    }
}

/// Listeners of `engine`'s token path, or only those of hops named `wanted`.
pub(crate) fn plan(engine: &Engine, wanted: Option<&str>) -> anyhow::Result<Vec<Planned>> {
    let mut listeners: BTreeMap<(u32, &str), Vec<String>> = BTreeMap::new();
    let mut left = Vec::new();
    for hop in engine.hops.iter().filter(|hop| hop.carries != Carries::Requests) {
        match hop.to {
            Some(to) if !to.role.receives_output() => {}
            Some(to) => listeners.entry((to.pid, &hop.endpoint)).or_default().push(hop.ends().to_string()),
            None => left.push(format!("{}: its receiver is not visible", hop.endpoint)),
        }
    }
    let mut planned = Vec::new();
    for ((receiver, endpoint), mut names) in listeners {
        names.sort_unstable();
        names.dedup();
        if wanted.is_some_and(|wanted| !names.iter().any(|name| name == wanted)) {
            left.push(format!("{} ({endpoint}): not selected", names.join(", ")));
            continue;
        }
        if engine.process(receiver).is_none_or(|process| process.libzmq.is_none()) {
            left.push(format!(
                "{endpoint}: process {receiver} has no libzmq, so its idleness is not observed; use tokengap attach"
            ));
            continue;
        }
        match endpoint.strip_prefix("ipc://") {
            Some(path) if !path.starts_with('@') => {
                let one = reach(names, Path::new(path), receiver)?;
                match one.open().and_then(|folder| Ok(socket_type(&folder, &one.file)?)) {
                    Ok(kind) if kind == MOVABLE => planned.push(one),
                    Ok(kind) => {
                        left.push(format!("{endpoint}: its socket type {kind} loses messages while peers reconnect"));
                    }
                    Err(why) => left.push(why.to_string()),
                }
            }
            Some(_) => left.push(format!("{endpoint}: an abstract name has no file to move; use tokengap tap")),
            None => left.push(format!("{endpoint}: only ipc sockets can be moved; use tokengap tap, or attach")),
        }
    }
    if planned.is_empty() {
        let left = left.join("\n  ");
        bail!("no hop to move{}{left}", if left.is_empty() { "" } else { ":\n  " });
    }
    for left in left {
        errln!("tokengap: not changed: {left}");
    }
    Ok(planned)
}

/// Locates the socket file that process `pid` bound as `path`.
fn reach(names: Vec<String>, path: &Path, pid: u32) -> anyhow::Result<Planned> {
    let parts = path.parent().zip(path.file_name().and_then(|name| name.to_str()));
    let (parent, file) = parts.with_context(|| format!("{} is not the name of a socket file", path.display()))?;
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt"));
    let elsewhere = namespace(&pid.to_string()).ok() != namespace("self").ok();
    let folder = match parent.strip_prefix("/") {
        Ok(inner) if elsewhere => Path::new(&format!("/proc/{pid}/root")).join(inner),
        Ok(_) => parent.to_owned(),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(parent),
    };
    Ok(Planned { names, bound: path.to_owned(), receiver: pid, folder, file: file.to_owned() })
}
