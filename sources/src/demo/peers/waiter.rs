//! Behaviour of `_wait_one_response` when it finds queued chunks for its request.

use std::sync::Arc;

use trace::engine::{Mode, Waiter};
use trace::event::ArrivalTimes;

use super::report::PeerDelivery;
use crate::demo::truth::Account;

/// A queued chunk in `out_list`.
#[derive(Clone, Copy, Debug)]
struct Queued {
    /// Number of new tokens.
    tokens: u32,
    /// Number of tokens so far.
    completion_tokens: u32,
    finished: bool,
}

fn sum_of_tokens(chunks: &[Queued]) -> u32 {
    chunks.iter().map(|chunk| chunk.tokens).sum()
}

/// State of a request in `rid_to_state`.
#[derive(Debug)]
pub(super) struct WaiterState {
    rid: Arc<str>,
    mode: Mode,
    clients_add_up: bool,
    out_list: Vec<Queued>,
    /// Set while the event is set and the waiter is due to run.
    pub(super) is_woken: bool,
    /// When the request reached its socket; `None` once its response has begun.
    pub(super) arrival: Option<ArrivalTimes>,
    /// Number of tokens after which the client leaves; `None` if it stays.
    pub(super) leaves_after: Option<u32>,
    /// Number of tokens queued so far.
    tokens_queued: u32,
    /// Number of tokens passed to the client so far.
    tokens_given: u32,
    /// Set once one of its chunks was dropped or merged.
    is_affected: bool,
}

impl WaiterState {
    /// State of a new request. `clients_add_up`: its client takes all tokens of a delivery for new ones, whatever the mode.
    pub(super) fn new(rid: &str, mode: Mode, clients_add_up: bool) -> Self {
        Self {
            rid: rid.into(),
            mode,
            clients_add_up,
            out_list: Vec::new(),
            is_woken: false,
            arrival: None,
            leaves_after: None,
            tokens_queued: 0,
            tokens_given: 0,
            is_affected: false,
        }
    }

    pub(super) fn rid(&self) -> &Arc<str> {
        &self.rid
    }

    /// Number of tokens after which the client left; `None` if it has not left.
    pub(super) fn left_after(&self) -> Option<u32> {
        let has_left = self.leaves_after.is_some_and(|tokens| self.tokens_given >= tokens);
        has_left.then_some(self.tokens_given)
    }

    /// Queues a chunk of `tokens` tokens. `count` is the number of tokens so far, if the chunk states it.
    pub(super) fn queue_chunk(&mut self, tokens: u32, count: Option<u32>, finished: bool) {
        self.tokens_queued = count.unwrap_or(self.tokens_queued + tokens);
        self.out_list.push(Queued { tokens, completion_tokens: self.tokens_queued, finished });
    }

    /// Runs the waiter, the coroutine that passes the request's queued chunks to its client. `waiter` says what it does with several: keep
    /// the last one, merge them, or pass each. Passes deliveries to `give`, and counts dropped and merged chunks in `account`.
    pub(super) fn pass_queued_chunks(&mut self, waiter: Waiter, account: &Account, mut give: impl FnMut(PeerDelivery)) {
        self.is_woken = false;
        let queued = std::mem::take(&mut self.out_list);
        let Some((&last, earlier)) = queued.split_last() else { return };
        let is_cumulative = self.mode == Mode::Cumulative;
        if !is_cumulative && waiter == Waiter::YieldsAll {
            // Each chunk has a delivery of its own, so none is dropped or merged.
            for &chunk in &queued {
                give(self.create_and_count_delivery(chunk.tokens, chunk, account));
            }
            return;
        }
        // One delivery for all queued chunks. A cumulative one has all tokens so far, so it merges them whatever the waiter does.
        let are_dropped = !is_cumulative && waiter == Waiter::KeepsLast;
        let tokens = if is_cumulative {
            last.completion_tokens
        } else if are_dropped {
            last.tokens
        } else {
            sum_of_tokens(&queued)
        };
        // Before the delivery, which may close the request: the truth is complete once no request is open.
        if !earlier.is_empty() {
            self.count_dropped_or_merged_chunks(earlier, are_dropped, account);
        }
        give(self.create_and_count_delivery(tokens, last, account));
    }

