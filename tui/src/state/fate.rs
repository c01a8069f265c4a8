//! What became of each chunk of a request: told by its deliveries, or, where those are not seen, by who shared a wakeup.

use trace::engine::{EngineState, Mode, Waiter};

use super::journal::{ChunkSeen, DeliverySeen};

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Sent; nothing further can be seen on its hop.
    Sent,
    /// Sent, not taken.
    Waiting,
    /// Taken; what came of it is not seen, or not yet.
    Taken,
    /// Its tokens left in a delivery, of which it was the first.
    Delivered,
    /// Its tokens left inside another chunk's delivery.
    Coalesced,
    /// A later delivery came without its tokens: proven.
    Dropped,
    /// Taken in one wakeup with a later one, on a release that keeps only the last: predicted.
    DropPredicted,
    /// The same on a release that merges: predicted.
    MergePredicted,
    /// Observations were lost around it.
    Unknown,
}

impl Fate {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Waiting => "waiting",
            Self::Taken => "taken",
            Self::Delivered => "delivered",
            Self::Coalesced => "coalesced",
            Self::Dropped => "DROPPED",
            Self::DropPredicted => "dropped?",
            Self::MergePredicted => "coalesced?",
            Self::Unknown => "unknown",
        }
    }

    /// The sign for it in a row of ticks.
    pub(crate) fn sign(self) -> char {
        match self {
            Self::Waiting => '.',
            Self::Sent | Self::Taken | Self::Delivered => '|',
            Self::Coalesced => 'o',
            Self::Dropped => 'x',
            Self::DropPredicted | Self::MergePredicted | Self::Unknown => '?',
        }
    }

    /// Whether its tokens did not arrive by themselves, or may not have.
    pub(crate) fn is_harm(self) -> bool {
        !matches!(self, Self::Sent | Self::Waiting | Self::Taken | Self::Delivered)
    }
}

/// What is to be expected where deliveries are not seen.
pub(crate) struct Expected<'a> {
    pub(crate) engine: &'a EngineState,
    /// Of a chunk that is not known to be taken.
    pub(crate) idle: Fate,
    /// The request's chunks on the hop into the tokenizer.
    pub(crate) last_hop: &'a [ChunkSeen],
}

impl Expected<'_> {
    /// What a chunk comes to whose waiter is still waiting when the next one is taken, where that can be told.
    fn prediction(&self) -> Option<Fate> {
        match (self.engine.waiter?, self.engine.mode?) {
            (Waiter::KeepsLast, Mode::Incremental) => Some(Fate::DropPredicted),
            (Waiter::KeepsLast, Mode::Cumulative) | (Waiter::Merges, _) => Some(Fate::MergePredicted),
            (Waiter::YieldsAll, _) => None,
        }
    }

    /// The counts of chunks that a later one met before their waiter ran: all but the last of each group.
    fn overtaken(&self) -> Vec<u32> {
        let mut overtaken = Vec::new();
        let mut called: Option<(u32, u32)> = None;
        let mut before = None;
        for chunk in self.last_hop {
            let meets = called
                .zip(chunk.wakeup)
                .is_some_and(|((wakeup, first), (mine, frame))| {
                    wakeup == mine && self.engine.still_waits(frame.saturating_sub(first))
                });
            if meets {
                overtaken.extend(before);
            } else {
                called = chunk.wakeup;
            }
            before = chunk.end;
        }
        overtaken
    }
}

/// The fate of each chunk: from the deliveries where there are any, else from who shared a wakeup.
pub(crate) fn fates(
    chunks: &[ChunkSeen],
    deliveries: &[DeliverySeen],
    broken: bool,
    expected: &Expected<'_>,
) -> Vec<Fate> {
    let overtaken = if deliveries.is_empty() {
        expected.overtaken()
    } else {
        Vec::new()
    };
    let ranges: Vec<(u32, u32)> = ranges(deliveries);
    let mut at = 0;
    let mut carried = false;
    let by_delivery = |end: u32, at: &mut usize, carried: &mut bool| {
        while ranges.get(*at).is_some_and(|r| r.1 < end) {
            *at += 1;
            *carried = false;
        }
        let &(from, _) = ranges.get(*at)?;
        Some(match (end <= from, broken) {
            (true, true) => Fate::Unknown,
            (true, false) => Fate::Dropped,
            (false, _) if std::mem::replace(carried, true) => Fate::Coalesced,
            (false, _) => Fate::Delivered,
        })
    };
    chunks
        .iter()
        .map(|chunk| {
            let known = chunk.end.and_then(|end| by_delivery(end, &mut at, &mut carried));
            let guessed = expected
                .prediction()
                .filter(|_| chunk.end.is_some_and(|end| overtaken.contains(&end)));
            let seen = if chunk.taken.is_some() {
                Fate::Taken
            } else {
                expected.idle
            };
            known.or(guessed).unwrap_or(seen)
        })
        .collect()
}

