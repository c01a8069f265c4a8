//! Watches the child's folder for sockets, replaces each one immediately, and looks for connections that bypass the relay.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adapter::discover::{Carries, Role};
use anyhow::Context;
use foreign::kernel;
use probe_user::discover::{self, Engine, Topology, Watcher};
use probe_user::handoff::disconnect_sender;
use probe_user::peers::{Holder, PeerConnection, Peers, find_socket_holders};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use trace::path::Ends;
use zmq_tap::splice::{Folder, HeldPath, is_made_by_tokengap};

use super::folder::PrivateFolder;

/// Interval of checks for bypassing connections after a socket was moved, and of checks for the end.
const TURN: Duration = Duration::from_millis(100);
/// Time after a move during which a peer may still bypass the relay. New connections reach the relay; only those made before the move
/// bypass it.
const SETTLED: Duration = Duration::from_secs(5);
/// Interval of discovery for other hops of the engine, which starts slowly.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of attempts to identify both ends of a socket. Afterwards its hop keeps the name deduced from messages.
const NAME_ATTEMPTS: u32 = 12;
/// Maximum wait for a bypassing connection to pause before it is left alone.
const MAX_DISCONNECT_TIME: Duration = Duration::from_secs(2);

/// Bytes of inotify events read at once.
const EVENT_BUFFER_BYTES: usize = 4096;
/// Maximum number of ancestors of a process that are looked up. No process tree is that deep.
const MAX_ANCESTORS: usize = 1_000;

/// Message from the mover.
pub(super) enum MoverEvent {
    /// A socket was replaced by the relay's.
    Moved(UnixListener, Box<HeldPath>),
    /// Traffic bypasses the relay, or bypassed it temporarily.
    Bypass(String),
    /// The engine that the child runs, if its properties have changed.
    Engine(Box<Engine>),
    /// Path of a socket in the folder, and the name of its hop.
    Hop(PathBuf, Ends<&'static str>),
}

/// The watching thread. Dropping this value ends it.
pub(super) struct Mover {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    /// Starts to watch the folder, for sockets of the engine that process `child_pid` starts.
    pub(super) fn start(folder: &PrivateFolder, child_pid: u32) -> anyhow::Result<(Self, Receiver<MoverEvent>)> {
        let failure = || format!("cannot watch {} for sockets", folder.path().display());
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).with_context(failure)?;
        // A socket may be created in the folder or renamed into it.
        let appearances = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, folder.held.path(), appearances).with_context(failure)?;
        let (sender, events) = channel();
        let socket_watch = SocketWatch {
            folder: folder.held.clone(),
            folder_path: folder.path().to_owned(),
            child: child_pid,
            sender,
            relay_inodes: HashMap::new(),
            peers: Peers::in_own_namespace().ok(),
            reported: HashSet::new(),
            known_connections: HashSet::new(),
            last_move_at: None,
            last_sent_engine: None,
            unnamed_sockets: Vec::new(),
        };
        let end = Arc::new(AtomicBool::new(false));
        let thread_end = Arc::clone(&end);
        let thread = thread::Builder::new()
            .name("mover".into())
            .spawn(move || socket_watch.move_sockets_until_ended(&watch, &thread_end))?;
        Ok((Self { end, thread: Some(thread) }, events))
    }
}

impl Drop for Mover {
    /// Ends the thread and waits for it, so that it moves no more sockets.
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches for sockets panicked");
        }
    }
}

struct SocketWatch {
    folder: Folder,
    folder_path: PathBuf,
    child: u32,
    sender: Sender<MoverEvent>,
    /// Replaced sockets: names, and the inodes of the replacements.
    relay_inodes: HashMap<String, u64>,
    /// `None` if connections cannot be looked up.
    peers: Option<Peers>,
    /// Messages already sent.
    reported: HashSet<String>,
    /// Connections with a known holder: the relay, or one already reported.
    known_connections: HashSet<PeerConnection>,
    /// Time of the last move.
    last_move_at: Option<Instant>,
    /// Engine last sent.
    last_sent_engine: Option<Engine>,
    /// Relayed sockets without a known sender and receiver.
    unnamed_sockets: Vec<UnnamedSocket>,
}

/// A relayed socket whose sender and receiver are searched.
struct UnnamedSocket {
    name: String,
    /// Where the relay's socket was bound before it took the path of the engine's, which is now there.
    relay_bound_path: PathBuf,
    attempts: u32,
}

/// A connection to the engine's own socket.
struct OpenConnection {
    /// Name of the socket in the folder.
    socket_name: String,
    connection: PeerConnection,
}

