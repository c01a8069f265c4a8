//! The connections under way, no more than so many: one that has not said what it wants keeps nobody out.

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

    /// Whether as many watchers as may be have said what they want.
    pub(super) fn is_full(&mut self) -> bool {
        self.inside.retain(|one| !one.task.is_finished());
        self.inside.iter().filter(|one| one.queue.has_asked()).count() >= self.most
    }

    /// Makes room for one more; gives back whose connection was ended for it.
    pub(super) fn make(&mut self) -> Option<SocketAddr> {
        if self.inside.len() < self.most {
            return None;
        }
        // It has not joined, and does not run before it is ended: nothing else knows of it.
        let silent = self.inside.iter().position(|one| !one.queue.has_asked())?;
        let oldest = self.inside.remove(silent)?;
        oldest.task.abort();
        Some(oldest.from)
    }

    pub(super) fn enter(&mut self, from: SocketAddr, queue: Arc<Queue>, task: AbortHandle) {
        self.inside.push_back(Connection { from, queue, task });
    }
}
