//! Ground truth, counted by the peers. The ledger never sees it.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// Content of `demo` in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DemoTruth {
    pub scenario: String,
    /// Seed of the requests.
    pub seed: u64,
    /// Counts of the peers.
    pub truth: Truth,
}

/// Counts of the peers. Chunks are those sent by the scheduler; dropped and merged ones are disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Truth {
    /// Requests with at least one chunk sent by the scheduler.
    pub requests: u64,
    /// Chunks sent by the scheduler.
    pub chunks: u64,
    /// Tokens in these chunks.
    pub tokens: u64,
    /// Chunks that a waiter discarded and whose tokens no other chunk contains.
    pub chunks_dropped: u64,
    /// Tokens in the dropped chunks.
    pub tokens_lost: u64,
    /// Chunks delivered together with another chunk.
    pub chunks_merged: u64,
    /// Requests with a dropped or merged chunk.
    pub rids_affected: u64,
    /// Count of a client that adds up everything it receives. Exceeds `tokens` if each delivery contains all tokens so far.
    pub tokens_claimed: u64,
    /// Requests that the tokenizer sent to the scheduler a second or more after it had read them.
    pub requests_dispatched_late: u64,
    /// Number of times the scheduler froze.
    pub scheduler_freezes: u64,
    /// Clients that left while their response was written.
    pub clients_left: u64,
    /// Tokens that the tokenizer discarded because their client had left.
    pub tokens_discarded: u64,
    /// Requests with chunks from the scheduler 5 s or more after their client left: an abort takes about two.
    pub requests_abandoned: u64,
    /// Tokens sent for these requests after their clients left.
    pub tokens_abandoned: u64,
}

/// Shared counts that the peers update.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    state: Arc<Mutex<AccountState>>,
}

#[derive(Debug, Default)]
struct AccountState {
    truth: Truth,
    /// Number of opened requests that are not closed.
    open: usize,
    /// Number of opened requests without a chunk.
    unsent: usize,
}

impl Account {
    /// Counts a request that a client sends.
    pub(super) fn count_opened_request(&self) {
        self.with_state(|state| {
            state.open += 1;
            state.unsent += 1;
        });
    }

    /// Counts a request at its first chunk sent by the scheduler.
    pub(super) fn count_started_request(&self) {
        self.with_state(|state| {
            state.truth.requests += 1;
            state.unsent -= 1;
        });
    }

    /// Lets `update` add to the counts.
    pub(super) fn update_truth(&self, update: impl FnOnce(&mut Truth)) {
        self.with_state(|state| update(&mut state.truth));
    }

    /// Counts a request whose last chunk the tokenizer has passed to the client, or discarded.
    pub(super) fn count_closed_request(&self) {
        self.with_state(|state| state.open -= 1);
    }

    /// Counts a chunk that has arrived after its client left, so that the tokenizer discards it. The last one closes the request.
    pub(super) fn count_discarded_chunk(&self, tokens: u32, is_last: bool) {
        self.update_truth(|truth| truth.tokens_discarded += u64::from(tokens));
        if is_last {
            self.count_closed_request();
        }
    }

    /// Number of opened requests that are not closed.
    pub(super) fn open_requests(&self) -> usize {
        self.with_state(|state| state.open)
    }

    /// Number of opened requests without a chunk from the scheduler.
    pub(super) fn unsent_requests(&self) -> usize {
        self.with_state(|state| state.unsent)
    }

    /// Current counts.
    pub(super) fn truth(&self) -> Truth {
        self.with_state(|state| state.truth.clone())
    }

    fn with_state<T>(&self, use_it: impl FnOnce(&mut AccountState) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
