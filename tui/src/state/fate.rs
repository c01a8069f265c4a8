//! Fate of each chunk of a request. Only the ledger decides which tokens are lost, whether proven or predicted. Deliveries show which
//! chunks left together.

use trace::engine::Mode;
use trace::ledger::Losses;

use super::journal::{ChunkSeen, DeliverySeen};

labelled! {
    pub(crate) Fate {
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
        /// Not in any delivery, but not proven lost, because observations around it were missed.
        Unknown = "unknown",
    }
}

impl Fate {
    /// Symbol in a row of ticks.
    pub(crate) fn sign(self) -> char {
        match self {
            Self::Waiting => '.',
            Self::Sent | Self::Received | Self::Delivered => '|',
            Self::Merged => 'o',
            Self::Dropped => 'x',
            Self::DropPredicted | Self::Unknown => '?',
        }
    }

    /// Returns whether its tokens were merged or lost, or may have been.
    pub(crate) fn is_harm(self) -> bool {
        !matches!(self, Self::Sent | Self::Waiting | Self::Received | Self::Delivered)
    }
}

/// Returns the fate of each chunk, in the order sent; `idle` if its receive was not observed. The ledger decides which tokens are lost.
pub(crate) fn fates(
    chunks: &[ChunkSeen],
    deliveries: &[DeliverySeen],
    [confirmed, predicted]: [Option<&Losses>; 2],
    idle: Fate,
) -> Vec<Fate> {
    let ranges = ranges(deliveries);
    let mut at = 0;
    let mut carried = false;
    let mut by_delivery = |end: u32| {
        while ranges.get(at).is_some_and(|r| r.1 < end) {
            at += 1;
            carried = false;
        }
        let &(from, _) = ranges.get(at)?;
        Some(match end <= from {
            true if lists(confirmed, end) => Fate::Dropped,
            true => Fate::Unknown,
            false if std::mem::replace(&mut carried, true) => Fate::Merged,
            false => Fate::Delivered,
        })
    };
    let fate = |chunk: &ChunkSeen| {
        let is_predicted = |end: u32| deliveries.is_empty() && lists(predicted, end);
        let determined = chunk.end.and_then(&mut by_delivery);
        let predicted = chunk.end.filter(|end| is_predicted(*end)).map(|_| Fate::DropPredicted);
        let seen = if chunk.received.is_some() { Fate::Received } else { idle };
        determined.or(predicted).unwrap_or(seen)
    };
    chunks.iter().map(fate).collect()
}

/// Returns whether `losses` contains the token at `place`. An undelivered token beyond the listed ranges counts as one of the unlisted
/// losses.
fn lists(losses: Option<&Losses>, place: u32) -> bool {
    losses.is_some_and(|losses| {
        let listed = losses.ranges.last().map_or(0, |range| range.tokens[1]);
        let mut ranges = losses.ranges.iter().map(|range| range.tokens);
        ranges.any(|[first, last]| (first..=last).contains(&place)) || losses.unlisted > 0 && place > listed
    })
}

/// Range of token counts covered by each delivery, `(from, to]`.
fn ranges(deliveries: &[DeliverySeen]) -> Vec<(u32, u32)> {
    let mut to = 0u32;
    deliveries
        .iter()
        .map(|d| {
            to = d.end.unwrap_or(match d.mode {
                Mode::Incremental => to.saturating_add(d.tokens),
                Mode::Cumulative => d.tokens,
            });
            (if d.mode == Mode::Cumulative { 0 } else { to.saturating_sub(d.tokens) }, to)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trace::ledger::LostRange;
    use trace::{HopId, MonoNs};

    use super::*;

    fn losses(places: &[u32], unlisted: u64) -> Losses {
        let range = |place: &u32| LostRange { tokens: [*place; 2], chunks: Some([*place; 2]), ids: Vec::new() };
        Losses {
            ranges: places.iter().map(range).collect(),
            chunks: places.len() as u64 + unlisted,
            tokens: places.len() as u64 + unlisted,
            unlisted,
        }
    }

    fn chunk(end: u32, wakeup: u32) -> ChunkSeen {
        let (sent, received) = (Some(MonoNs(u64::from(end))), Some(MonoNs(100)));
        ChunkSeen { hop: HopId(0), sent, received, wakeup: Some((wakeup, 1)), tokens: 1, end: Some(end) }
    }

    fn delivery(tokens: u32, end: u32) -> DeliverySeen {
        DeliverySeen { at: MonoNs(200), mode: Mode::Incremental, tokens, end: Some(end) }
    }

    #[test]
    fn an_undelivered_chunk_is_dropped_only_if_the_ledger_confirms_it() {
        let chunks: Vec<_> = (1..=6).map(|end| chunk(end, 1)).collect();
        let deliveries = [delivery(1, 1), delivery(1, 3), delivery(2, 5)];
        let rest = [Fate::Delivered, Fate::Delivered, Fate::Merged, Fate::Received];
        for (confirmed, second) in [
            (Some(losses(&[2], 0)), Fate::Dropped),
            (Some(losses(&[1], 1)), Fate::Dropped),
            (Some(losses(&[4], 0)), Fate::Unknown),
            (None, Fate::Unknown),
        ] {
            let found = fates(&chunks, &deliveries, [confirmed.as_ref(), None], Fate::Waiting);
            assert_eq!((found[0], found[1]), (Fate::Delivered, second), "{confirmed:?}");
            assert_eq!(found[2..], rest);
        }
    }

    #[test]
    fn predictions_come_from_the_ledger_and_apply_only_without_deliveries() {
        let chunks = [chunk(1, 1), chunk(2, 2), chunk(3, 2)];
        let predicted = losses(&[2], 0);
        let found = fates(&chunks, &[], [None, Some(&predicted)], Fate::Waiting);
        assert_eq!(found, [Fate::Received, Fate::DropPredicted, Fate::Received]);
        assert_eq!(fates(&chunks, &[], [None, None], Fate::Waiting)[1], Fate::Received);
        assert_eq!(fates(&chunks, &[delivery(1, 1)], [None, Some(&predicted)], Fate::Waiting)[1], Fate::Received);
    }

    #[test]
    fn a_cumulative_delivery_covers_all_earlier_chunks() {
        let chunks = [chunk(1, 1), chunk(2, 1)];
        let cumulative = DeliverySeen { mode: Mode::Cumulative, ..delivery(2, 2) };
        assert_eq!(fates(&chunks, &[cumulative], [None, None], Fate::Waiting), [Fate::Delivered, Fate::Merged]);
    }
}
