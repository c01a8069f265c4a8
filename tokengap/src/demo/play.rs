//! Thread of the peers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tokio::sync::oneshot;

use super::peers::Stage;
use super::random::Random;

/// A simulation in progress.
pub(super) struct Play {
    ending: Arc<AtomicBool>,
    /// Dropped to end the simulation without waiting for work in flight.
    end_signal: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Play {
    /// Starts the peers and returns once all their sockets are bound and connected.
    pub(super) fn start(stage: Stage, random: Random) -> anyhow::Result<Self> {
        let ending = Arc::clone(&stage.ending);
        let (end_signal, ended) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the demo's runtime")?;
        let thread = thread::Builder::new()
            .name("demo-peers".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        played = stage.play(random, move || { ready.send(()).ok(); }) => played,
                        _ = ended => Ok(()),
                    }
                })
            })
            .context("cannot start the demo's thread")?;
        let mut play = Self { ending, end_signal: Some(end_signal), thread: Some(thread) };
        match is_ready.recv() {
            Ok(()) => Ok(play),
            Err(_) => {
                Err(play.join().err().unwrap_or_else(|| anyhow::anyhow!("the demo's peers ended before they began")))
            }
        }
    }

    /// Asks the peers to end: no new requests start, running ones are finished and delivered.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether every client has received its last tokens, or a peer has failed.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread and returns its result, once.
    pub(super) fn join(&mut self) -> anyhow::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(played)) => played,
            Some(Err(_)) => anyhow::bail!("the demo's peers crashed. Please report this bug."),
            None => Ok(()),
        }
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        drop(self.end_signal.take());
        if let Err(error) = self.join() {
            tracing::error!("{error:#}");
        }
    }
}
