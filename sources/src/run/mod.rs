//! Source of `tokengap run`: starts an engine and puts the relay in front of each of its sockets as it appears.

mod child;
mod folder;
mod mover;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use session::{About, Flow, LiveSource};
use trace::{Event, MonoNs};
use zmq_tap::relay::{Endpoint, Pair, Signal};
use zmq_tap::splice::HeldPath;

pub use child::{Child, Forwarding};
pub use folder::PrivateFolder;
use mover::{Mover, MoverEvent};

use crate::guard::Guard;
use crate::tap::{Tap, TapHop};

/// Interval of checks whether the child has exited.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A child whose sockets are relayed.
pub struct Run {
    tap: Tap,
    child: Arc<Child>,
    mover: Option<Mover>,
    events: Receiver<MoverEvent>,
    /// Restored when the relay has ended, before the guard looks for leftovers.
    held_paths: Vec<HeldPath>,
    bypasses: Vec<String>,
    /// Number of sockets that were moved behind the relay.
    moved_count: usize,
    last_exit_check: Instant,
    is_ending: bool,
    _guard: Guard,
}

impl Run {
    /// Watches `folder`, the temporary folder of `child`. `guard` restores moved sockets if this process is killed.
    pub fn start(tap: Tap, child: Arc<Child>, folder: &PrivateFolder, guard: Guard) -> anyhow::Result<Self> {
        let (mover, events) = Mover::start(folder, child.pid())?;
        Ok(Self {
            tap,
            child,
            mover: Some(mover),
            events,
            held_paths: Vec::new(),
            bypasses: Vec::new(),
            moved_count: 0,
            last_exit_check: Instant::now(),
            is_ending: false,
            _guard: guard,
        })
    }

    /// Applies the events of the mover since the last call: relays moved sockets, and updates the engine and the names of hops. The mover
    /// is the thread that puts the relay's sockets in the place of the engine's.
    fn apply_mover_events(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        for event in self.events.try_iter() {
            match event {
                MoverEvent::Moved(listener, held_path) => {
                    match relay_moved_socket(&mut self.tap, listener, &held_path) {
                        Ok(()) => {
                            self.moved_count += 1;
                            // An engine that listens again gives up its previous socket.
                            self.held_paths.retain(HeldPath::is_held);
                            self.held_paths.push(*held_path);
                        }
                        // Dropping `held_path` restores the engine's socket.
                        Err(error) => self.bypasses.push(format!("{}: {error}", held_path.shown().display())),
                    }
                }
                MoverEvent::Engine(engine) => self.tap.set_engine(*engine),
                MoverEvent::Hop(listen, ends) => {
                    let listen = Endpoint::Path(listen);
                    self.tap.name_hop(&listen, ends, MonoNs::now(), sink);
                }
                MoverEvent::Bypass(message) => {
                    tracing::warn!("{message}");
                    self.bypasses.push(message);
                }
            }
        }
    }

    /// Begins the end of the run after the exit of the child. No more sockets are moved, and the relay drains.
    fn begin_end_after_child_exit(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.is_ending = true;
        // Dropping the mover waits for its thread, so that the events below are complete.
        self.mover = None;
        self.apply_mover_events(sink);
        self.tap.stop();
    }
}

/// Relays between the listener that has a socket's path now and the engine's socket, which was moved aside.
fn relay_moved_socket(tap: &mut Tap, listener: UnixListener, held_path: &HeldPath) -> anyhow::Result<()> {
    let sockets = held_path.pair_sockets(listener)?;
    let pair = Pair { listen: Endpoint::Path(held_path.shown()), upstream: Endpoint::Path(held_path.aside()) };
    let hop = TapHop { endpoint: Some(pair.listen.to_string()), ..TapHop::new(pair) };
    // Connections need not wait: the engine has just created the socket, so no earlier one has to be drained.
    let open_gate = Signal::sent();
    tap.add_hop(hop, sockets, open_gate)?;
    Ok(())
}

impl About for Run {
    fn kind(&self) -> &'static str {
        "run"
    }

    fn pending(&self) -> Option<String> {
        (!self.is_ending).then(|| format!("waiting for {} to end", self.child.name()))
    }

    /// What the report says about the relay, with the number of moved sockets and what bypasses it.
    fn wire_json(&self) -> Option<Value> {
        let mut wire = self.tap.wire_json()?;
        wire["run"] = json!({"sockets_relayed": self.moved_count, "past_the_relay": self.bypasses});
        Some(wire)
    }

    /// Lines for the report: limits of the relay, and what bypasses it.
    fn degraded_lines(&self) -> Vec<String> {
        let mut degraded = self.tap.degraded_lines();
        degraded.extend(self.bypasses.iter().cloned());
        if self.moved_count == 0 {
            degraded.push(format!(
                "no socket to relay appeared in the temporary folder of {}: it uses TCP or ignores TMPDIR",
                self.child.name()
            ));
        }
        degraded
    }
}

impl LiveSource for Run {
    fn is_in_the_path(&self) -> bool {
        true
    }

    fn keep_ids(&mut self) {
        self.tap.keep_ids();
    }

    /// Emits the relay's new events, and ends the run after the child's exit.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        if !self.is_ending {
            self.apply_mover_events(sink);
            if self.last_exit_check.elapsed() >= CHECK_INTERVAL {
                self.last_exit_check = Instant::now();
                if self.child.has_ended() {
                    self.begin_end_after_child_exit(sink);
                }
            }
        }
        let flow = self.tap.poll(sink);
        // Dropping the held paths puts the engine's own sockets back.
        if flow == Flow::Ended {
            self.held_paths.clear();
        }
        flow
    }

    /// Asks the child to exit, which ends the run.
    fn stop(&mut self) {
        self.child.ask_to_end();
    }
}
