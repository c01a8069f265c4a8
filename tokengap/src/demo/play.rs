//! Thread of the peers.

use std::thread::{self, JoinHandle};

use anyhow::Context;
use tokio::sync::oneshot;

use super::peers::Stage;

/// A simulation in progress.
pub(super) struct Play {
    /// Dropped to end the simulation without waiting for work in flight.
    end_signal: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Play {
    /// Binds and connects all sockets, then starts the peers.
    pub(super) fn start(stage: &Stage) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the demo's runtime")?;
        let peers = runtime.block_on(stage.open())?;
        let (end_signal, ended) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("demo-peers".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        played = peers.play() => played,
                        _ = ended => Ok(()),
                    }
                })
            })
            .context("cannot start the demo's thread")?;
        Ok(Self { end_signal: Some(end_signal), thread: Some(thread) })
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