impl SocketWatch {
    /// The thread, which runs until `end` is set. Puts the relay in front of new sockets in the folder, makes peers that bypass it
    /// reconnect, and follows the engine's processes.
    fn move_sockets_until_ended(mut self, watch: &OwnedFd, end: &AtomicBool) {
        // The watch shows no sockets that appeared before it started.
        self.take_over_sockets_in_folder();
        let mut watcher: Option<Watcher> = None;
        let mut last_discovery = Instant::now();
        let mut last_scan = Instant::now();
        while !end.load(Ordering::Relaxed) {
            if let Err(error) = self.wait_and_take_over_new_sockets(watch) {
                let folder = self.folder_path.display();
                return self.report_bypass(format!("stopped watching {folder} for sockets: {error}"));
            }
            if last_scan.elapsed() >= self.scan_interval() {
                last_scan = Instant::now();
                self.reconnect_bypassing_peers();
            }
            if last_discovery.elapsed() >= DISCOVER_EVERY {
                last_discovery = Instant::now();
                self.poll_watcher_and_update_engine(&mut watcher);
            }
        }
    }

    /// Interval of searches for connections that bypass the relay.
    fn scan_interval(&self) -> Duration {
        // Peers connect shortly after a socket appears, so searching often is needed only then.
        let is_settled = self.last_move_at.is_none_or(|at| at.elapsed() >= SETTLED);
        if is_settled { DISCOVER_EVERY } else { TURN }
    }

    /// Searches for processes of the child's engine, and applies the result. The first successful search creates the `watcher`.
    fn poll_watcher_and_update_engine(&mut self, watcher: &mut Option<Watcher>) {
        match watcher {
            // A search that fails is repeated at the next turn.
            Some(watcher) => drop(watcher.poll()),
            None => *watcher = Watcher::new(discover::DiscoverOptions::new(engines::DISCOVERED)).ok(),
        }
        if let Some(watcher) = watcher {
            self.send_changed_engine_and_report_hops(watcher.topology());
            self.send_found_hop_names(watcher.topology());
        }
    }

