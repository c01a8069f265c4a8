//! Limit on connections. Connections without a subscription are closed to make room for new ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::queue::Queue;

/// All connections, the oldest first.
pub(super) struct Room {
    most: usize,
    inside: VecDeque<Connection>,
}

struct Connection {
    from: SocketAddr,
    queue: Arc<Queue>,
    task: AbortHandle,
}

impl Room {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            inside: VecDeque::new(),
        }
    }

    /// Whether the limit is reached by watchers with subscriptions.
    pub(super) fn is_full(&mut self) -> bool {
        self.inside.retain(|one| !one.task.is_finished());
        self.inside.iter().filter(|one| one.queue.has_asked()).count() >= self.most
    }

    /// Makes room for one connection; returns the peer whose connection was closed for it.
    pub(super) fn make(&mut self) -> Option<SocketAddr> {
        if self.inside.len() < self.most {
            return None;
        }
        // This peer has not joined, and its task does not run before the abort takes effect: no other state refers to it.
        let silent = self.inside.iter().position(|one| !one.queue.has_asked())?;
        let oldest = self.inside.remove(silent)?;
        oldest.task.abort();
        Some(oldest.from)
    }

    pub(super) fn enter(&mut self, from: SocketAddr, queue: Arc<Queue>, task: AbortHandle) {
        self.inside.push_back(Connection { from, queue, task });
    }
}
