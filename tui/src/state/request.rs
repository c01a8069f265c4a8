//! Detail of one request: stages, and the fate of each chunk.

use trace::engine::{EngineState, StageNames};
use trace::event::{ToolCallOutcome, ToolCalls};
use trace::path::Ends;
use trace::report::LegKind;
use trace::report::bar::{Segment, gathered};
use trace::{HopId, MonoNs};

use super::evidence::{Kept, evidence};
use super::fate::{Fate, fates};
use super::flags::Flag;
use super::journal::{ChunkSeen, RequestHistory};
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
        story: &RequestHistory,
        row: Option<Row>,
        hops: &[HopEnds],
        engine: &EngineState,
        kept: Kept,
    ) -> Self {
        let legs = legs(story, hops, kept.first);
        // Behind a detokenizer, deliveries correspond to chunks of the last hop. Chunks of the first hop have the same counts.
        let of_origin = legs.first().map_or(&[][..], |leg| &leg.chunks);
        let observes_received = legs.first().is_some_and(|leg| leg.hop.observes_received);
        let idle = if observes_received { Fate::Waiting } else { Fate::Sent };
        let losses = [kept.confirmed.as_ref(), kept.predicted.as_ref()];
        let fates = fates(of_origin, &story.deliveries, losses, idle);
        let mut chunks = lines(&legs, &fates);
        if let Some(calls) = &kept.tool_calls {
            mark_part(&mut chunks, calls);
        }
        Self {
            rid: rid.to_owned(),
            time: time(&legs, kept.delivered_first),
            stages: stages(&legs, story, kept.delivered_first, engine.facts().stages()),
            tracks: tracks(&legs, hops, story, &fates),
            evidence: row.as_ref().map(|row| evidence(row, engine, &kept)).unwrap_or_default(),
            path: legs.iter().map(|leg| leg.hop.ends.to.to_string()).collect(),
            since: story.since,
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
    chunks: Vec<ChunkSeen>,
    /// First send and first receive.
    sent: Option<MonoNs>,
    received: Option<MonoNs>,
}

/// The hops that the chunks crossed, in the order of the path.
fn legs<'a>(story: &RequestHistory, hops: &'a [HopEnds], first: (Option<MonoNs>, Option<MonoNs>)) -> Vec<Leg<'a>> {
    let mut legs: Vec<Leg<'a>> = Vec::new();
    for &chunk in &story.chunks {
        if let Some(leg) = legs.iter_mut().find(|leg| leg.hop.id == chunk.hop) {
            leg.chunks.push(chunk);
        } else if let Some(hop) = hops.iter().find(|hop| hop.id == chunk.hop) {
            legs.push(Leg { hop, chunks: vec![chunk], sent: None, received: None });
        }
    }
    let places = legs.len();
    let in_journal = |at: Option<MonoNs>| at.filter(|_| story.since.is_none());
    for (place, leg) in legs.iter_mut().enumerate() {
        let (sent, received) = (leg.chunks.iter().find_map(|c| c.sent), leg.chunks.iter().find_map(|c| c.received));
        leg.sent = in_journal(sent).or(first.0.filter(|_| place == 0));
        leg.received = in_journal(received).or(first.1.filter(|_| place + 1 == places));
    }
    legs
}

