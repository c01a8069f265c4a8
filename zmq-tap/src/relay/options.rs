//! The relay's limits. Reaching one is counted in [`super::Stats`] or told as an observation, and never stops the copy.

use std::time::Duration;

/// Limits of a relay. All have defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Observations that may wait to be polled; beyond it they are dropped and reported as lost. Default 16,384.
    pub queue_frames: usize,
    /// Memory for bytes that are on their way or that an observation still refers to. Beyond it frames are copied without
    /// being kept. Default 64 MiB.
    pub budget_bytes: usize,
    /// The longest message whose bytes are kept. Default 16 MiB.
    pub max_frame_bytes: u64,
    /// The most parts of a multipart message that are kept. Default 64.
    pub max_parts: usize,
    /// The most bytes of one direction that the relay holds unwritten: when the receiver stops, reading stops. Default 128 KiB.
    pub buffer_bytes: usize,
    /// Size of one block of memory that reads land in. Default 1 MiB.
    pub block_bytes: usize,
    /// How long a connection waits for its upstream to accept before it is closed (`libzmq` then tries again by itself; a
    /// server of HTTP that refuses is asked only once). Default 5 s.
    pub connect_patience: Duration,
    /// Connections at one time, over all pairs; beyond it new ones are closed at once. Default 16,384.
    pub max_connections: usize,
    /// How long [`super::Relay::stop`] lets bytes that were already accepted flow out, and how long a connection that is
    /// broken on one side may still finish the other direction. Default 2 s.
    pub drain: Duration,
    /// What [`super::Relay::stop`] does first: say the end to the side that connected and pass on what still comes from
    /// it. `libzmq` then closes by itself, with nothing half sent, and connects anew. A peer that does not is cut off as
    /// without it. Only for hops whose messages flow from there to the upstream. Default: no.
    pub ask_to_leave: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_frames: 16_384,
            budget_bytes: 64 << 20,
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

impl Options {
    /// The same with nonsense (zeros) raised to the least that works.
    pub(super) fn sane(mut self) -> Self {
        self.queue_frames = self.queue_frames.max(1);
        self.buffer_bytes = self.buffer_bytes.max(4 << 10);
        self.block_bytes = self.block_bytes.max(self.buffer_bytes);
        self.max_connections = self.max_connections.max(1);
        self.max_parts = self.max_parts.max(1);
        self
    }
}
