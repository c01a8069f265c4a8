//! Discovery on its own thread. Inspecting a process can block on that process's locks for seconds on a busy machine, while the ring buffer
//! would fill up.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use probe_user::discover::{Change, Topology, Watcher};

/// Interval between searches for new workers and exits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Known processes, and the thread that looks for changes. Dropping this value ends the thread.
pub(super) struct DiscoveryThread {
    topology: Topology,
    updates: Receiver<(Vec<Change>, Topology)>,
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

    /// Changes since the last call. Never blocks.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        while let Ok((changes, topology)) = self.updates.try_recv() {
            all.extend(changes);
            self.topology = topology;
        }
        all
    }
}

fn poll_loop(mut watcher: Watcher, sender: &Sender<(Vec<Change>, Topology)>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let frontends = watcher.topology().frontends.clone();
        match watcher.poll() {
            Ok(changes) if changes.is_empty() && watcher.topology().frontends == frontends => {}
            Ok(changes) => {
                if sender.send((changes, watcher.topology().clone())).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("cannot look for new workers: {error}"),
        }
    }
}
