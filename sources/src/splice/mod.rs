//! Source of `tokengap splice`: moves live hops behind the relay, observes them there, and moves them back.

mod plan;
mod witness;

use std::collections::BTreeSet;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use outputs::report::hostile;
use probe_user::discover::Engine;
use probe_user::handoff::disconnect_sender;
use probe_user::peers::{Holder, PeerConnection, Peers, find_socket_holders, sleeps_in_poll};
use serde_json::{Value, json};
use session::{About, Flow, LiveSource};
use trace::Event;
use trace::path::Ends;
use zmq_tap::relay::{Endpoint, Pair, RelayOptions, Signal};
use zmq_tap::splice::HeldPath;

use crate::guard::Guard;
use crate::tap::{Tap, TapHop};
pub use plan::{Located, Movable, Planned};
use witness::measure_message_rate;
pub use witness::{MessageRate, Seen, Witness};

/// Maximum wait for a sender to pause, and for a cut connection to close.
const MAX_DISCONNECT_TIME: Duration = Duration::from_secs(2);
/// Maximum wait for receivers to process messages of the old connection before the gate to the new one opens.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Consecutive checks that find a receiver asleep before its inbox counts as empty.
const REQUIRED_CHECKS_ASLEEP: u32 = 5;
/// Interval of checks while the move waits for a process.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum wait for senders to reconnect.
const RECONNECT: Duration = Duration::from_secs(5);
/// Time the witness continues after the move.
pub const SETTLE: Duration = Duration::from_secs(1);

/// A connection to be moved behind the relay.
#[derive(Clone, Copy, Debug)]
struct Live {
    connection: PeerConnection,
    holder: Holder,
}

/// Planned move with its connections and measurements. Nothing has been changed yet.
pub struct Prepared {
    planned: Vec<Planned>,
    live: Vec<Live>,
    /// Checks the move, or why it cannot be checked.
    pub witness: Result<Witness, String>,
    /// Messages per second; `None` if it cannot be measured.
    pub rate: Option<MessageRate>,
    engine: Engine,
}

impl Prepared {
    /// Finds every connection to the planned listeners, starts the witness, which observes the messages with a probe, and measures the
    /// message rate. Fails if no process is connected.
    pub fn new(engine: &Engine, planned: Vec<Planned>) -> anyhow::Result<Self> {
        let mut live = Vec::new();
        for listener in &planned {
            live.extend(find_live_connections(listener)?);
        }
        if live.is_empty() {
            bail!("no process is connected to the hops to move");
        }
        let sender_pids: BTreeSet<u32> = live.iter().map(|live| live.holder.pid).collect();
        let receiver_pids = planned.iter().map(|listener| listener.receiver).collect();
        let witness = Witness::start(&sender_pids, &receiver_pids);
        let sender_pids: Vec<u32> = sender_pids.into_iter().collect();
        let rate = measure_message_rate(witness.as_ref().ok(), engine, &sender_pids);
        Ok(Self { planned, live, witness, rate, engine: engine.clone() })
    }

    /// Describes the planned move.
    pub fn describe(&self) -> String {
        let mut lines = Vec::new();
        for listener in &self.planned {
            let title = hostile::line(&listener.title());
            let endpoint = hostile::line(&listener.endpoint());
            lines.push(format!("  {title}  {endpoint}, received by process {}", listener.receiver));
        }
        let senders: BTreeSet<u32> = self.live.iter().map(|live| live.holder.pid).collect();
        let senders: Vec<String> = senders.iter().map(ToString::to_string).collect();
        let rate = match self.rate {
            Some(rate) => format!("{} messages a second, {}", rate.per_second, rate.by),
            None => "unknown number of messages per second".into(),
        };
        lines.push(format!("  {} connections of processes {}", self.live.len(), senders.join(", ")));
        lines.push(format!("  {rate}\n"));
        lines.join("\n")
    }