    /// Counts the `earlier` chunks, those before the last one, as dropped or merged in the ground truth. Counts their request only once. A
    /// flag of the request notes that, so that nothing needs to be stored for finished requests.
    fn count_dropped_or_merged_chunks(&mut self, earlier: &[Queued], are_dropped: bool, account: &Account) {
        let chunks = earlier.len() as u64;
        account.update_truth(|truth| {
            if are_dropped {
                truth.chunks_dropped += chunks;
                truth.tokens_lost += u64::from(sum_of_tokens(earlier));
            } else {
                truth.chunks_merged += chunks;
            }
        });
        if !self.is_affected {
            self.is_affected = true;
            account.update_truth(|truth| truth.rids_affected += 1);
        }
    }

    /// Makes a delivery of `tokens`, and counts in `account` how many of them the client takes for new. To a client that reads the tokens
    /// as cumulative, only those that it has not received before are new. To any other client, all of them are.
    fn create_and_count_delivery(&mut self, tokens: u32, chunk: Queued, account: &Account) -> PeerDelivery {
        let mode = if self.clients_add_up { Mode::Incremental } else { self.mode };
        let new_for_client = match mode {
            Mode::Incremental => tokens,
            Mode::Cumulative => tokens - self.tokens_given,
        };
        self.tokens_given = chunk.completion_tokens;
        account.update_truth(|truth| truth.tokens_claimed += u64::from(new_for_client));
        if chunk.finished {
            account.count_closed_request();
        }
        PeerDelivery {
            rid: Arc::clone(&self.rid),
            tokens,
            mode,
            completion_tokens: chunk.completion_tokens,
            finished: chunk.finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter is woken once for three chunks of 1, 2 and 4 tokens, the last one finished.
    #[test]
    fn a_waiter_drops_merges_or_yields_queued_chunks() {
        use Mode::{Cumulative, Incremental};
        use Waiter::{KeepsLast, Merges, YieldsAll};
        // Tokens of the deliveries; chunks dropped, tokens lost, chunks merged, requests affected, tokens claimed.
        for (mode, waiter, deliveries, counts) in [
            (Incremental, KeepsLast, &[4][..], [2, 3, 0, 1, 4]),
            (Incremental, Merges, &[7], [0, 0, 2, 1, 7]),
            (Incremental, YieldsAll, &[1, 2, 4], [0, 0, 0, 0, 7]),
            (Cumulative, KeepsLast, &[7], [0, 0, 2, 1, 7]),
        ] {
            let account = Account::default();
            account.count_opened_request();
            account.count_started_request();
            let mut state = WaiterState::new("d5a06630b7c75f3897de269456fef0c2", mode, false);
            for (tokens, completion_tokens) in [(1, 1), (2, 3), (4, 7)] {
                state.queue_chunk(tokens, Some(completion_tokens), completion_tokens == 7);
            }
            let mut given = Vec::new();
            state.pass_queued_chunks(waiter, &account, |g| given.push(g.tokens));
            let truth = account.truth();
            let counted = [
                truth.chunks_dropped,
                truth.tokens_lost,
                truth.chunks_merged,
                truth.rids_affected,
                truth.tokens_claimed,
            ];
            assert_eq!((&given[..], counted), (deliveries, counts), "{mode:?} {waiter:?}");
            assert_eq!(account.open_requests(), 0);
        }
    }

    #[test]
    fn a_client_that_sums_cumulative_output_counts_too_many_tokens() {
        let account = Account::default();
        account.count_opened_request();
        account.count_started_request();
        let mut state = WaiterState::new("r", Mode::Cumulative, true);
        for n in 1..=4 {
            state.queue_chunk(1, Some(n), n == 4);
            state.pass_queued_chunks(Waiter::KeepsLast, &account, |_| {});
        }
        assert_eq!(account.truth().tokens_claimed, 1 + 2 + 3 + 4);
    }
}
