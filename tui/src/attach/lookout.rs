//! Discovery beside the reading of the ring, on a thread of its own: a look at a process may wait for that process's own locks, for
//! seconds on a busy machine, and the ring fills meanwhile.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use probe_user::discover::{Change, Topology, Watcher};

/// How often new workers and exits are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of the processes, and the thread that looks for more. It ends with this value.
pub(super) struct Lookout {
    topology: Topology,
    news: Receiver<(Vec<Change>, Topology)>,
    _stay: Sender<()>,
}

impl Lookout {
    pub(super) fn start(watcher: Watcher) -> std::io::Result<Self> {
        let topology = watcher.topology().clone();
        let (tell, news) = channel();
        let (stay, asked) = channel();
        thread::Builder::new()
            .name("lookout".into())
            .spawn(move || look(watcher, &tell, &asked))?;
        Ok(Self {
            topology,
            news,
            _stay: stay,
        })
    }

    /// What is there, as of the last news.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What has changed since the last call. Never waits.
    pub(super) fn news(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        while let Ok((changes, topology)) = self.news.try_recv() {
            all.extend(changes);
            self.topology = topology;
        }
        all
    }
}

fn look(mut watcher: Watcher, tell: &Sender<(Vec<Change>, Topology)>, asked: &Receiver<()>) {
    while asked.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        match watcher.poll() {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                if tell.send((changes, watcher.topology().clone())).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("cannot look for new workers: {error}"),
        }
    }
}
