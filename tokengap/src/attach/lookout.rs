//! Discovery on its own thread. Inspecting a process can block on that process's locks for seconds on a busy machine, while the ring buffer
//! would fill up.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use probe_user::discover::{Topology, Watcher};

/// Interval between searches for new workers and exits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Known processes, and the thread that looks for changes. Dropping this value ends the thread.
pub(super) struct DiscoveryThread {
    topology: Topology,
    updates: Receiver<Topology>,
    _stop: Sender<()>,
}

impl DiscoveryThread {
    pub(super) fn start(watcher: Watcher) -> std::io::Result<Self> {
        let topology = watcher.topology().clone();
        let (sender, updates) = channel();
        let (stop, stopped) = channel();
        thread::Builder::new().name("lookout".into()).spawn(move || poll_loop(watcher, &sender, &stopped))?;
        Ok(Self { topology, updates, _stop: stop })
    }

    /// Processes as of the last received change.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Updates the processes, and returns whether they or their connections have changed since the last call. Never blocks.
    pub(super) fn update(&mut self) -> bool {
        let Some(topology) = self.updates.try_iter().last() else {
            return false;
        };
        let before = std::mem::replace(&mut self.topology, topology);
        for process in before.processes().filter(|p| self.topology.processes().all(|now| now.id != p.id)) {
            tracing::info!("{} {} has ended", process.role, process.id.pid);
        }
        true
    }
}

fn poll_loop(mut watcher: Watcher, sender: &Sender<Topology>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        match watcher.poll() {
            Ok(false) => {}
            Ok(true) => {
                if sender.send(watcher.topology().clone()).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("cannot look for new workers: {error}"),
        }
    }
}
