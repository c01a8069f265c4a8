//! One request under the glass: its stages, what became of each of its chunks, and the evidence for its flags.

use trace::engine::{EngineState, Mode, Waiter};
use trace::{HopId, MonoNs};

use super::flags::Flag;
use super::journal::{ChunkSeen, DeliverySeen, Story};
use super::row::Row;
use super::units::{count, duration};

/// Ranges of lost tokens named in the evidence.
const RANGES: usize = 6;

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
}

impl Fate {
    /// Whether its tokens did not arrive by themselves, or may not have.
    pub(crate) fn is_harm(self) -> bool {
        !matches!(self, Self::Sent | Self::Waiting | Self::Taken | Self::Delivered)
    }
}

/// A point on the request's way, with how its name is said in `SGLang`'s logs where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) what: String,
    pub(crate) at: MonoNs,
}

/// A chunk of the first hop that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLine {
    pub(crate) sent: Option<MonoNs>,
    pub(crate) taken: Option<MonoNs>,
    pub(crate) wakeup: Option<u32>,
    pub(crate) tokens: u32,
    pub(crate) end: Option<u32>,
    pub(crate) fate: Fate,
}

/// A row of ticks on one time axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Track {
    pub(crate) label: String,
    pub(crate) ticks: Vec<(MonoNs, char)>,
}

/// Everything the detail view shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Detail {
    pub(crate) rid: String,
    /// `None` when the ledger no longer knows the request.
    pub(crate) row: Option<Row>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) tracks: Vec<Track>,
    pub(crate) chunks: Vec<ChunkLine>,
    /// One sentence for each flag.
    pub(crate) evidence: Vec<(Flag, String)>,
    /// How far back the chunks are known, when not to the beginning.
    pub(crate) since: Option<MonoNs>,
}

/// A hop as the detail needs it: id, and the two ends of its name.
#[derive(Clone, Debug)]
pub(crate) struct HopEnds {
    pub(crate) id: HopId,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) sees_taken: bool,
}

/// What [`Detail::build`] reads.
pub(crate) struct Sources<'a> {
    pub(crate) story: Story,
    pub(crate) row: Option<Row>,
    pub(crate) hops: &'a [HopEnds],
    pub(crate) engine: &'a EngineState,
    /// First send and first take as the ledger keeps them, longer than the journal.
    pub(crate) first: (Option<MonoNs>, Option<MonoNs>),
}

impl Detail {
    /// Tells the request's story.
    pub(crate) fn build(rid: &str, from: Sources<'_>) -> Self {
        let Sources {
            story,
            row,
            hops,
            engine,
            first,
        } = from;
        let origin = story.chunks.first().map(|c| c.hop);
        // Behind a detokenizer the deliveries answer to chunks of the last hop; the first hop's have the same counts.
        let of_origin: Vec<ChunkSeen> = story.chunks.iter().filter(|c| Some(c.hop) == origin).copied().collect();
        let last_hop = story.chunks.last().map(|c| c.hop);
        let burst_hop: Vec<ChunkSeen> = story
            .chunks
            .iter()
            .filter(|c| Some(c.hop) == last_hop)
            .copied()
            .collect();
        let sees_taken = hops.iter().any(|h| Some(h.id) == origin && h.sees_taken);
        let idle = if sees_taken { Fate::Waiting } else { Fate::Sent };
        let expected = Expected {
            engine,
            idle,
            last_hop: &burst_hop,
        };
        let fates = fates(&of_origin, &story.deliveries, story.broken, &expected);
        let chunks: Vec<ChunkLine> = std::iter::zip(&of_origin, &fates)
            .map(|(c, &fate)| ChunkLine {
                sent: c.sent,
                taken: c.taken,
                wakeup: c.wakeup.map(|w| w.0),
                tokens: c.tokens,
                end: c.end,
                fate,
            })
            .collect();
        Self {
            rid: rid.to_owned(),
            stages: stages(&story, hops, first),
            tracks: tracks(&story, hops, &fates, origin),
            evidence: row
                .as_ref()
                .map(|row| evidence(row, engine, &missing(&chunks)))
                .unwrap_or_default(),
            since: story.since,
            chunks,
            row,
        }
    }

    /// Begin and end of everything that has a time.
    pub(crate) fn span(&self) -> Option<(MonoNs, MonoNs)> {
        let ticks = self.tracks.iter().flat_map(|t| &t.ticks).map(|t| t.0);
        let times = ticks.chain(self.stages.iter().map(|s| s.at));
        times.fold(None, |span, at| match span {
            None => Some((at, at)),
            Some((first, last)) => Some((at.min(first), at.max(last))),
        })
    }
}

