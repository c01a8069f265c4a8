//! Words and symbols of the screen for what the ledger knows of a chunk.

use trace::ledger::{ChunkOutcome, ChunkState};

labelled! {
    pub(crate) ChunkStatus {
        /// Sent on a hop where nothing else is observable.
        Sent = "sent",
        /// Sent but not received.
        Waiting = "waiting",
        /// Received; the rest is not observable, or has not happened yet.
        Received = "received",
        /// Delivered; of several chunks in one delivery, the first.
        Delivered = "delivered",
        /// Delivered together with an earlier chunk.
        Merged = "merged",
        /// Proven lost: a later delivery skipped its tokens.
        Dropped = "DROPPED",
        /// Predicted loss: a later chunk arrived before the request's coroutine ran, on a release that keeps only the last chunk.
        DropPredicted = "dropped?",
        /// Delivered or lost, but unknown which.
        Unknown = "unknown",
    }
}

impl ChunkStatus {
    /// Symbol in a row of ticks.
    pub(crate) fn tick_symbol(self) -> char {
        match self {
            Self::Waiting => '.',
            Self::Sent | Self::Received | Self::Delivered => '|',
            Self::Merged => 'o',
            Self::Dropped => 'x',
            Self::DropPredicted | Self::Unknown => '?',
        }
    }
}

impl From<ChunkState> for ChunkStatus {
    fn from(state: ChunkState) -> Self {
        match state {
            ChunkState::Sent => Self::Sent,
            ChunkState::Waiting => Self::Waiting,
            ChunkState::Received => Self::Received,
            ChunkState::DropPredicted => Self::DropPredicted,
            ChunkState::Judged(ChunkOutcome::Delivered) => Self::Delivered,
            ChunkState::Judged(ChunkOutcome::Merged) => Self::Merged,
            ChunkState::Judged(ChunkOutcome::Dropped) => Self::Dropped,
            ChunkState::Judged(ChunkOutcome::Unjudged(_)) => Self::Unknown,
        }
    }
}
