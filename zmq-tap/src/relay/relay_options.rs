//! Limits of the relay. Reaching one is counted in [`super::RelayStats`] or reported as an observation, and never stops the copy.

use std::time::Duration;

use adapter::decode::Format;

/// Smallest read. Every direction of every connection has memory for it.
pub(super) const LEAST_READ: usize = 4 << 10;

/// Limits of a relay. All have defaults.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Message formats of the known engines. Default: none.
    pub formats: &'static [Format],
    /// Maximum number of unpolled observations. Further ones are dropped and reported as lost. Default 16,384.
    pub queue_frames: usize,
    /// Memory for bytes in flight and for bytes that observations refer to. Beyond it frames are copied without being kept. Default 64 MiB.
    pub budget_bytes: usize,
    /// Memory for all bytes in flight, of which `budget_bytes` also serve observations. Each connection has two reads of 4 KiB of it; the
    /// rest is shared by connections whose receivers do not keep up. When it runs out, reads become shorter, down to 4 KiB. Default 256
    /// MiB.
    pub max_buffered_bytes: usize,
    /// Length of the longest message whose bytes are kept. Default 16 MiB.
    pub max_frame_bytes: u64,
    /// Maximum number of parts of a message that is kept. Default 64.
    pub max_parts: usize,
    /// Maximum number of unwritten bytes per direction. When the receiver stops reading, the relay stops reading too. Default 128 KiB.
    pub buffer_bytes: usize,
    /// Size of one block of memory for reads. Default 1 MiB.
    pub block_bytes: usize,
    /// How long a connection waits for its upstream to accept before it is closed. `libzmq` then retries by itself. An HTTP server that
    /// refuses is asked only once. Default 5 s.
    pub connect_patience: Duration,
    /// Maximum number of simultaneous connections over all pairs. Further ones are closed immediately. Default 16,384.
    pub max_connections: usize,
    /// How long [`super::Relay::stop`] drains bytes that were already accepted, and how long a connection with one broken side may finish
    /// the other direction. Default 2 s.
    pub drain: Duration,
    /// Makes [`super::Relay::stop`] first shut down writing to the connecting side, and relay what that side still sends. `libzmq` then
    /// closes by itself, with no partial message, and reconnects. A peer that does not close is cut off as without this option. Only for
    /// hops whose messages flow from the connecting side to the upstream. Default: false.
    pub ask_to_leave: bool,
}

impl Default for RelayOptions {
    /// The limits that the fields name as their defaults.
    fn default() -> Self {
        // `<< 10` is a number of KiB, and `<< 20` of MiB.
        Self {
            formats: &[],
            queue_frames: 16_384,
            budget_bytes: 64 << 20,
            max_buffered_bytes: 256 << 20,
            max_frame_bytes: 16 << 20,
            max_parts: 64,
            buffer_bytes: 128 << 10,
            block_bytes: 1 << 20,
            connect_patience: Duration::from_secs(5),
            max_connections: 16_384,
            drain: Duration::from_secs(2),
            ask_to_leave: false,
        }
    }
}

impl RelayOptions {
    /// Raises limits that are too small to the least value that works, and lowers those that do not fit into `max_buffered_bytes`.
    pub(super) fn with_limits_in_range(mut self) -> Self {
        self.queue_frames = self.queue_frames.max(1);
        self.buffer_bytes = self.buffer_bytes.max(LEAST_READ);
        self.block_bytes = self.block_bytes.max(self.buffer_bytes);
        // The other half is left for connections.
        self.budget_bytes = self.budget_bytes.min(self.max_buffered_bytes / 2);
        // A connection reads in both directions.
        let fitting_connections = (self.max_buffered_bytes - self.budget_bytes) / (2 * LEAST_READ);
        self.max_connections = self.max_connections.min(fitting_connections).max(1);
        self.max_parts = self.max_parts.max(1);
        self
    }

    /// Memory beyond the least reads that connections share.
    pub(super) fn shared_bytes(&self) -> usize {
        let reserved = self.budget_bytes.saturating_add(self.max_connections.saturating_mul(2 * LEAST_READ));
        self.max_buffered_bytes.saturating_sub(reserved)
    }
}
