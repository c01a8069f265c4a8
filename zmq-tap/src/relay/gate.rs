//! A gate in front of an upstream: connections that are accepted before it opens wait there, and their peers with them.

use std::sync::Arc;

use tokio::sync::watch;

/// A gate, in the hands of whoever opens it and of the relay. It opens once.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// One that is open.
    pub fn open() -> Self {
        Self(Arc::new(watch::Sender::new(true)))
    }

    /// One that is closed until [`Gate::let_through`].
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens it.
    pub fn let_through(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub(super) async fn wait(&self) {
        // It fails only when nobody is left to open it, and we hold one who could.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}