/// The counts each delivery covers, `(from, to]`.
fn ranges(deliveries: &[DeliverySeen]) -> Vec<(u32, u32)> {
    let mut to = 0u32;
    deliveries
        .iter()
        .map(|d| {
            to = d.end.unwrap_or(match d.mode {
                Mode::Incremental => to.saturating_add(d.tokens),
                Mode::Cumulative => d.tokens,
            });
            (
                if d.mode == Mode::Cumulative {
                    0
                } else {
                    to.saturating_sub(d.tokens)
                },
                to,
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trace::{HopId, MonoNs};

    use super::*;

    fn told(chunks: &[ChunkSeen], deliveries: &[DeliverySeen], broken: bool, engine: &EngineState) -> Vec<Fate> {
        fates(
            chunks,
            deliveries,
            broken,
            &Expected {
                engine,
                idle: Fate::Waiting,
                last_hop: chunks,
            },
        )
    }

    fn chunk(end: u32, wakeup: u32) -> ChunkSeen {
        let (sent, taken) = (Some(MonoNs(u64::from(end))), Some(MonoNs(100)));
        ChunkSeen {
            hop: HopId(0),
            sent,
            taken,
            wakeup: Some((wakeup, 1)),
            tokens: 1,
            end: Some(end),
        }
    }

    fn delivery(tokens: u32, end: u32) -> DeliverySeen {
        DeliverySeen {
            at: MonoNs(200),
            mode: Mode::Incremental,
            tokens,
            end: Some(end),
        }
    }

    #[test]
    fn deliveries_decide_over_every_chunk() {
        let chunks: Vec<_> = (1..=6).map(|end| chunk(end, 1)).collect();
        let found = told(
            &chunks,
            &[delivery(1, 1), delivery(1, 3), delivery(2, 5)],
            false,
            &EngineState::default(),
        );
        assert_eq!(
            found,
            [
                Fate::Delivered,
                Fate::Dropped,
                Fate::Delivered,
                Fate::Delivered,
                Fate::Coalesced,
                Fate::Taken
            ]
        );
        assert_eq!(
            told(&chunks[..2], &[delivery(1, 2)], true, &EngineState::default())[0],
            Fate::Unknown
        );
    }

    #[test]
    fn without_deliveries_a_shared_wakeup_is_a_prediction_and_no_more() {
        let chunks = [chunk(1, 1), chunk(2, 2), chunk(3, 2), chunk(4, 3)];
        let engine = EngineState {
            waiter: Some(Waiter::KeepsLast),
            mode: Some(Mode::Incremental),
            ..EngineState::default()
        };
        let found = told(&chunks, &[], false, &engine);
        assert_eq!(found, [Fate::Taken, Fate::DropPredicted, Fate::Taken, Fate::Taken]);
        assert_eq!(told(&chunks, &[], false, &EngineState::default())[1], Fate::Taken);
        // On CPython 3.12 the waiter runs before the next frame of the wakeup is taken.
        let quick = EngineState {
            turnaround: Some(1),
            ..engine
        };
        let apart = [
            ChunkSeen {
                wakeup: Some((2, 1)),
                ..chunk(1, 2)
            },
            ChunkSeen {
                wakeup: Some((2, 2)),
                ..chunk(2, 2)
            },
        ];
        assert_eq!(told(&apart, &[], false, &quick), [Fate::Taken, Fate::Taken]);
    }

    #[test]
    fn a_cumulative_delivery_covers_all_before_it() {
        let chunks = [chunk(1, 1), chunk(2, 1)];
        let said = DeliverySeen {
            mode: Mode::Cumulative,
            ..delivery(2, 2)
        };
        assert_eq!(
            told(&chunks, &[said], false, &EngineState::default()),
            [Fate::Delivered, Fate::Coalesced]
        );
    }
}
