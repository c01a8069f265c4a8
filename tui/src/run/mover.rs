//! Watches the child's folder for sockets, replaces each one immediately, and looks for connections that bypass the relay.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use probe_user::discover::{self, Carries, Engine, Role, Topology, Watcher};
use probe_user::handoff::part;
use probe_user::peers::{Connection, Peers, holders};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use zmq_tap::splice::{Folder, Place, is_ours};

use super::folder::Private;
use crate::known::Known;

/// Interval of checks for bypassing connections after a socket was moved, and of checks for the end.
const TURN: Duration = Duration::from_millis(100);
/// Time after a move during which a peer may still bypass the relay. New connections reach the relay; only those made before the move
/// bypass it.
const SETTLED: Duration = Duration::from_secs(5);
/// Interval of discovery for other hops of the engine, which takes a while to start.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of attempts to identify both ends of a socket. Afterwards its hop keeps the name deduced from messages.
const LOOKS_FOR_NAMES: u32 = 12;
/// Maximum wait for a bypassing connection to pause before it is left alone.
const PAUSE: Duration = Duration::from_secs(2);

/// Message from the mover.
pub(super) enum News {
    /// A socket was replaced by the relay's.
    Moved(UnixListener, Place),
    /// Traffic bypasses the relay, or did for a while.
    Past(String),
    /// Facts about the engine from the child's command line, environment and packages.
    Engine(Known),
    /// Path of a socket in the folder, and the name of its hop.
    Hop(PathBuf, String),
}

/// The watching thread. Dropping this value ends it.
pub(super) struct Mover {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    pub(super) fn start(folder: &Private, child: u32) -> anyhow::Result<(Self, Receiver<News>)> {
        let told = || format!("cannot watch {} for sockets", folder.path().display());
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).with_context(told)?;
        let appears = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, folder.path(), appears).with_context(told)?;
        let (tell, news) = channel();
        let watching = Watching {
            folder: folder.held.clone(),
            place: folder.path().to_owned(),
            child,
            tell,
            sockets: HashMap::new(),
            peers: Peers::here().ok(),
            told: HashSet::new(),
            judged: HashSet::new(),
            moved: None,
            engine: None,
            unnamed: Vec::new(),
        };
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = thread::Builder::new()
            .name("mover".into())
            .spawn(move || watching.run(&watch, &ends))?;
        let thread = Some(thread);
        Ok((Self { end, thread }, news))
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches for sockets panicked");
        }
    }
}

struct Watching {
    folder: Folder,
    place: PathBuf,
    child: u32,
    tell: Sender<News>,
    /// Replaced sockets: names, and the inodes of the replacements.
    sockets: HashMap<String, u64>,
    peers: Option<Peers>,
    /// Messages already sent.
    told: HashSet<String>,
    /// Connections with a known holder: the relay, or one already reported.
    judged: HashSet<Connection>,
    /// Time of the last move.
    moved: Option<Instant>,
    /// Engine facts last sent.
    engine: Option<Known>,
    /// Relayed sockets without a known sender and receiver: name, bound path, and number of attempts so far.
    unnamed: Vec<(String, PathBuf, u32)>,
}

impl Watching {
    fn run(mut self, watch: &OwnedFd, end: &AtomicBool) {
        // Sockets that appeared before the watch started.
        self.look_at_all();
        let mut watcher: Option<Watcher> = None;
        let mut discovered = Instant::now();
        let mut looked = Instant::now();
        while !end.load(Ordering::Relaxed) {
            if let Err(error) = self.take_what_appears(watch) {
                let place = self.place.display();
                return self.say(format!("{place} is not watched for sockets any more: {error}"));
            }
            let settled = self.moved.is_none_or(|at| at.elapsed() >= SETTLED);
            if looked.elapsed() >= if settled { DISCOVER_EVERY } else { TURN } {
                looked = Instant::now();
                self.look_for_connections_past();
            }
            if discovered.elapsed() >= DISCOVER_EVERY {
                discovered = Instant::now();
                match &mut watcher {
                    Some(watcher) => drop(watcher.poll()),
                    None => watcher = Watcher::new(discover::Options::default()).ok(),
                }
                if let Some(watcher) = &watcher {
                    self.look_at_engine(watcher.topology());
                    self.look_for_names(watcher.topology());
                }
            }
        }
    }