/// Follows each chunk of the first hop through all hops by token count. A process between two hops may merge chunks, so a chunk continues
/// in the first one whose count is not below its own.
fn lines(legs: &[Leg<'_>], fates: &[Fate]) -> Vec<ChunkLine> {
    let Some((origin, further)) = legs.split_first() else {
        return Vec::new();
    };
    let mut next = vec![0; further.len()];
    let mut last: Vec<Option<ChunkSeen>> = Vec::new();
    let mut lines: Vec<ChunkLine> = Vec::new();
    for (place, (chunk, &fate)) in origin.chunks.iter().zip(fates).enumerate() {
        let mut hops_seen = vec![Some(*chunk)];
        for (leg, next) in further.iter().map(|leg| &leg.chunks).zip(&mut next) {
            while let (Some(seen), Some(end)) = (leg.get(*next), chunk.end)
                && seen.end.is_some_and(|passed| passed < end)
            {
                *next += 1;
            }
            let by_count = |seen: &ChunkSeen| seen.end.zip(chunk.end).is_some_and(|(seen, end)| seen >= end);
            let by_place = || leg.get(place).filter(|seen| seen.end.is_none() || chunk.end.is_none());
            hops_seen.push(leg.get(*next).filter(|seen| by_count(seen)).or_else(by_place).copied());
        }
        let wait = |seen: &Option<ChunkSeen>| seen.and_then(|seen| Some(seen.received?.since(seen.sent?)));
        let received = hops_seen.last().copied().flatten();
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
    story: &RequestHistory,
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
    if let Some(at) = story.deliveries.last().filter(|_| story.deliveries.len() > 1).map(|d| d.at) {
        stages.push((at, "latest tokens accepted for the client".into()));
    }
    stages.sort_by_key(|stage| stage.0);
    stages
}

fn tracks(
    legs: &[Leg<'_>],
    hops: &[HopEnds],
    story: &RequestHistory,
    fates: &[Fate],
) -> Vec<(String, Vec<(MonoNs, char)>)> {
    let mut tracks = Vec::new();
    for (place, leg) in hops.iter().filter_map(|hop| legs.iter().enumerate().find(|(_, leg)| leg.hop.id == hop.id)) {
        let sign = |chunk: usize| if place == 0 { fates[chunk].sign() } else { '|' };
        let sent = leg.chunks.iter().enumerate().filter_map(|(at, c)| Some((c.sent?, sign(at)))).collect();
        tracks.push((format!("{} sent", leg.hop.ends.from), sent));
        if leg.hop.observes_received {
            let received = leg.chunks.iter().filter_map(|c| Some((c.received?, '|'))).collect();
            tracks.push((format!("{} received", leg.hop.ends.to), received));
        }
    }
    if !story.deliveries.is_empty() {
        tracks.push(("client".into(), story.deliveries.iter().map(|d| (d.at, '|')).collect()));
    }
    tracks
}

#[cfg(test)]
mod tests {
    use trace::event::ArgumentsPart;
    use trace::ledger::{Losses, LostRange};

    use super::*;
    use crate::state::journal::DeliverySeen;

    const MS: u64 = 1_000_000;

    fn seen(hop: u16, end: u32, [sent, received]: [u64; 2], wakeup: u32) -> ChunkSeen {
        ChunkSeen {
            hop: HopId(hop),
            sent: Some(MonoNs(sent * MS)),
            received: Some(MonoNs(received * MS)),
            wakeup: Some((wakeup, 1)),
            tokens: 1,
            end: Some(end),
        }
    }

    fn ends(id: u16, from: &str, to: &str) -> HopEnds {
        HopEnds { id: HopId(id), ends: Ends::new(from, to).to_owned(), observes_received: true }
    }

    fn hops() -> [HopEnds; 2] {
        [ends(0, "scheduler", "detokenizer"), ends(1, "detokenizer", "tokenizer")]
    }

    fn lines_of(chunks: Vec<ChunkSeen>, fates: &[Fate]) -> Vec<ChunkLine> {
        let story = RequestHistory { chunks, ..RequestHistory::default() };
        lines(&legs(&story, &hops(), (None, None)), fates)
    }

    #[test]
    fn the_chunks_of_a_damaged_tool_call_are_found() {
        let chunks = (1..=4).map(|end| seen(0, end, [0, 1], 1)).collect();
        let mut chunks = lines_of(chunks, &[Fate::Delivered, Fate::Unknown, Fate::Unknown, Fate::Unknown]);
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
        let (at, mode) = (MonoNs(600 * MS), trace::engine::Mode::Incremental);
        let delivery = |end| DeliverySeen { at, mode, tokens: 1, end: Some(end) };
        let story = RequestHistory {
            chunks: vec![
                seen(0, 1, [0, 1], 10),
                seen(1, 1, [2, 465], 77),
                seen(0, 2, [10, 11], 11),
                seen(1, 2, [12, 466], 77),
                seen(0, 3, [500, 501], 12),
                seen(1, 3, [502, 503], 78),
            ],
            deliveries: [2, 3].map(delivery).to_vec(),
            since: None,
        };
        let lost = LostRange { tokens: [1, 1], chunks: Some([1, 1]), ids: Vec::new() };
        let confirmed = Losses { ranges: vec![lost], chunks: 1, tokens: 1, unlisted: 0 };
        let kept = Kept { confirmed: Some(confirmed), ..Kept::default() };
        let detail = Detail::build("a", &story, None, &hops(), &EngineState::default(), kept);
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
        let merged = [seen(1, 2, [2, 4], 5), seen(1, 3, [3, 9], 6)];
        let lines = lines_of(of_origin.chain(merged).collect(), &[Fate::Delivered; 3]);
        let waits: Vec<_> = lines.iter().map(|line| line.waits[1]).collect();
        assert_eq!(waits, [Some(2 * MS), Some(2 * MS), Some(6 * MS)]);
    }
}
