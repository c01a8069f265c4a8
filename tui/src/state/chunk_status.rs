//! What became of a chunk, as shown on the screen. Only the ledger decides it.

use trace::ledger::{ChunkOutcome, ChunkRecord, Losses};

labelled! {
    pub(crate) ChunkStatus {
        /// Sent on a hop where nothing else is observable.
        Sent = "sent",
        /// Sent but not received.
        Waiting = "waiting",
        /// Received; the rest is not observable, or has not happened yet.
        Received = "received",
        /// First chunk of the delivery that carried its tokens.
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

    /// Returns whether its tokens were merged or lost, or may have been.
    pub(crate) fn is_harmed(self) -> bool {
        !matches!(self, Self::Sent | Self::Waiting | Self::Received | Self::Delivered)
    }

    /// Status of a chunk of the first hop that continued as `last` on the hop to the client. `if_not_received` if nothing shows that it was
    /// received.
    pub(crate) fn for_chunk(
        first: &ChunkRecord,
        last: Option<&ChunkRecord>,
        predicted_losses: Option<&Losses>,
        if_not_received: Self,
    ) -> Self {
        match last.and_then(|chunk| chunk.outcome) {
            Some(ChunkOutcome::Delivered) => Self::Delivered,
            Some(ChunkOutcome::Merged) => Self::Merged,
            Some(ChunkOutcome::Dropped) => Self::Dropped,
            Some(ChunkOutcome::Unjudged(_)) => Self::Unknown,
            None if first.end.is_some_and(|end| may_contain_token(predicted_losses, end)) => Self::DropPredicted,
            None if first.received.is_some() => Self::Received,
            None => if_not_received,
        }
    }
}

/// Returns whether `losses` contains the token at this position. A token beyond the listed ranges counts as one of the unlisted losses.
fn may_contain_token(losses: Option<&Losses>, position: u32) -> bool {
    let Some(losses) = losses else { return false };
    let last_listed = losses.ranges.last().map_or(0, |range| range.tokens[1]);
    let is_listed = losses.ranges.iter().any(|range| (range.tokens[0]..=range.tokens[1]).contains(&position));
    is_listed || losses.unlisted > 0 && position > last_listed
}

#[cfg(test)]
mod tests {
    use trace::ledger::{LostRange, UnjudgedCause};
    use trace::{HopId, MonoNs};

    use super::*;

    fn chunk(end: u32, outcome: Option<ChunkOutcome>) -> ChunkRecord {
        ChunkRecord {
            hop: HopId(0),
            number: end,
            sent: Some(MonoNs(u64::from(end))),
            received: Some(MonoNs(100)),
            wakeup: Some(1),
            tokens: 1,
            end: Some(end),
            outcome,
        }
    }

    fn losses(position: u32, unlisted: u64) -> Losses {
        let range = LostRange { tokens: [position; 2], chunks: Some([position; 2]), ids: Vec::new() };
        Losses { ranges: vec![range], chunks: 1 + unlisted, tokens: 1 + unlisted, unlisted, ..Losses::default() }
    }

    fn status(chunk: &ChunkRecord, predicted: Option<&Losses>) -> ChunkStatus {
        ChunkStatus::for_chunk(chunk, Some(chunk), predicted, ChunkStatus::Waiting)
    }

    #[test]
    fn the_ledgers_outcome_takes_precedence_over_a_prediction() {
        let predicted = losses(2, 0);
        for (outcome, expected) in [
            (Some(ChunkOutcome::Delivered), ChunkStatus::Delivered),
            (Some(ChunkOutcome::Merged), ChunkStatus::Merged),
            (Some(ChunkOutcome::Dropped), ChunkStatus::Dropped),
            (Some(ChunkOutcome::Unjudged(UnjudgedCause::Ambiguous)), ChunkStatus::Unknown),
            (None, ChunkStatus::DropPredicted),
        ] {
            assert_eq!(status(&chunk(2, outcome), Some(&predicted)), expected);
        }
    }

    #[test]
    fn without_an_outcome_predictions_and_receives_are_shown() {
        assert_eq!(status(&chunk(3, None), Some(&losses(2, 0))), ChunkStatus::Received);
        assert_eq!(
            status(&chunk(3, None), Some(&losses(2, 1))),
            ChunkStatus::DropPredicted,
            "it may be an unlisted one"
        );
        assert_eq!(status(&ChunkRecord { received: None, ..chunk(3, None) }, None), ChunkStatus::Waiting);
    }
}
