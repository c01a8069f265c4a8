//! A gate in front of an upstream. Connections accepted before it opens wait there, and their peers with them.

use std::sync::Arc;

use tokio::sync::watch;

/// Handle to a gate, shared by its opener and the relay. A gate opens once.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// Creates an open gate.
    pub fn open() -> Self {
        Self(Arc::new(watch::Sender::new(true)))
    }

    /// Creates a gate that is closed until [`Gate::let_through`].
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens the gate.
    pub fn let_through(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the gate is open.
    pub(super) async fn wait(&self) {
        // `wait_for` fails only when every sender is dropped, and `self` is one.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}
