//! Detail of one request: stages, and the fate of each chunk.

use outputs::report::bar::{Segment, gathered};
use trace::detect::attribution::LegKind;
use trace::engine::{EngineState, StageNames};
use trace::event::{ToolCallOutcome, ToolCalls};
use trace::ledger::{ChunkRecord, Losses, RequestHistory};
use trace::path::Ends;
use trace::{HopId, MonoNs};

use super::evidence::{Kept, evidence};
use super::fate::Fate;
use super::flags::Flag;
use super::row::Row;

/// An observed chunk of the first hop, followed through all hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLine {
    pub(crate) sent: Option<MonoNs>,
    /// Queue wait on each hop of [`Detail::path`]; `None` if the receive was not observed.
    pub(crate) waits: Vec<Option<u64>>,
    /// Wakeup in which the receiver of the last hop received it.
    pub(crate) wakeup: Option<u32>,
    pub(crate) tokens: u32,
    pub(crate) end: Option<u32>,
    pub(crate) fate: Fate,
    /// For a merged or lost chunk: the chunk received next in the same wakeup (1-based), and the delay until then.
    pub(crate) followed: Option<(usize, u64)>,
    /// How a part of a tool call that is in this chunk differs in the response.
    pub(crate) tool_call: Option<ToolCallOutcome>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Detail {
    pub(crate) rid: String,
    /// `None` if the ledger has evicted the request.
    pub(crate) row: Option<Row>,
    /// Points on the request's path, with their names in the engine's logs, if any.
    pub(crate) stages: Vec<(MonoNs, String)>,
    /// Breakdown of the time to first token.
    pub(crate) time: Vec<Segment>,
    /// Rows of ticks on a shared time axis, each with its label.
    pub(crate) tracks: Vec<(String, Vec<(MonoNs, char)>)>,
    pub(crate) chunks: Vec<ChunkLine>,
    /// Roles that receive the chunks, in the order of the path.
    pub(crate) path: Vec<String>,
    /// One sentence per flag.
    pub(crate) evidence: Vec<(Flag, String)>,
    pub(crate) kept: Kept,
    /// Start of the known chunks, if earlier ones were overwritten.
    pub(crate) since: Option<MonoNs>,
}

#[derive(Clone, Debug)]
pub(crate) struct HopEnds {
    pub(crate) id: HopId,
    pub(crate) ends: Ends<Box<str>>,
    pub(crate) observes_received: bool,
}

impl Detail {
    pub(crate) fn build(
        rid: &str,
        history: &RequestHistory,
        row: Option<Row>,
        hops: &[HopEnds],
        engine: &EngineState,
        kept: Kept,
    ) -> Self {
        let legs = legs(history, hops, kept.first);
        let mut chunks = lines(&legs, kept.predicted.as_ref().filter(|_| history.deliveries.is_empty()));
        if let Some(calls) = &kept.tool_calls {
            mark_part(&mut chunks, calls);
        }
        Self {
            rid: rid.to_owned(),
            time: time(&legs, kept.delivered_first),
            stages: stages(&legs, history, kept.delivered_first, engine.facts().stages()),
            tracks: tracks(&legs, hops, history, &chunks),
            evidence: row.as_ref().map(|row| evidence(row, engine, &kept)).unwrap_or_default(),
            path: legs.iter().map(|leg| leg.hop.ends.to.to_string()).collect(),
            since: history.since,
            chunks,
            row,
            kept,
        }
    }

    /// Numbers of the chunks that were lost or merged, or that are in the differing part of a tool call (0-based). Where a tool call
    /// differs, chunks with an unknown outcome are left out, because all later ones have it.
    pub(crate) fn harmed(&self) -> impl DoubleEndedIterator<Item = usize> {
        let in_call = self.chunks.iter().any(|chunk| chunk.tool_call.is_some());
        let chunks = self.chunks.iter().enumerate();
        let is_harmed = move |chunk: &ChunkLine| {
            let is_unknown = chunk.fate == Fate::Unknown && in_call;
            chunk.tool_call.is_some() || chunk.fate.is_harm() && !is_unknown
        };
        chunks.filter(move |(_, chunk)| is_harmed(chunk)).map(|(place, _)| place)
    }

    /// First and last time of all ticks and stages.
    pub(crate) fn span(&self) -> Option<(MonoNs, MonoNs)> {
        let ticks = self.tracks.iter().flat_map(|(_, ticks)| ticks).map(|tick| tick.0);
        let times = || ticks.clone().chain(self.stages.iter().map(|stage| stage.0));
        times().min().zip(times().max())
    }
}

