//! What truly happened, counted by the peers as they do it. The ledger never sees this.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// What the report shows under `demo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DemoTruth {
    /// Name of the scenario played.
    pub(crate) scenario: &'static str,
    /// Its seed.
    pub(crate) seed: u64,
    /// The peers' own account.
    pub(crate) truth: Truth,
}

/// The peers' own account. Chunks are what the scheduler sent; dropped and coalesced ones are disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Truth {
    /// Requests of which the scheduler sent at least one chunk.
    pub(crate) requests: u64,
    /// Chunks that the scheduler sent.
    pub(crate) chunks: u64,
    /// Tokens in them.
    pub(crate) tokens: u64,
    /// Chunks that a waiter threw away although nothing else carries their tokens.
    pub(crate) chunks_dropped: u64,
    /// Tokens in those.
    pub(crate) tokens_lost: u64,
    /// Chunks whose tokens left inside another chunk's delivery.
    pub(crate) chunks_coalesced: u64,
    /// Requests with a dropped or coalesced chunk.
    pub(crate) rids_affected: u64,
    /// What a client has counted that adds up everything it is given: more than `tokens` where it is given all tokens so
    /// far each time.
    pub(crate) tokens_claimed: u64,
}

/// The account that the peers write to.
#[derive(Clone, Debug, Default)]
pub(super) struct Account(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    truth: Truth,
    open: usize,
}

impl Account {
    /// The scheduler sent its first chunk of a request.
    pub(super) fn request(&self) {
        self.with(|a| {
            a.truth.requests += 1;
            a.open += 1;
        });
    }

    /// The scheduler sent a frame of that many chunks and tokens.
    pub(super) fn sent(&self, chunks: u64, tokens: u64) {
        self.with(|a| {
            a.truth.chunks += chunks;
            a.truth.tokens += tokens;
        });
    }

    /// A waiter threw chunks away.
    pub(super) fn dropped(&self, chunks: u64, tokens: u64) {
        self.with(|a| {
            a.truth.chunks_dropped += chunks;
            a.truth.tokens_lost += tokens;
        });
    }

    /// A waiter let chunks leave inside another one's delivery.
    pub(super) fn coalesced(&self, chunks: u64) {
        self.with(|a| a.truth.chunks_coalesced += chunks);
    }

    /// A request had its first dropped or coalesced chunk.
    pub(super) fn affected(&self) {
        self.with(|a| a.truth.rids_affected += 1);
    }

    /// A client added what it was given to its count.
    pub(super) fn claimed(&self, tokens: u64) {
        self.with(|a| a.truth.tokens_claimed += tokens);
    }

    /// A client was told that its request is finished.
    pub(super) fn closed(&self) {
        self.with(|a| a.open -= 1);
    }

    /// Requests that were begun and whose clients still wait.
    pub(super) fn open(&self) -> usize {
        self.with(|a| a.open)
    }

    /// The account as it stands.
    pub(super) fn truth(&self) -> Truth {
        self.with(|a| a.truth.clone())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Inner) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
