//! Counters of the relay, independent of whether observations are delivered.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters, as they are written by the relay's thread.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(super) $name: Counter,)*
        }

        /// A reading of the relay's counters since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RelayStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Returns the current values.
            pub fn read(&self) -> RelayStats {
                RelayStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Connections that are open now, counted from their acceptance.
    connections_open,
    /// Connections accepted so far.
    connections_total,
    /// Connections closed immediately because `RelayOptions::max_connections` were open.
    connections_refused,
    /// Connections closed because their upstream did not accept within `RelayOptions::connect_patience`.
    connections_unanswered,
    /// Connections closed because the upstream's path led to a link, or to the socket of another user.
    upstreams_distrusted,
    /// Connections closed because tokengap's user may not connect to the upstream's socket.
    upstreams_forbidden,
    /// Times that accepting failed (no file descriptors left, for example).
    accept_errors,
    /// Connections ended by a crash in tokengap.
    panics,
    /// Bytes relayed from connecting sides to upstreams.
    bytes_forward,
    /// Bytes relayed from upstreams to connecting sides.
    bytes_backward,
    /// Messages relayed from connecting sides to upstreams.
    frames_forward,
    /// Messages relayed from upstreams to connecting sides.
    frames_backward,
    /// Messages, or ranges of bytes from HTTP servers, whose observation was dropped because the queue was full, or the budget used up.
    dropped,
    /// Reads that were shortened because connections held most of `RelayOptions::max_buffered_bytes`.
    reads_shortened,
    /// Openings, closings and losses that were not reported.
    unreported,
    /// Bytes currently allocated for reads and observations.
    held_bytes,
}

/// One counter, written by one thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counter {
    value: AtomicU64,
}

impl Counter {
    /// Raises the counter by `count`.
    pub(super) fn add(&self, count: u64) {
        self.value.fetch_add(count, Ordering::Relaxed);
    }

    /// Lowers the counter by `count`.
    pub(super) fn subtract(&self, count: u64) {
        self.value.fetch_sub(count, Ordering::Relaxed);
    }

    /// Replaces the value.
    pub(super) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// The current value.
    pub(super) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}