/// The request on one hop.
struct Leg<'a> {
    hop: &'a HopEnds,
    chunks: Vec<ChunkRecord>,
    /// First send and first receive.
    sent: Option<MonoNs>,
    received: Option<MonoNs>,
}

/// The hops that the chunks crossed, in the order of the path.
fn legs<'a>(history: &RequestHistory, hops: &'a [HopEnds], first: (Option<MonoNs>, Option<MonoNs>)) -> Vec<Leg<'a>> {
    let mut legs: Vec<Leg<'a>> = Vec::new();
    for &chunk in &history.chunks {
        if let Some(leg) = legs.iter_mut().find(|leg| leg.hop.id == chunk.hop) {
            leg.chunks.push(chunk);
        } else if let Some(hop) = hops.iter().find(|hop| hop.id == chunk.hop) {
            legs.push(Leg { hop, chunks: vec![chunk], sent: None, received: None });
        }
    }
    let places = legs.len();
    let in_hihistory = |at: Option<MonoNs>| at.filter(|_| history.since.is_none());
    for (place, leg) in legs.iter_mut().enumerate() {
        let (sent, received) = (leg.chunks.iter().find_map(|c| c.sent), leg.chunks.iter().find_map(|c| c.received));
        leg.sent = in_hihistory(sent).or(first.0.filter(|_| place == 0));
        leg.received = in_hihistory(received).or(first.1.filter(|_| place + 1 == places));
    }
    legs
}

