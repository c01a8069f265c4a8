//! Words and symbols of the screen for what the ledger knows of a chunk.

use trace::ledger::{ChunkOutcome, ChunkState, UnjudgedCause};

/// A state for each word, in the order of the help.
pub(crate) const STATES: [ChunkState; 8] = [
    ChunkState::Sent,
    ChunkState::Waiting,
    ChunkState::Received,
    ChunkState::Judged(ChunkOutcome::Delivered),
    ChunkState::Judged(ChunkOutcome::Merged),
    ChunkState::Judged(ChunkOutcome::Dropped),
    ChunkState::DropPredicted,
    ChunkState::Judged(ChunkOutcome::Unjudged(UnjudgedCause::Ambiguous)),
];

/// Word for a chunk in this state. `Judged` means that the ledger has finished the comparison with the deliveries, and `Unjudged` that the
/// comparison has not shown what became of the chunk.
pub(crate) fn chunk_state_label(state: ChunkState) -> &'static str {
    match state {
        ChunkState::Sent => "sent",
        ChunkState::Waiting => "waiting",
        ChunkState::Received => "received",
        ChunkState::DropPredicted => "dropped?",
        ChunkState::Judged(ChunkOutcome::Dropped) => "DROPPED",
        ChunkState::Judged(ChunkOutcome::Unjudged(_)) => "unknown",
        ChunkState::Judged(outcome) => outcome.name(),
    }
}

/// Symbol of a chunk in this state, in a row that has a tick for each chunk. The worse the state, the more it stands out.
pub(crate) fn tick_symbol(state: ChunkState) -> char {
    match state {
        ChunkState::Waiting => '.',
        ChunkState::Sent | ChunkState::Received | ChunkState::Judged(ChunkOutcome::Delivered) => '|',
        ChunkState::Judged(ChunkOutcome::Merged) => 'o',
        ChunkState::Judged(ChunkOutcome::Dropped) => 'x',
        ChunkState::DropPredicted | ChunkState::Judged(ChunkOutcome::Unjudged(_)) => '?',
    }
}