    /// Waits for new files in the folder for at most [`TURN`], and puts the relay in front of those that are sockets. Fails if the folder
    /// cannot be watched any more.
    fn wait_and_take_over_new_sockets(&mut self, watch: &OwnedFd) -> Result<(), Errno> {
        let turn = Timespec { tv_sec: 0, tv_nsec: TURN.as_nanos() as i64 };
        match poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&turn)) {
            // No new file within the turn, or a signal.
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        for name in read_new_file_names(watch)? {
            match name {
                Some(name) => self.take_over_socket_if_new(&name),
                // The queue of events has overflowed.
                None => self.take_over_sockets_in_folder(),
            }
        }
        Ok(())
    }

    /// Checks all files of the folder. Does nothing if the folder cannot be read.
    fn take_over_sockets_in_folder(&mut self) {
        let Ok(entries) = std::fs::read_dir(self.folder.path()) else { return };
        for entry in entries.flatten() {
            self.take_over_socket_if_new(&entry.file_name().to_string_lossy());
        }
    }

    /// Puts the relay in front of the socket with this file name, if there is one that is not relayed yet.
    fn take_over_socket_if_new(&mut self, file_name: &str) {
        if is_made_by_tokengap(file_name) {
            return;
        }
        // Most files are no sockets.
        let Ok(socket) = HeldPath::find_socket(&self.folder, file_name) else { return };
        // The move itself triggers an event for the relay's own socket, which is ignored.
        if self.relay_inodes.get(file_name) == Some(&socket.metadata().ino()) {
            return;
        }
        match HeldPath::take_over(&self.folder, file_name, socket) {
            Ok((listener, held_path)) => self.record_move_and_reconnect_peers(file_name, listener, held_path),
            Err(error) => self.report_bypass(format!("{file_name}: not relayed: {error}")),
        }
    }

    /// Passes a moved socket to the run, which relays it, and looks for peers that have connected to it before the move.
    fn record_move_and_reconnect_peers(&mut self, name: &str, listener: UnixListener, held_path: HeldPath) {
        // Inode 0, which no file has, if the engine has replaced the relay's socket. The engine's new socket is then moved, too.
        let relay_inode = HeldPath::find_socket(&self.folder, name).map(|ours| ours.metadata().ino());
        self.relay_inodes.insert(name.to_owned(), relay_inode.unwrap_or_default());
        self.unnamed_sockets.push(UnnamedSocket {
            name: name.to_owned(),
            relay_bound_path: held_path.aside(),
            attempts: 0,
        });
        self.send_event(MoverEvent::Moved(listener, Box::new(held_path)));
        self.last_move_at = Some(Instant::now());
        self.reconnect_bypassing_peers();
    }

    /// Connections to the engine's own sockets, whose paths now lead to the relay. Those that cannot be looked up are left out, and tried
    /// again at the next call.
    fn connections_to_engine_sockets(&self, peers: &Peers) -> Vec<OpenConnection> {
        let mut open_connections = Vec::new();
        for name in self.relay_inodes.keys() {
            for connection in peers.connections_to_listener(&self.folder_path.join(name)).unwrap_or_default() {
                open_connections.push(OpenConnection { socket_name: name.clone(), connection });
            }
        }
        open_connections
    }

    /// Finds peers that connected between a socket's appearance and its move, and makes them reconnect.
    fn reconnect_bypassing_peers(&mut self) {
        let Some(peers) = &self.peers else { return };
        let open_connections = self.connections_to_engine_sockets(peers);
        // Closed connections are removed, because the kernel reuses the numbers of sockets.
        self.known_connections.retain(|known| open_connections.iter().any(|open| open.connection == *known));
        let mut new_connections = open_connections;
        new_connections.retain(|new| !self.known_connections.contains(&new.connection));
        if new_connections.is_empty() {
            return;
        }
        // Inodes of the sockets at the peers' ends.
        let inodes: Vec<u64> = new_connections.iter().map(|new| new.connection.connector).collect();
        // Expensive, since it reads every process's descriptors; done only for new connections.
        let holders_by_inode = find_socket_holders(&inodes);
        let own_pid = std::process::id();
        for OpenConnection { socket_name, connection } in new_connections {
            // Without a known holder, the connection is tried again at the next call.
            let Some(holders) = holders_by_inode.get(&connection.connector) else { continue };
            self.known_connections.insert(connection);
            // The relay itself is connected to the engine's sockets, too.
            let is_own = holders.iter().any(|holder| holder.pid == own_pid);
            if !is_own {
                // Of several holders, any can close the connection.
                self.reconnect_sender_once(&socket_name, connection, holders[0]);
            }
        }
    }

    /// Closes a connection to the engine's own socket, so that its process connects again, to the relay. Reports the result. Each
    /// connection is tried once.
    fn reconnect_sender_once(&mut self, socket_name: &str, connection: PeerConnection, holder: Holder) {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", holder.pid)).unwrap_or_default();
        let peer = format!("{socket_name}: process {} ({})", holder.pid, comm.trim_end());
        let is_first_attempt = self.reported.insert(format!("{peer} {}", connection.connector));
        if !is_first_attempt {
            return;
        }
        match disconnect_sender(holder, connection.connector, MAX_DISCONNECT_TIME) {
            Ok(_) => self.report_bypass(format!(
                "{peer} connected before the relay started and was reconnected; messages that it sent earlier are not observed"
            )),
            Err(error) => self.report_bypass(format!("{peer} bypasses the relay: {error}")),
        }
    }

    /// Sends the run the engine that the child has started, if the engine's properties have changed. Reports hops of the child's engines
    /// whose sockets are outside the folder.
    fn send_changed_engine_and_report_hops(&mut self, topology: &Topology) {
        let mut engines_of_child: Vec<&Engine> = topology.engines.iter().collect();
        engines_of_child
            .retain(|engine| engine.processes.iter().any(|process| is_same_or_descendant(process.id.pid, self.child)));
        // If the child has started several engines, the first one stands for all.
        if let Some(&engine) = engines_of_child.first()
            && self.last_sent_engine.as_ref().map(Engine::to_event) != Some(engine.to_event())
        {
            self.last_sent_engine = Some(engine.clone());
            self.send_event(MoverEvent::Engine(Box::new(engine.clone())));
        }
        self.report_hops_outside_folder(&engines_of_child);
    }

    /// Reports the hops of these engines that the relay cannot reach, because their sockets are outside the folder. Each is reported once.
    fn report_hops_outside_folder(&mut self, engines: &[&Engine]) {
        let folder = format!("ipc://{}/", self.folder_path.display());
        for hop in engines.iter().flat_map(|engine| &engine.hops) {
            if hop.carries == Carries::Requests || hop.endpoint.starts_with(&folder) {
                continue;
            }
            let message =
                format!("{} over {} bypasses the relay: it is not a socket file in TMPDIR", hop.ends(), hop.endpoint);
            if self.reported.insert(message.clone()) {
                self.report_bypass(message);
            }
        }
    }

    /// Names the relayed sockets by the processes at both ends of the relay. A socket is tried again until both are found, a limited number
    /// of times.
    fn send_found_hop_names(&mut self, topology: &Topology) {
        let Some(peers) = &self.peers else { return };
        // Sockets that stay without a name are put back.
        for mut socket in std::mem::take(&mut self.unnamed_sockets) {
            // The engine's socket and the relay's have exchanged their paths. The kernel still names each by the path at which it was
            // bound: the engine's by this one.
            let path = self.folder_path.join(&socket.name);
            // Senders are connected to the relay's socket.
            let to_relay = peers.connections_to_listener(&socket.relay_bound_path).unwrap_or_default();
            let senders: Vec<u64> = to_relay.iter().map(|connection| connection.connector).collect();
            // The relay is connected to the engine's socket, and the receiver has accepted that connection.
            let to_engine = peers.connections_to_listener(&path).unwrap_or_default();
            let receivers: Vec<u64> = to_engine.iter().map(|connection| connection.acceptor).collect();
            // Not connected yet, which does not count as an attempt.
            if senders.is_empty() || receivers.is_empty() {
                self.unnamed_sockets.push(socket);
                continue;
            }
            socket.attempts += 1;
            if let Some(ends) = name_ends_by_socket_holders(&senders, &receivers, topology) {
                // Fails only once the run has ended.
                let _ = self.sender.send(MoverEvent::Hop(path, ends));
            } else if socket.attempts < NAME_ATTEMPTS {
                self.unnamed_sockets.push(socket);
            }
        }
    }

    /// Sends a line for the report about traffic that bypasses the relay.
    fn report_bypass(&self, message: String) {
        self.send_event(MoverEvent::Bypass(message));
    }

    fn send_event(&self, event: MoverEvent) {
        // Fails only once the run has ended. A moved socket in the event is then restored, because dropping its path does that.
        let _ = self.sender.send(event);
    }
}