/// Follows each chunk of the first hop through all hops by token count. A process between two hops may merge chunks, so a chunk continues
/// in the first one whose count is not below its own. What became of that one became of the chunk.
fn lines(legs: &[Leg<'_>], predicted: Option<&Losses>) -> Vec<ChunkLine> {
    let Some((origin, further)) = legs.split_first() else {
        return Vec::new();
    };
    let idle = if origin.hop.observes_received { Fate::Waiting } else { Fate::Sent };
    let mut next = vec![0; further.len()];
    let mut last: Vec<Option<ChunkRecord>> = Vec::new();
    let mut lines: Vec<ChunkLine> = Vec::new();
    let mut carrier = None;
    for (place, chunk) in origin.chunks.iter().enumerate() {
        let mut hops_seen = vec![Some(*chunk)];
        for (leg, next) in further.iter().map(|leg| &leg.chunks).zip(&mut next) {
            while let (Some(seen), Some(end)) = (leg.get(*next), chunk.end)
                && seen.end.is_some_and(|passed| passed < end)
            {
                *next += 1;
            }
            let by_count = |seen: &ChunkRecord| seen.end.zip(chunk.end).is_some_and(|(seen, end)| seen >= end);
            let by_place = || leg.get(place).filter(|seen| seen.end.is_none() || chunk.end.is_none());
            hops_seen.push(leg.get(*next).filter(|seen| by_count(seen)).or_else(by_place).copied());
        }
        let wait = |seen: &Option<ChunkRecord>| seen.and_then(|seen| Some(seen.received?.since(seen.sent?)));
        let received = hops_seen.last().copied().flatten();
        let judged = hops_seen.iter().rev().flatten().find(|seen| seen.outcome.is_some());
        let mut fate = Fate::of_chunk(chunk, judged, predicted, idle);
        // A process between two hops merged it into the same chunk as the one before.
        let is_same_as_before = judged.is_some_and(|judged| {
            let before: Option<(HopId, u32)> = carrier.replace((judged.hop, judged.number));
            before == Some((judged.hop, judged.number))
        });
        if is_same_as_before && fate == Fate::Delivered {
            fate = Fate::Merged;
        }
        lines.push(ChunkLine {
            sent: chunk.sent,
            waits: hops_seen.iter().map(wait).collect(),
            wakeup: received.and_then(|seen| seen.wakeup).map(|wakeup| wakeup.0),
            tokens: chunk.tokens,
            end: chunk.end,
            fate,
            followed: None,
            tool_call: None,
        });
        last.push(received);
    }
    for (place, pair) in last.windows(2).enumerate() {
        if let [Some(one), Some(other)] = pair
            && lines[place].fate.is_harm()
            && one.wakeup.map(|w| w.0) == other.wakeup.map(|w| w.0)
            && let (Some(first), Some(second), Some(_)) = (one.received, other.received, one.wakeup)
        {
            lines[place].followed = Some((place + 2, second.since(first)));
        }
    }
    lines
}

/// Marks the chunks with the part of a tool call that differs.
fn mark_part(chunks: &mut [ChunkLine], calls: &ToolCalls) {
    let Some(part) = calls.part else { return };
    for chunk in chunks {
        let differs = |end| part.tokens[0] <= end && end.saturating_sub(chunk.tokens) < part.tokens[1];
        chunk.tool_call = chunk.end.is_some_and(differs).then_some(calls.outcome);
    }
}

/// Breakdown of the first chunk's time between the first and last known moments, with the segment names of the run's path.
fn time(legs: &[Leg<'_>], delivered: Option<MonoNs>) -> Vec<Segment> {
    let mut spans: Vec<(String, Option<MonoNs>, Option<MonoNs>)> = Vec::new();
    for (place, leg) in legs.iter().enumerate() {
        let to = &leg.hop.ends.to;
        let next = legs.get(place + 1).map_or(delivered, |next| next.sent);
        if leg.received.is_some() {
            let wait = LegKind::Wait.of(&leg.hop.ends.to_string());
            spans.push((wait, leg.sent, leg.received));
            spans.push((LegKind::Inside.of(to), leg.received, next));
        } else {
            spans.push((LegKind::WaitAndInside.of(to), leg.sent, next));
        }
    }
    let known = || spans.iter().flat_map(|span| [span.1, span.2]).flatten();
    let whole = known().max().zip(known().min()).map_or(0, |(last, first)| last.since(first));
    if whole == 0 {
        return Vec::new();
    }
    let share = |(name, from, to): (String, Option<MonoNs>, Option<MonoNs>)| {
        Some(Segment { name, share: to?.since(from?) as f64 / whole as f64 })
    };
    let mut parts: Vec<Segment> = spans.into_iter().filter_map(share).collect();
    let seen: f64 = parts.iter().map(|part| part.share).sum();
    parts.push(Segment { name: "not observed".into(), share: (1.0 - seen).max(0.0) });
    gathered(parts.into_iter())
}

fn stages(
    legs: &[Leg<'_>],
    history: &RequestHistory,
    delivered: Option<MonoNs>,
    names: &StageNames,
) -> Vec<(MonoNs, String)> {
    let logged_as = |name: &str| {
        if name.is_empty() { String::new() } else { format!(" ({name})") }
    };
    let mut stages = Vec::new();
    for (place, leg) in legs.iter().enumerate() {
        let (origin, last, ends) = (place == 0, place + 1 == legs.len(), &leg.hop.ends);
        if let Some(at) = leg.sent {
            let log_name = logged_as(if origin { names.first_sent } else { "" });
            stages.push((at, format!("{} sent its first chunk{log_name}", ends.from)));
        }
        if let Some(at) = leg.received {
            let log_name = logged_as(if last { names.first_received } else { "" });
            stages.push((at, format!("{} received it{log_name}", ends.to)));
        }
    }
    if let Some(at) = delivered {
        stages.push((at, format!("first tokens accepted for the client{}", logged_as(names.first_delivered))));
    }
    if let Some(at) = history.deliveries.last().filter(|_| history.deliveries.len() > 1).map(|d| d.at) {
        stages.push((at, "latest tokens accepted for the client".into()));
    }
    stages.sort_by_key(|stage| stage.0);
    stages
}

fn tracks(
    legs: &[Leg<'_>],
    hops: &[HopEnds],
    history: &RequestHistory,
    lines: &[ChunkLine],
) -> Vec<(String, Vec<(MonoNs, char)>)> {
    let mut tracks = Vec::new();
    for (place, leg) in hops.iter().filter_map(|hop| legs.iter().enumerate().find(|(_, leg)| leg.hop.id == hop.id)) {
        let sign = |chunk: usize| if place == 0 { lines[chunk].fate.sign() } else { '|' };
        let sent = leg.chunks.iter().enumerate().filter_map(|(at, c)| Some((c.sent?, sign(at)))).collect();
        tracks.push((format!("{} sent", leg.hop.ends.from), sent));
        if leg.hop.observes_received {
            let received = leg.chunks.iter().filter_map(|c| Some((c.received?, '|'))).collect();
            tracks.push((format!("{} received", leg.hop.ends.to), received));
        }
    }
    if !history.deliveries.is_empty() {
        tracks.push(("client".into(), history.deliveries.iter().map(|d| (d.at, '|')).collect()));
    }
    tracks
}

#[cfg(test)]
mod tests {
    use trace::event::ArgumentsPart;
    use trace::ledger::{ChunkOutcome, DeliveryRecord, UnjudgedCause};

    use super::*;

    const MS: u64 = 1_000_000;

    fn seen(hop: u16, end: u32, [sent, received]: [u64; 2], wakeup: u32) -> ChunkRecord {
        ChunkRecord {
            hop: HopId(hop),
            number: end,
            sent: Some(MonoNs(sent * MS)),
            received: Some(MonoNs(received * MS)),
            wakeup: Some((wakeup, 1)),
            tokens: 1,
            end: Some(end),
            outcome: None,
        }
    }

    fn judged(chunk: ChunkRecord, outcome: ChunkOutcome) -> ChunkRecord {
        ChunkRecord { outcome: Some((MonoNs(600 * MS), outcome)), ..chunk }
    }

    fn ends(id: u16, from: &str, to: &str) -> HopEnds {
        HopEnds { id: HopId(id), ends: Ends::new(from, to).to_owned(), observes_received: true }
    }

    fn hops() -> [HopEnds; 2] {
        [ends(0, "scheduler", "detokenizer"), ends(1, "detokenizer", "tokenizer")]
    }

    fn lines_of(chunks: Vec<ChunkRecord>) -> Vec<ChunkLine> {
        let history = RequestHistory { chunks, ..RequestHistory::default() };
        lines(&legs(&history, &hops(), (None, None)), None)
    }

    #[test]
    fn the_chunks_of_a_damaged_tool_call_are_found() {
        let outcome = |end| match end {
            1 => ChunkOutcome::Delivered,
            _ => ChunkOutcome::Unjudged(UnjudgedCause::TextOnly),
        };
        let mut chunks = lines_of((1..=4).map(|end| judged(seen(0, end, [0, 1], 1), outcome(end))).collect());
        let place =
            ArgumentsPart { at: 1, chars: 9, tokens: [2, 3], whole_chunks: true, events: [1, 2], whole_events: true };
        let calls = ToolCalls {
            calls: 1,
            absent: 0,
            call: 1,
            reason: None,
            outcome: ToolCallOutcome::Missing,
            finish: None,
            events: 2,
            part: Some(place),
        };
        let mut detail = Detail { chunks: chunks.clone(), ..Detail::default() };
        assert_eq!(detail.harmed().collect::<Vec<_>>(), [1, 2, 3]);
        mark_part(&mut chunks, &calls);
        detail.chunks = chunks;
        assert_eq!(detail.harmed().collect::<Vec<_>>(), [1, 2]);
    }

    /// Expected pattern behind a detokenizer: each of its receives has its own wakeup, while those of the tokenizer share one.
    #[test]
    fn a_chunk_is_followed_through_every_hop_to_the_wakeup_that_drops_it() {
        let delivery = |end| DeliveryRecord { at: MonoNs(600 * MS), tokens: 1, end: Some(end) };
        let history = RequestHistory {
            chunks: vec![
                seen(0, 1, [0, 1], 10),
                judged(seen(1, 1, [2, 465], 77), ChunkOutcome::Dropped),
                seen(0, 2, [10, 11], 11),
                judged(seen(1, 2, [12, 466], 77), ChunkOutcome::Delivered),
                seen(0, 3, [500, 501], 12),
                judged(seen(1, 3, [502, 503], 78), ChunkOutcome::Delivered),
            ],
            deliveries: [2, 3].map(delivery).to_vec(),
            since: None,
        };
        let detail = Detail::build("a", &history, None, &hops(), &EngineState::default(), Kept::default());
        assert_eq!(detail.path, ["detokenizer", "tokenizer"]);
        let time: Vec<String> = detail.time.iter().map(|part| format!("{:.3} {}", part.share, part.name)).collect();
        assert_eq!(time, ["0.996 waiting on detokenizer->tokenizer", "0.004 elsewhere"]);
        let line = |n: usize| (detail.chunks[n].waits.clone(), detail.chunks[n].wakeup, detail.chunks[n].fate);
        assert_eq!(line(0), (vec![Some(MS), Some(463 * MS)], Some(77), Fate::Dropped));
        assert_eq!(line(1), (vec![Some(MS), Some(454 * MS)], Some(77), Fate::Delivered));
        assert_eq!(line(2), (vec![Some(MS), Some(MS)], Some(78), Fate::Delivered));
        assert_eq!(detail.chunks[0].followed, Some((2, MS)));
        assert_eq!(detail.chunks[1].followed, None);
    }

    #[test]
    fn merged_chunks_continue_in_the_next_chunk_sent() {
        let of_origin = (1..=3).map(|end| seen(0, end, [0, 1], 1));
        let merged = [seen(1, 2, [2, 4], 5), seen(1, 3, [3, 9], 6)].map(|chunk| judged(chunk, ChunkOutcome::Delivered));
        let lines = lines_of(of_origin.chain(merged).collect());
        let waits: Vec<_> = lines.iter().map(|line| line.waits[1]).collect();
        assert_eq!(waits, [Some(2 * MS), Some(2 * MS), Some(6 * MS)]);
        let fates: Vec<_> = lines.iter().map(|line| line.fate).collect();
        assert_eq!(fates, [Fate::Delivered, Fate::Merged, Fate::Delivered]);
    }
}
