//! Limit on connections. Connections without a subscription are closed in favour of new ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::queue::Queue;

/// All connections, the oldest first.
pub(super) struct Connections {
    limit: usize,
    open: VecDeque<Connection>,
}

struct Connection {
    from: SocketAddr,
    queue: Arc<Queue>,
    task: AbortHandle,
}

impl Connections {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: VecDeque::new(),
        }
    }

    /// Whether the limit is reached by watchers with subscriptions.
    pub(super) fn is_full(&mut self) -> bool {
        self.open.retain(|connection| !connection.task.is_finished());
        self.open
            .iter()
            .filter(|connection| connection.queue.is_subscribed())
            .count()
            >= self.limit
    }

    /// Closes the oldest connection without a subscription if the limit is reached. Returns its peer.
    pub(super) fn evict_for_new(&mut self) -> Option<SocketAddr> {
        if self.open.len() < self.limit {
            return None;
        }
        // This peer has not joined, and its task does not run before the abort takes effect: no other state refers to it.
        let unsubscribed = self
            .open
            .iter()
            .position(|connection| !connection.queue.is_subscribed())?;
        let oldest = self.open.remove(unsubscribed)?;
        oldest.task.abort();
        Some(oldest.from)
    }

    pub(super) fn add(&mut self, from: SocketAddr, queue: Arc<Queue>, task: AbortHandle) {
        self.open.push_back(Connection { from, queue, task });
    }
}