    /// Waits for at most one turn.
    fn take_what_appears(&mut self, watch: &OwnedFd) -> Result<(), Errno> {
        let turn = Timespec {
            tv_sec: 0,
            tv_nsec: TURN.as_nanos() as i64,
        };
        match poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&turn)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(watch, &mut buffer);
        let mut names = Vec::new();
        loop {
            match reader.next() {
                // An event without a name is a queue overflow, which requires a full scan.
                Ok(event) => names.push(event.file_name().map(|name| name.to_string_lossy().into_owned())),
                Err(Errno::WOULDBLOCK) => break,
                Err(errno) => return Err(errno),
            }
        }
        for name in names {
            match name {
                Some(name) => self.look_at(&name),
                None => self.look_at_all(),
            }
        }
        Ok(())
    }

    fn look_at_all(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.place) else {
            return;
        };
        for entry in entries.flatten() {
            self.look_at(&entry.file_name().to_string_lossy());
        }
    }

    fn look_at(&mut self, name: &str) {
        let folder = self.folder.clone();
        let inode = |name: &str| {
            let found = std::fs::symlink_metadata(folder.at(name)).ok()?;
            found.file_type().is_socket().then(|| found.ino())
        };
        let Some(found) = inode(name).filter(|_| !is_ours(name)) else {
            return;
        };
        // The move itself triggers an event for the relay's own socket, which is ignored.
        if self.sockets.get(name) == Some(&found) {
            return;
        }
        match Place::take(&self.folder, name) {
            Ok((listener, place)) => {
                self.sockets.insert(name.to_owned(), inode(name).unwrap_or_default());
                self.unnamed.push((name.to_owned(), place.aside(), 0));
                let _ = self.tell.send(News::Moved(listener, place));
                self.moved = Some(Instant::now());
                self.look_for_connections_past();
            }
            Err(error) => self.say(format!("{name}: not relayed: {error}")),
        }
    }

    /// Finds peers that connected between a socket's appearance and its move, and makes them reconnect.
    fn look_for_connections_past(&mut self) {
        let Some(peers) = &self.peers else { return };
        let mut open: Vec<(String, Connection)> = Vec::new();
        for name in self.sockets.keys() {
            let found = peers.connected_to(&self.place.join(name)).unwrap_or_default();
            open.extend(found.into_iter().map(|connection| (name.clone(), connection)));
        }
        self.judged
            .retain(|judged| open.iter().any(|(_, connection)| connection == judged));
        open.retain(|(_, connection)| !self.judged.contains(connection));
        if open.is_empty() {
            return;
        }
        let inodes: Vec<u64> = open.iter().map(|(_, connection)| connection.connector).collect();
        // Expensive, since it reads every process's descriptors; done only for new connections.
        let holders = holders(&inodes);
        let us = std::process::id();
        for (name, connection) in open {
            let Some(held) = holders.get(&connection.connector) else {
                continue;
            };
            self.judged.insert(connection);
            if held.iter().all(|holder| holder.pid != us) {
                self.lead_back(&name, connection, held[0]);
            }
        }
    }

    fn lead_back(&mut self, name: &str, connection: Connection, holder: probe_user::peers::Holder) {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", holder.pid)).unwrap_or_default();
        let who = format!("{name}: process {} ({})", holder.pid, comm.trim_end());
        if !self.told.insert(format!("{who} {}", connection.connector)) {
            return;
        }
        match part(holder, connection.connector, PAUSE) {
            Ok(_) => self.say(format!(
                "{who} had connected before the relay started and was reconnected; messages that it sent before are not observed"
            )),
            Err(error) => self.say(format!("{who} goes past the relay: {error}")),
        }
    }

    /// Updates the engine facts, and reports hops whose sockets are outside the folder.
    fn look_at_engine(&mut self, topology: &Topology) {
        let of_child = |engine: &&Engine| engine.processes.iter().any(|p| descends(p.id.pid, self.child));
        if let Some(known) = topology
            .engines
            .iter()
            .find(of_child)
            .map(|engine| Known::from(engine.event()))
            && self.engine.as_ref() != Some(&known)
        {
            self.engine = Some(known.clone());
            let _ = self.tell.send(News::Engine(known));
        }
        let inside = format!("ipc://{}/", self.place.display());
        let past: Vec<String> = topology
            .engines
            .iter()
            .filter(of_child)
            .flat_map(|engine| &engine.hops)
            .filter(|hop| hop.carries != Carries::Requests && !hop.endpoint.starts_with(&inside))
            .map(|hop| {
                format!(
                    "{} over {} goes past the relay: it is no socket file in TMPDIR",
                    hop.name(),
                    hop.endpoint
                )
            })
            .collect();
        for told in past {
            if self.told.insert(told.clone()) {
                self.say(told);
            }
        }
    }

    /// Finds the processes at both ends of the relay, which determine the hop names.
    fn look_for_names(&mut self, topology: &Topology) {
        let Some(peers) = &self.peers else { return };
        let us = std::process::id();
        let role = |pid: u32| {
            topology
                .engines
                .iter()
                .find_map(|engine| engine.process(pid))
                .map(|p| p.role)
        };
        self.unnamed.retain_mut(|(name, bound, looks)| {
            let path = self.place.join(&*name);
            let inodes = |of: &Path, end: fn(&Connection) -> u64| -> Vec<u64> {
                let found = peers.connected_to(of).unwrap_or_default();
                found.iter().map(end).collect()
            };
            let senders = inodes(bound, |connection| connection.connector);
            let receivers = inodes(&path, |connection| connection.acceptor);
            if senders.is_empty() || receivers.is_empty() {
                return true;
            }
            *looks += 1;
            // Reads every process's descriptors.
            let held = holders(&[senders.clone(), receivers.clone()].concat());
            let roles = |inodes: &[u64]| -> BTreeSet<Role> {
                let holders = inodes.iter().filter_map(|inode| held.get(inode)).flatten();
                holders
                    .filter(|holder| holder.pid != us)
                    .filter_map(|holder| role(holder.pid))
                    .collect()
            };
            let (from, to) = (roles(&senders), roles(&receivers));
            if let (1, Some(from), 1, Some(to)) = (from.len(), from.first(), to.len(), to.first()) {
                let _ = self.tell.send(News::Hop(path, format!("{from}->{to}")));
                return false;
            }
            *looks < LOOKS_FOR_NAMES
        });
    }

    fn say(&self, told: String) {
        let _ = self.tell.send(News::Past(told));
    }
}

/// Returns whether `pid` is `ancestor` or one of its descendants.
fn descends(mut pid: u32, ancestor: u32) -> bool {
    let parent = |pid: u32| -> io::Result<Option<u32>> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        Ok(line.and_then(|parent| parent.trim().parse().ok()))
    };
    // Deeper than any process tree.
    for _ in 0..1_000 {
        if pid == ancestor {
            return true;
        }
        match parent(pid) {
            Ok(Some(parent)) if parent > 0 => pid = parent,
            _ => return false,
        }
    }
    false
}