    /// Puts the relay between the senders and receivers of all planned hops. After an error, restores everything and returns the reason.
    /// The witness, which observes the messages of both sides with a probe, checks that requests continue. `guard` restores the sockets if
    /// this process is killed.
    pub fn execute_move(self, options: &RelayOptions, guard: Guard) -> anyhow::Result<Splice> {
        // `ask_to_leave`: at the end of the relay, senders close their connections between two messages.
        let mut tap =
            Tap::start(Vec::new(), RelayOptions { formats: engines::FORMATS, ask_to_leave: true, ..options.clone() })?;
        // Dropping these restores the engine's sockets, so an error on the way undoes the move.
        let mut paths = Vec::new();
        // Connections of senders wait here until the receivers have read everything of the old ones.
        let gate = Signal::default();
        for listener in &self.planned {
            take_over_and_relay_listener(listener, &mut tap, &gate, &mut paths)?;
        }
        // These requests must continue behind the relay.
        if let Ok(witness) = &self.witness {
            witness.mark_live_requests();
        }
        let last_cut = match self.disconnect_senders_and_time_last_cut() {
            Ok(last_cut) => last_cut,
            Err(error) => {
                // Senders that were already disconnected wait at the gate, and will find the engine's own socket again.
                drop(paths);
                return Err(error).context("a connection could not be moved, so everything was restored");
            }
        };
        let doubts = self.reconnect_senders_and_list_doubts(&tap, &gate);
        let outage = last_cut.elapsed();
        tap.set_engine(self.engine.clone());
        Ok(Splice { tap, paths, moved: self, outage, doubts, state: State::Running, _guard: guard })
    }

    /// Closes the connections of all senders, which then connect again, to the relay. Returns when the last one was cut.
    fn disconnect_senders_and_time_last_cut(&self) -> anyhow::Result<Instant> {
        let mut last_cut = Instant::now();
        for live in &self.live {
            last_cut = disconnect_sender(live.holder, live.connection.connector, MAX_DISCONNECT_TIME)
                .map_err(anyhow::Error::msg)?;
        }
        Ok(last_cut)
    }

    /// Waits until the receivers have read everything from the old connections. Then opens `gate`, at which the senders' new connections to
    /// the relay wait. Returns a line for each doubt whether that went well.
    fn reconnect_senders_and_list_doubts(&self, tap: &Tap, gate: &Signal) -> Vec<String> {
        let mut doubts = Vec::new();
        if !wait_until(MAX_DISCONNECT_TIME, || self.are_old_connections_closed()) {
            let doubt =
                "a sender did not close its old connection: messages that it still sends there are not observed";
            doubts.push(doubt.to_owned());
        }
        // The gate opens only after this wait. Otherwise messages of the new connection could overtake those of the old one.
        let has_caught_up = wait_until_caught_up(&self.planned);
        gate.send();
        if !has_caught_up {
            let doubt = "a receiver never became idle: chunks of the old and the new connection may be reordered";
            doubts.push(doubt.to_owned());
        }
        let expected = self.live.len() as u64;
        let have_reconnected = wait_until(RECONNECT, || tap.stats().connections_total >= expected);
        if !have_reconnected {
            doubts.push(format!("not all of {expected} connections came back within {RECONNECT:?}"));
        }
        doubts
    }

    /// Returns whether all old connections are closed. Then everything they carried is in the receivers' inboxes. False also if the
    /// connections cannot be looked up.
    fn are_old_connections_closed(&self) -> bool {
        for listener in &self.planned {
            let peers = Peers::in_namespace_of(listener.receiver);
            let Ok(open) = peers.and_then(|peers| peers.connections_to_listener(&listener.bound)) else {
                return false;
            };
            if self.live.iter().any(|live| open.contains(&live.connection)) {
                return false;
            }
        }
        true
    }
}