/// Reads the names of new files from all waiting inotify events. An event without a name says that the kernel has dropped some.
fn read_new_file_names(watch: &OwnedFd) -> Result<Vec<Option<String>>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
    let mut reader = Reader::new(watch, &mut buffer);
    let mut names = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => names.push(event.file_name().map(|name| name.to_string_lossy().into_owned())),
            Err(Errno::WOULDBLOCK) => return Ok(names),
            Err(errno) => return Err(errno),
        }
    }
}

/// Names the ends of a hop by the roles of the processes that hold the sockets at its two ends, given by their inodes. `None` if the role
/// at one end is unknown, or there are several. Expensive, since it reads every process's descriptors.
fn name_ends_by_socket_holders(
    sender_inodes: &[u64],
    receiver_inodes: &[u64],
    topology: &Topology,
) -> Option<Ends<&'static str>> {
    let holders_by_inode = find_socket_holders(&[sender_inodes, receiver_inodes].concat());
    let sender_roles = roles_of_socket_holders(sender_inodes, &holders_by_inode, topology);
    let receiver_roles = roles_of_socket_holders(receiver_inodes, &holders_by_inode, topology);
    let sender = only_role(&sender_roles)?;
    let receiver = only_role(&receiver_roles)?;
    Some(Ends::new(sender.word(), receiver.word()))
}

/// Roles of the engine's processes that hold one of these sockets. tokengap holds the relay's ends and has no role.
fn roles_of_socket_holders(
    inodes: &[u64],
    holders_by_inode: &HashMap<u64, Vec<Holder>>,
    topology: &Topology,
) -> BTreeSet<Role> {
    let own_pid = std::process::id();
    let mut roles = BTreeSet::new();
    for holder in inodes.iter().filter_map(|inode| holders_by_inode.get(inode)).flatten() {
        if holder.pid == own_pid {
            continue;
        }
        let process = topology.engines.iter().find_map(|engine| engine.process_with_pid(holder.pid));
        roles.extend(process.map(|process| process.role));
    }
    roles
}

/// The role, if there is exactly one.
fn only_role(roles: &BTreeSet<Role>) -> Option<Role> {
    if roles.len() == 1 { roles.first().copied() } else { None }
}

/// Returns whether process `pid` is `ancestor_pid` or one of its descendants.
fn is_same_or_descendant(pid: u32, ancestor_pid: u32) -> bool {
    let mut current = pid;
    // Bounded, because processes may exit and their pids be reused meanwhile.
    for _ in 0..MAX_ANCESTORS {
        if current == ancestor_pid {
            return true;
        }
        let Some(parent) = parent_of(current) else { return false };
        current = parent;
    }
    false
}

/// Parent of a process; `None` if the process has exited.
fn parent_of(pid: u32) -> Option<u32> {
    let status = kernel::read(format!("/proc/{pid}/status"), kernel::MAX_STATUS_BYTES).ok()?;
    kernel::status_field(&status, "PPid:")?.parse().ok()
}