/// What is to be expected where deliveries are not seen.
struct Expected<'a> {
    engine: &'a EngineState,
    /// Of a chunk that is not known to be taken.
    idle: Fate,
    /// The request's chunks on the hop into the tokenizer.
    last_hop: &'a [ChunkSeen],
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
fn fates(chunks: &[ChunkSeen], deliveries: &[DeliverySeen], broken: bool, expected: &Expected<'_>) -> Vec<Fate> {
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

fn stages(story: &Story, hops: &[HopEnds], first: (Option<MonoNs>, Option<MonoNs>)) -> Vec<Stage> {
    let mut stages = Vec::new();
    let mut met: Vec<HopId> = Vec::new();
    for chunk in &story.chunks {
        if !met.contains(&chunk.hop) {
            met.push(chunk.hop);
        }
    }
    let whole = story.since.is_none();
    let places = met.len();
    for (place, hop) in met.into_iter().enumerate() {
        let Some(ends) = hops.iter().find(|h| h.id == hop) else {
            continue;
        };
        let mine = || story.chunks.iter().filter(move |c| c.hop == hop);
        let (origin, last) = (place == 0, place + 1 == places);
        let in_journal = |at: Option<MonoNs>| at.filter(|_| whole);
        let sent = in_journal(mine().find_map(|c| c.sent)).or(first.0.filter(|_| origin));
        let taken = in_journal(mine().find_map(|c| c.taken)).or(first.1.filter(|_| last));
        if let Some(at) = sent {
            let known_as = if origin { " (first_output_stream)" } else { "" };
            stages.push(Stage {
                what: format!("{} sent its first chunk{known_as}", ends.from),
                at,
            });
        }
        if let Some(at) = taken {
            let known_as = if last { " (tokenizer_first_token)" } else { "" };
            stages.push(Stage {
                what: format!("{} took it{known_as}", ends.to),
                at,
            });
        }
    }
    if let Some(delivery) = story.deliveries.first().filter(|_| whole) {
        stages.push(Stage {
            what: "first tokens accepted for the client (first_token_received)".into(),
            at: delivery.at,
        });
    }
    if let Some(at) = story
        .deliveries
        .last()
        .filter(|_| story.deliveries.len() > 1)
        .map(|d| d.at)
    {
        stages.push(Stage {
            what: "latest tokens accepted for the client".into(),
            at,
        });
    }
    stages.sort_by_key(|s| s.at);
    stages
}

fn tracks(story: &Story, hops: &[HopEnds], fates: &[Fate], origin: Option<HopId>) -> Vec<Track> {
    let mut tracks = Vec::new();
    for ends in hops.iter().filter(|h| story.chunks.iter().any(|c| c.hop == h.id)) {
        let mine = || story.chunks.iter().filter(|c| c.hop == ends.id);
        let sent: Vec<_> = if Some(ends.id) == origin {
            mine()
                .zip(fates)
                .filter_map(|(c, fate)| Some((c.sent?, fate.sign())))
                .collect()
        } else {
            mine().filter_map(|c| Some((c.sent?, '|'))).collect()
        };
        tracks.push(Track {
            label: format!("{} sent", ends.from),
            ticks: sent,
        });
        if ends.sees_taken {
            let taken = mine().filter_map(|c| Some((c.taken?, '|'))).collect();
            tracks.push(Track {
                label: format!("{} took", ends.to),
                ticks: taken,
            });
        }
    }
    if !story.deliveries.is_empty() {
        let ticks = story.deliveries.iter().map(|d| (d.at, '|')).collect();
        tracks.push(Track {
            label: "client".into(),
            ticks,
        });
    }
    tracks
}

/// The places of dropped tokens in the answer, as ranges counted from 1: `3, 7-9`.
fn missing(chunks: &[ChunkLine]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for chunk in chunks.iter().filter(|c| c.fate == Fate::Dropped && c.tokens > 0) {
        let Some(end) = chunk.end else { continue };
        let first = end.saturating_sub(chunk.tokens) + 1;
        match ranges.last_mut() {
            Some(last) if last.1 + 1 == first => last.1 = end,
            _ => ranges.push((first, end)),
        }
    }
    let more = if ranges.len() > RANGES { ", ..." } else { "" };
    let shown: Vec<String> = ranges
        .iter()
        .take(RANGES)
        .map(|&(first, end)| {
            if first == end {
                first.to_string()
            } else {
                format!("{first}-{end}")
            }
        })
        .collect();
    shown.join(", ") + more
}

fn evidence(row: &Row, engine: &EngineState, missing: &str) -> Vec<(Flag, String)> {
    let of = |n: Option<u64>| count(n.unwrap_or(0));
    row.flags
        .iter()
        .map(|flag| {
            let why = match flag {
                Flag::Gap => match row.life {
                    super::row::Life::Waiting => format!(
                        "the scheduler sent its first token {} ago and the tokenizer has not taken it",
                        duration(row.gap_ns.unwrap_or(0))
                    ),
                    _ => format!(
                        "its first token waited {} between scheduler and tokenizer",
                        duration(row.gap_ns.unwrap_or(0))
                    ),
                },
                Flag::Dropped => format!(
                    "{} chunks are in no delivery though later ones are; lost tokens: {}{}",
                    of(row.dropped),
                    count(row.dropped_tokens),
                    if missing.is_empty() {
                        String::new()
                    } else {
                        format!(" (places {missing})")
                    }
                ),
                Flag::DropPredicted => format!(
                    "several of its chunks were taken in one wakeup, and {} keeps only the last of them",
                    engine
                        .version
                        .as_deref()
                        .map_or("this release".into(), |v| format!("SGLang {v}"))
                ),
                Flag::Loss => format!(
                    "completion_tokens rose by more than the frames list: {} tokens never crossed the wire",
                    of(row.lost.map(|l| l.saturating_sub(row.dropped_tokens)))
                ),
                Flag::Stall => "it has begun, has not finished, and nothing new has come for long".into(),
                Flag::Inflated => {
                    "its frames list all tokens so far where new ones are meant: sums count them many times".into()
                }
                Flag::Aborted => "it was aborted by the client, the scheduler or an error".into(),
                Flag::Retracted => format!(
                    "the scheduler took it off the batch {} times to make room",
                    row.retractions
                ),
            };
            (flag, why)
        })
        .collect()
}

#[cfg(test)]
mod tests {
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
    fn lost_tokens_are_named_by_their_places() {
        let line = |end, tokens, fate| ChunkLine {
            sent: None,
            taken: None,
            wakeup: None,
            tokens,
            end: Some(end),
            fate,
        };
        let chunks = [
            line(1, 1, Fate::Dropped),
            line(2, 1, Fate::Delivered),
            line(4, 2, Fate::Dropped),
            line(5, 1, Fate::Dropped),
        ];
        assert_eq!(missing(&chunks), "1, 3-5");
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