/// Puts the relay's socket at the path of the engine's, which is moved aside and added to `kept_paths`. Relays from the one to the other.
/// New connections to the relay wait until `gate` is opened.
fn take_over_and_relay_listener(
    listener: &Planned,
    tap: &mut Tap,
    gate: &Signal,
    kept_paths: &mut Vec<HeldPath>,
) -> anyhow::Result<()> {
    let (new_listener, path) = HeldPath::take_over(&listener.folder, &listener.file, listener.socket.clone())?;
    let sockets = path.pair_sockets(new_listener)?;
    let pair = Pair { listen: Endpoint::Path(listener.bound.clone()), upstream: Endpoint::Path(path.aside()) };
    let hop = TapHop {
        ends: listener.name().map(|name| Ends::from(name).to_owned()),
        endpoint: Some(listener.endpoint()),
        ..TapHop::new(pair)
    };
    kept_paths.push(path);
    tap.add_hop(hop, sockets, gate.clone())?;
    Ok(())
}

/// All connections to a planned listener, each with its sender. Fails if the connections cannot be looked up, or a sender is not visible.
fn find_live_connections(listener: &Planned) -> anyhow::Result<Vec<Live>> {
    let connections = Peers::in_namespace_of(listener.receiver)
        .and_then(|peers| peers.connections_to_listener(&listener.bound))
        .context("cannot look up the connections")?;
    // The inodes of both sockets of each connection: the sender's, which connects, and the receiver's, which accepts.
    let inodes: Vec<u64> =
        connections.iter().flat_map(|connection| [connection.connector, connection.acceptor]).collect();
    let holders_by_inode = find_socket_holders(&inodes);
    let holders_of = |inode: u64| holders_by_inode.get(&inode).map(Vec::as_slice).unwrap_or_default();
    let mut live = Vec::new();
    for connection in connections {
        // A socket of another engine may have the same name in another container.
        let is_of_receiver = holders_of(connection.acceptor).iter().any(|holder| holder.pid == listener.receiver);
        if !is_of_receiver {
            continue;
        }
        // Of several processes that hold the sender's socket, any can close it.
        let holder = *holders_of(connection.connector).first().with_context(|| {
            format!("cannot see a sender of {}: run as root, or as the engine's user", listener.title())
        })?;
        live.push(Live { connection, holder });
    }
    Ok(live)
}

/// Waits at most `patience` for `condition`, and returns whether it became true.
fn wait_until(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    true
}

/// Waits until every receiver sleeps in its poll, which means that it has received all messages. Returns false if one does not in time.
fn wait_until_caught_up(planned: &[Planned]) -> bool {
    let deadline = Instant::now() + CATCH_UP;
    planned.iter().all(|listener| wait_until_asleep(listener.receiver, deadline))
}

/// Waits until the main thread of a process sleeps in its poll. Returns false if it does not by the deadline, or its state is not readable.
fn wait_until_asleep(pid: u32, deadline: Instant) -> bool {
    let mut checks_asleep = 0;
    // Several times in a row, since a receiver may sleep for a moment between two messages.
    while checks_asleep < REQUIRED_CHECKS_ASLEEP {
        // The main thread has the id of its process.
        match sleeps_in_poll(pid, pid) {
            Ok(true) => checks_asleep += 1,
            Ok(false) => checks_asleep = 0,
            Err(_) => return false,
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    true
}

/// Restores the sockets once receivers have processed what was relayed to them. Returns a line for each doubt whether that went well.
fn restore_paths_and_list_doubts(paths: Vec<HeldPath>, planned: &[Planned]) -> Vec<String> {
    let mut doubts = Vec::new();
    if !wait_until_caught_up(planned) {
        doubts.push("while moving back, a receiver never became idle: chunks may be reordered".to_owned());
    }
    for path in paths {
        if let Err(error) = path.give_back() {
            doubts.push(error.to_string());
        }
    }
    doubts
}

enum State {
    Running,
    /// Receivers drain, then the sockets are restored.
    Returning(JoinHandle<Vec<String>>),
    /// The witness observes the first frames of the direct connections.
    Settling(Instant),
    Over,
}

/// Hops moved behind the relay.
pub struct Splice {
    tap: Tap,
    paths: Vec<HeldPath>,
    moved: Prepared,
    /// Time from cutting the last connection until all had reconnected.
    pub outage: Duration,
    /// What may have gone wrong in the move.
    pub doubts: Vec<String>,
    state: State,
    _guard: Guard,
}

impl Splice {
    /// Results of the witness, or the reason why there are none.
    pub fn seen(&self) -> Result<Seen, &str> {
        self.moved.witness.as_ref().map(Witness::seen).map_err(String::as_str)
    }

    /// Starts a thread that waits for receivers and restores the sockets, which can take seconds. Returns the state in which the thread
    /// runs.
    fn start_restoring(&mut self) -> State {
        let paths = std::mem::take(&mut self.paths);
        let planned = self.moved.planned.clone();
        match thread::Builder::new()
            .name("way-back".into())
            .spawn(move || restore_paths_and_list_doubts(paths, &planned))
        {
            Ok(thread) => State::Returning(thread),
            // The closure was dropped, which restored the sockets.
            Err(_) => State::Over,
        }
    }

    /// Takes the next step of the end of the splice, if it is due. First, a thread gives back the engine's sockets. Then the witness, which
    /// checks that requests continue, watches a little longer.
    fn advance_return_of_sockets(&mut self) {
        // Joining a thread needs ownership, so the state is taken out. `Over` is only a placeholder.
        let state = std::mem::replace(&mut self.state, State::Over);
        self.state = match state {
            State::Returning(thread) if thread.is_finished() => {
                self.doubts.extend(thread.join().unwrap_or_default());
                // These requests must continue on the direct connections.
                if let Ok(witness) = &self.moved.witness {
                    witness.mark_live_requests();
                }
                State::Settling(Instant::now() + SETTLE)
            }
            State::Settling(until) if Instant::now() >= until => State::Over,
            other => other,
        };
    }
}

impl About for Splice {
    fn kind(&self) -> &'static str {
        "splice"
    }

    fn pending(&self) -> Option<String> {
        Some("moving the hops back".into())
    }

    /// What the report says about the relay, the moved hops, and whether the streams continued across the move.
    fn wire_json(&self) -> Option<Value> {
        let mut wire = self.tap.wire_json()?;
        let hops = self.moved.planned.iter();
        let hops = hops.map(|listener| json!({"name": listener.name(), "endpoint": listener.endpoint()}));
        let continuity = self.seen().ok().map(|seen| {
            json!({"messages_received": seen.received, "requests_across": seen.crossed, "messages_unread": seen.unread,
                   "broken": seen.broken})
        });
        wire["splice"] = json!({
            "hops": hops.collect::<Vec<_>>(),
            "connections": self.moved.live.len(),
            "messages_per_second": self.moved.rate.map(|rate| rate.per_second),
            "moved_in_ms": self.outage.as_millis() as u64,
            "continuity": continuity,
            "doubts": self.doubts,
        });
        Some(wire)
    }

    /// Lines for the report: limits of the relay, and what may have gone wrong in the move.
    fn degraded_lines(&self) -> Vec<String> {
        let mut degraded = self.tap.degraded_lines();
        degraded.extend(self.doubts.iter().cloned());
        match self.seen() {
            Ok(seen) => degraded.extend(seen.broken.into_iter().map(|what| format!("across the move: {what}"))),
            Err(why) => degraded.push(format!("cannot check whether the move lost frames: {why}")),
        }
        degraded
    }
}

impl LiveSource for Splice {
    fn is_in_the_path(&self) -> bool {
        true
    }

    fn keep_ids(&mut self) {
        self.tap.keep_ids();
    }

    /// Emits the relay's new events. After the relay's end, advances the return of the sockets without blocking.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        match self.state {
            State::Running => {
                let flow = self.tap.poll(sink);
                if flow != Flow::Ended {
                    return flow;
                }
                self.state = self.start_restoring();
                Flow::Idle
            }
            State::Over => Flow::Ended,
            State::Returning(_) | State::Settling(_) => {
                self.advance_return_of_sockets();
                Flow::Idle
            }
        }
    }

    /// Begins the end: no more connections are accepted, and the relay drains.
    fn stop(&mut self) {
        // From here on, connecting fails. Senders retry until the engine's own socket is back.
        self.paths.iter().for_each(HeldPath::stop_accepting);
        self.tap.stop();
    }
}
