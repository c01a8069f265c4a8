//! Detail of one request: its stages, and the outcome of each chunk.

use outputs::report::bar::{Segment, gathered};
use trace::MonoNs;
use trace::detect::attribution::LegKind;
use trace::engine::{EngineState, Facts};
use trace::event::{ToolCallOutcome, ToolCalls};
use trace::ledger::{ChunkRecord, Losses, RequestHistory, TtftMoment};
use trace::path::Ends;

use super::chunk_status::ChunkStatus;
use super::flags::Flag;
use super::hop_ends::HopEnds;
use super::receiver_changes::receiver_changes;
use super::request_facts::{RequestFacts, evidence_of_flags};
use super::request_row::RequestRow;

/// An observed chunk of the first hop, followed through all hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLine {
    pub(crate) sent: Option<MonoNs>,
    /// Queue wait on each hop of [`RequestDetail::receiving_roles`]; `None` if the receive was not observed.
    pub(crate) waits_ns: Vec<Option<u64>>,
    /// Wakeup in which the receiver of the last hop received it.
    pub(crate) wakeup: Option<u32>,
    pub(crate) tokens: u32,
    pub(crate) end: Option<u32>,
    pub(crate) status: ChunkStatus,
    /// For a merged or lost chunk: the chunk received next in the same wakeup.
    pub(crate) next_in_wakeup: Option<NextChunk>,
    /// How a part of a tool call that is in this chunk differs in the response.
    pub(crate) tool_call: Option<ToolCallOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextChunk {
    /// Counted from 1.
    pub(crate) number: usize,
    /// Time from receiving the one before to receiving this one.
    pub(crate) delay_ns: u64,
}

/// A point on a request's path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PathStage {
    pub(crate) at: MonoNs,
    /// Text of the stage, with its name in the engine's logs, if any.
    pub(crate) text: String,
}

/// A row of ticks on the time axis that all tracks share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TickTrack {
    pub(crate) label: String,
    pub(crate) ticks: Vec<Tick>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: MonoNs,
    pub(crate) symbol: char,
}

impl Tick {
    /// A tick of an observation whose chunk has no status of its own.
    fn plain(at: MonoNs) -> Self {
        Self { at, symbol: '|' }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestDetail {
    pub(crate) rid: String,
    /// `None` if the ledger has evicted the request.
    pub(crate) row: Option<RequestRow>,
    /// In the order of time.
    pub(crate) stages: Vec<PathStage>,
    /// Breakdown of the time to first token.
    pub(crate) first_token_path: Vec<Segment>,
    pub(crate) tracks: Vec<TickTrack>,
    pub(crate) chunks: Vec<ChunkLine>,
    /// Roles that receive the chunks, in the order of the path.
    pub(crate) receiving_roles: Vec<String>,
    /// One sentence per flag.
    pub(crate) evidence: Vec<(Flag, String)>,
    pub(crate) facts: RequestFacts,
    /// Start of the known chunks, if earlier ones were overwritten.
    pub(crate) known_since: Option<MonoNs>,
}

impl RequestDetail {
    pub(crate) fn new(
        rid: &str,
        history: &RequestHistory,
        row: Option<RequestRow>,
        hops: &[HopEnds],
        engine: &EngineState,
        mut facts: RequestFacts,
    ) -> Self {
        facts.receiver_changes = receiver_changes(history, hops);
        let legs = legs_crossed(history, hops, &facts);
        // Observed deliveries decide what became of a chunk; predictions are for runs without them.
        let predicted_losses = facts.predicted_losses.as_ref().filter(|_| history.deliveries.is_empty());
        let mut chunks = follow_chunks(&legs, predicted_losses);
        if let Some(calls) = &facts.tool_calls {
            mark_damaged_tool_call(&mut chunks, calls);
        }
        Self {
            rid: rid.to_owned(),
            first_token_path: first_token_path(&legs, &facts, engine.facts()),
            stages: path_stages(&legs, history, &facts, engine.facts()),
            tracks: tracks(&legs, history, &chunks),
            evidence: row.as_ref().map(|row| evidence_of_flags(row, engine, &facts)).unwrap_or_default(),
            receiving_roles: legs.iter().map(|leg| leg.ends.to.to_string()).collect(),
            known_since: history.since,
            chunks,
            row,
            facts,
        }
    }

    /// Indices of the chunks that were lost or merged, or that are in the differing part of a tool call. Where a tool call differs, chunks
    /// with an unknown outcome are left out, because all later ones have it.
    pub(crate) fn harmed_chunks(&self) -> impl DoubleEndedIterator<Item = usize> {
        let has_damaged_call = self.chunks.iter().any(|chunk| chunk.tool_call.is_some());
        let harmed = self.chunks.iter().enumerate().filter(move |(_, chunk)| {
            let is_left_out = chunk.status == ChunkStatus::Unknown && has_damaged_call;
            chunk.tool_call.is_some() || chunk.status.is_harmed() && !is_left_out
        });
        harmed.map(|(index, _)| index)
    }

    /// First and last time of all ticks and stages.
    pub(crate) fn time_span(&self) -> Option<TimeSpan> {
        let ticks = self.tracks.iter().flat_map(|track| &track.ticks).map(|tick| tick.at);
        TimeSpan::enclosing(ticks.chain(self.stages.iter().map(|stage| stage.at)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan {
    pub(crate) first: MonoNs,
    pub(crate) last: MonoNs,
}

impl TimeSpan {
    /// The shortest span with all of these times; `None` without any.
    fn enclosing(mut times: impl Iterator<Item = MonoNs>) -> Option<Self> {
        let first = times.next()?;
        let start = Self { first, last: first };
        Some(times.fold(start, |span, at| Self { first: span.first.min(at), last: span.last.max(at) }))
    }

    pub(crate) fn length_ns(self) -> u64 {
        self.last.since(self.first)
    }
}

/// The request between two roles. A request that changes its worker crosses several hops between them.
struct HopLeg<'a> {
    ends: &'a Ends<Box<str>>,
    observes_received: bool,
    chunks: Vec<ChunkRecord>,
    first_sent: Option<MonoNs>,
    first_received: Option<MonoNs>,
}

/// The legs that the chunks crossed, in the order of the path.
fn legs_crossed<'a>(history: &RequestHistory, hops: &'a [HopEnds], facts: &RequestFacts) -> Vec<HopLeg<'a>> {
    let mut legs: Vec<HopLeg<'a>> = Vec::new();
    for hop in hops {
        if legs.iter().any(|leg| *leg.ends == hop.ends) {
            continue;
        }
        let siblings: Vec<&HopEnds> = hops.iter().filter(|sibling| sibling.ends == hop.ends).collect();
        let chunks = history.chunks.iter().filter(|chunk| siblings.iter().any(|sibling| sibling.id == chunk.hop));
        let chunks: Vec<ChunkRecord> = chunks.copied().collect();
        if !chunks.is_empty() {
            let observes_received = siblings.iter().any(|sibling| sibling.observes_received);
            let ends = &hop.ends;
            legs.push(HopLeg { ends, observes_received, chunks, first_sent: None, first_received: None });
        }
    }
    // If early chunks were overwritten, the first ones in the history are not the request's first.
    if history.since.is_none() {
        for leg in &mut legs {
            leg.first_sent = leg.chunks.iter().find_map(|chunk| chunk.sent);
            leg.first_received = leg.chunks.iter().find_map(|chunk| chunk.received);
        }
    }
    if let Some(origin) = legs.first_mut() {
        origin.first_sent = origin.first_sent.or(facts.first_sent);
    }
    if let Some(last) = legs.last_mut() {
        last.first_received = last.first_received.or(facts.first_received);
    }
    legs
}

/// Follows each chunk of the first hop through all hops by token count. A process between two hops may merge chunks, so a chunk continues
/// in the first one whose count is not below its own, and has the outcome of that one.
fn follow_chunks(legs: &[HopLeg<'_>], predicted_losses: Option<&Losses>) -> Vec<ChunkLine> {
    let Some((origin, further_legs)) = legs.split_first() else {
        return Vec::new();
    };
    let if_not_received = if origin.observes_received { ChunkStatus::Waiting } else { ChunkStatus::Sent };
    // Token counts only grow, so the search on each hop goes on where it found the chunk before.
    let mut search_from = vec![0; further_legs.len()];
    let mut last_hop_chunks: Vec<Option<ChunkRecord>> = Vec::new();
    let mut lines: Vec<ChunkLine> = Vec::new();
    let mut judged_before: Option<ChunkRecord> = None;
    for (index, chunk) in origin.chunks.iter().enumerate() {
        let mut on_each_hop = vec![Some(*chunk)];
        for (leg, from) in further_legs.iter().zip(&mut search_from) {
            on_each_hop.push(continuation(&leg.chunks, from, chunk, index));
        }
        let judged = on_each_hop.iter().rev().flatten().find(|seen| seen.outcome.is_some());
        let mut status = ChunkStatus::for_chunk(chunk, judged, predicted_losses, if_not_received);
        if let Some(&judged) = judged {
            let before = judged_before.replace(judged);
            // A process between two hops merged it into the same chunk as the one before.
            let is_same_chunk = before.is_some_and(|before| (before.hop, before.number) == (judged.hop, judged.number));
            if is_same_chunk && status == ChunkStatus::Delivered {
                status = ChunkStatus::Merged;
            }
        }
        let on_last_hop = on_each_hop.last().copied().flatten();
        lines.push(ChunkLine {
            sent: chunk.sent,
            waits_ns: on_each_hop.iter().map(|seen| queue_wait_ns(seen.as_ref()?)).collect(),
            wakeup: on_last_hop.and_then(|seen| seen.wakeup),
            tokens: chunk.tokens,
            end: chunk.end,
            status,
            next_in_wakeup: None,
            tool_call: None,
        });
        last_hop_chunks.push(on_last_hop);
    }
    for (index, pair) in last_hop_chunks.windows(2).enumerate() {
        if let [Some(chunk), Some(next)] = pair
            && lines[index].status.is_harmed()
        {
            // Indices count from 0, numbers from 1.
            lines[index].next_in_wakeup =
                delay_in_wakeup_ns(chunk, next).map(|delay_ns| NextChunk { number: index + 2, delay_ns });
        }
    }
    lines
}

/// Chunk of a further hop in which `chunk`, the one at `index` on the first hop, continues. Moves `search_from` to the first chunk with at
/// least as many tokens.
fn continuation(
    chunks: &[ChunkRecord],
    search_from: &mut usize,
    chunk: &ChunkRecord,
    index: usize,
) -> Option<ChunkRecord> {
    let same_index = chunks.get(index).copied();
    let Some(end) = chunk.end else {
        return same_index;
    };
    while chunks.get(*search_from).and_then(|seen| seen.end).is_some_and(|seen_end| seen_end < end) {
        *search_from += 1;
    }
    let found = chunks.get(*search_from).copied();
    // Without token counts, only the order of the chunks relates them.
    found.filter(|seen| seen.end.is_some()).or(same_index.filter(|seen| seen.end.is_none()))
}

fn queue_wait_ns(chunk: &ChunkRecord) -> Option<u64> {
    Some(chunk.received?.since(chunk.sent?))
}

/// Time between the receives of two chunks; `None` unless both were received in the same wakeup.
fn delay_in_wakeup_ns(chunk: &ChunkRecord, next: &ChunkRecord) -> Option<u64> {
    let is_same_wakeup = chunk.wakeup? == next.wakeup?;
    let delay_ns = next.received?.since(chunk.received?);
    is_same_wakeup.then_some(delay_ns)
}

/// Marks the chunks with the part of a tool call that differs.
fn mark_damaged_tool_call(chunks: &mut [ChunkLine], calls: &ToolCalls) {
    let Some(part) = calls.part else { return };
    let [first_token, end_token] = part.tokens;
    for chunk in chunks {
        let Some(end) = chunk.end else {
            chunk.tool_call = None;
            continue;
        };
        let start = end.saturating_sub(chunk.tokens);
        // Tokens are counted from 1: the chunk has those from `start + 1` to `end`.
        let contains_part = first_token <= end && start < end_token;
        chunk.tool_call = contains_part.then_some(calls.outcome);
    }
}

/// A part of the time to first token. The ends are `None` where they were not observed.
struct PathSpan {
    name: String,
    from: Option<MonoNs>,
    to: Option<MonoNs>,
}

/// Breakdown of the first chunk's time between the first and last known moments, with the segment names of the run's path.
fn first_token_path(legs: &[HopLeg<'_>], facts: &RequestFacts, engine: &dyn Facts) -> Vec<Segment> {
    let mut spans: Vec<PathSpan> = Vec::new();
    // From the first send on, the hops tell more than the legs.
    for timed in facts.ttft_path.legs().filter(|timed| timed.leg.to <= TtftMoment::FirstSent) {
        let to = Some(MonoNs(timed.at.0 + timed.ns));
        spans.push(PathSpan { name: timed.leg.describe(engine), from: Some(timed.at), to });
    }
    for (index, leg) in legs.iter().enumerate() {
        let receiver = &leg.ends.to;
        let sent_on = legs.get(index + 1).map_or(facts.first_delivered, |next| next.first_sent);
        if leg.first_received.is_some() {
            let wait = LegKind::Wait.describe(&leg.ends.to_string());
            spans.push(PathSpan { name: wait, from: leg.first_sent, to: leg.first_received });
            spans.push(PathSpan { name: LegKind::Inside.describe(receiver), from: leg.first_received, to: sent_on });
        } else {
            let name = LegKind::WaitAndInside.describe(receiver);
            spans.push(PathSpan { name, from: leg.first_sent, to: sent_on });
        }
    }
    let whole = TimeSpan::enclosing(spans.iter().flat_map(|span| [span.from, span.to]).flatten());
    let whole_ns = whole.map_or(0, TimeSpan::length_ns);
    if whole_ns == 0 {
        return Vec::new();
    }
    let mut segments = Vec::new();
    for span in spans {
        if let (Some(from), Some(to)) = (span.from, span.to) {
            segments.push(Segment { name: span.name, share: to.since(from) as f64 / whole_ns as f64 });
        }
    }
    let observed: f64 = segments.iter().map(|segment| segment.share).sum();
    segments.push(Segment { name: "not observed".into(), share: (1.0 - observed).max(0.0) });
    gathered(segments.into_iter())
}

fn path_stages(
    legs: &[HopLeg<'_>],
    history: &RequestHistory,
    facts: &RequestFacts,
    engine: &dyn Facts,
) -> Vec<PathStage> {
    let log_names = engine.stages();
    let mut stages = Vec::new();
    for (moment, at) in facts.ttft_path.moments() {
        // The hops below show the other moments, with their own names.
        if moment < TtftMoment::FirstSent || moment == TtftMoment::Processed {
            stages.push(PathStage { at, text: moment.describe(engine) });
        }
    }
    for (index, leg) in legs.iter().enumerate() {
        let ends = leg.ends;
        if let Some(at) = leg.first_sent {
            // The engine has names for the first send and the last receive of the path.
            let log_name = if index == 0 { in_parentheses(log_names.first_sent) } else { String::new() };
            stages.push(PathStage { at, text: format!("{} sent its first chunk{log_name}", ends.from) });
        }
        if let Some(at) = leg.first_received {
            let is_last = index + 1 == legs.len();
            let log_name = if is_last { in_parentheses(log_names.first_received) } else { String::new() };
            stages.push(PathStage { at, text: format!("{} received it{log_name}", ends.to) });
        }
    }
    if let Some(at) = facts.first_delivered {
        let log_name = in_parentheses(log_names.first_delivered);
        stages.push(PathStage { at, text: format!("first tokens accepted for the client{log_name}") });
    }
    if let [_, .., latest] = history.deliveries.as_slice() {
        stages.push(PathStage { at: latest.at, text: "latest tokens accepted for the client".into() });
    }
    // Moments of several sources, each in its own order.
    stages.sort_by_key(|stage| stage.at);
    stages
}

/// ` (name)`, or nothing for an empty name.
fn in_parentheses(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({name})") }
}

fn tracks(legs: &[HopLeg<'_>], history: &RequestHistory, lines: &[ChunkLine]) -> Vec<TickTrack> {
    let mut tracks = Vec::new();
    for (leg_index, leg) in legs.iter().enumerate() {
        let chunks = &leg.chunks;
        let sent = chunks.iter().enumerate().filter_map(|(chunk_index, chunk)| {
            let at = chunk.sent?;
            // Only the chunks of the first hop have a line, and so a status.
            let status = (leg_index == 0).then(|| lines[chunk_index].status);
            Some(status.map_or(Tick::plain(at), |status| Tick { at, symbol: status.tick_symbol() }))
        });
        tracks.push(TickTrack { label: format!("{} sent", leg.ends.from), ticks: sent.collect() });
        if leg.observes_received {
            let received = chunks.iter().filter_map(|chunk| chunk.received).map(Tick::plain);
            tracks.push(TickTrack { label: format!("{} received", leg.ends.to), ticks: received.collect() });
        }
    }
    if !history.deliveries.is_empty() {
        let deliveries = history.deliveries.iter().map(|delivery| Tick::plain(delivery.at));
        tracks.push(TickTrack { label: "client".into(), ticks: deliveries.collect() });
    }
    tracks
}

#[cfg(test)]
mod tests {
    use trace::HopId;
    use trace::event::ArgumentsPart;
    use trace::ledger::{ChunkOutcome, DeliveryRecord, UnjudgedCause};

    use super::*;
    use crate::state::receiver_changes::ReceiverChange;

    const MS: u64 = 1_000_000;

    fn seen(hop: u16, end: u32, [sent, received]: [u64; 2], wakeup: u32) -> ChunkRecord {
        ChunkRecord {
            hop: HopId(hop),
            number: end,
            sent: Some(MonoNs(sent * MS)),
            received: Some(MonoNs(received * MS)),
            wakeup: Some(wakeup),
            tokens: 1,
            end: Some(end),
            outcome: None,
        }
    }

    fn judged(chunk: ChunkRecord, outcome: ChunkOutcome) -> ChunkRecord {
        ChunkRecord { outcome: Some(outcome), ..chunk }
    }

    fn ends(id: u16, from: &str, to: &str) -> HopEnds {
        let receiver = format!("worker {id}");
        HopEnds { id: HopId(id), ends: Ends::new(from, to).to_owned(), receiver, observes_received: true }
    }

    fn hops() -> [HopEnds; 2] {
        [ends(0, "scheduler", "detokenizer"), ends(1, "detokenizer", "tokenizer")]
    }

    fn lines_of(chunks: Vec<ChunkRecord>) -> Vec<ChunkLine> {
        let history = RequestHistory { chunks, ..RequestHistory::default() };
        follow_chunks(&legs_crossed(&history, &hops(), &RequestFacts::default()), None)
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
        let mut detail = RequestDetail { chunks: chunks.clone(), ..RequestDetail::default() };
        assert_eq!(detail.harmed_chunks().collect::<Vec<_>>(), [1, 2, 3]);
        mark_damaged_tool_call(&mut chunks, &calls);
        detail.chunks = chunks;
        assert_eq!(detail.harmed_chunks().collect::<Vec<_>>(), [1, 2]);
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
        let detail = RequestDetail::new("a", &history, None, &hops(), &EngineState::default(), RequestFacts::default());
        assert_eq!(detail.receiving_roles, ["detokenizer", "tokenizer"]);
        let time: Vec<String> =
            detail.first_token_path.iter().map(|part| format!("{:.3} {}", part.share, part.name)).collect();
        assert_eq!(time, ["0.996 waiting on detokenizer->tokenizer", "0.004 elsewhere"]);
        let line = |n: usize| (detail.chunks[n].waits_ns.clone(), detail.chunks[n].wakeup, detail.chunks[n].status);
        assert_eq!(line(0), (vec![Some(MS), Some(463 * MS)], Some(77), ChunkStatus::Dropped));
        assert_eq!(line(1), (vec![Some(MS), Some(454 * MS)], Some(77), ChunkStatus::Delivered));
        assert_eq!(line(2), (vec![Some(MS), Some(MS)], Some(78), ChunkStatus::Delivered));
        assert_eq!(detail.chunks[0].next_in_wakeup, Some(NextChunk { number: 2, delay_ns: MS }));
        assert_eq!(detail.chunks[1].next_in_wakeup, None);
    }

    #[test]
    fn the_legs_of_a_request_that_changes_its_worker_are_those_of_its_first_chunk() {
        let hops = [
            ends(0, "scheduler", "router"),
            ends(1, "router", "detokenizer"),
            ends(2, "router", "detokenizer"),
            ends(3, "detokenizer", "tokenizer"),
            ends(4, "detokenizer", "tokenizer"),
        ];
        // The second chunk goes to the other detokenizer.
        let chunks = vec![
            seen(0, 1, [0, 1], 1),
            seen(1, 1, [1, 2], 2),
            seen(3, 1, [2, 10], 3),
            seen(0, 2, [500, 501], 4),
            seen(2, 2, [501, 502], 5),
            seen(4, 2, [502, 503], 6),
        ];
        let history = RequestHistory { chunks, ..RequestHistory::default() };
        let facts = RequestFacts { first_delivered: Some(MonoNs(10 * MS)), ..RequestFacts::default() };
        let detail = RequestDetail::new("a", &history, None, &hops, &EngineState::default(), facts);
        let path: Vec<String> =
            detail.first_token_path.iter().map(|part| format!("{:.1} {}", part.share, part.name)).collect();
        let expected = [
            "0.8 waiting on detokenizer->tokenizer",
            "0.1 waiting on scheduler->router",
            "0.1 waiting on router->detokenizer",
        ];
        assert!(expected.iter().all(|part| path.iter().any(|shown| shown == part)), "{path:?}");
        assert_eq!(detail.receiving_roles, ["router", "detokenizer", "tokenizer"]);
        let changes: Vec<String> = detail.facts.receiver_changes.iter().map(ReceiverChange::to_string).collect();
        assert_eq!(
            changes,
            [
                "detokenizer worker 1 to worker 2 at chunk 2, 500 ms after its first",
                "tokenizer worker 3 to worker 4 at chunk 2, 500 ms after its first"
            ]
        );
        let waits: Vec<_> = detail.chunks.iter().map(|chunk| chunk.waits_ns.clone()).collect();
        assert_eq!(waits, [[1, 1, 8], [1, 1, 1]].map(|waits| waits.map(|ms| Some(ms * MS)).to_vec()));
        let tracks: Vec<(&str, usize)> = detail.tracks.iter().map(|track| (&*track.label, track.ticks.len())).collect();
        assert_eq!(tracks.len(), 6, "{tracks:?}");
        assert!(tracks.iter().all(|(_, ticks)| *ticks == 2), "{tracks:?}");
    }

    #[test]
    fn merged_chunks_continue_in_the_next_chunk_sent() {
        let of_origin = (1..=3).map(|end| seen(0, end, [0, 1], 1));
        let merged = [seen(1, 2, [2, 4], 5), seen(1, 3, [3, 9], 6)].map(|chunk| judged(chunk, ChunkOutcome::Delivered));
        let lines = lines_of(of_origin.chain(merged).collect());
        let waits: Vec<_> = lines.iter().map(|line| line.waits_ns[1]).collect();
        assert_eq!(waits, [Some(2 * MS), Some(2 * MS), Some(6 * MS)]);
        let statuses: Vec<_> = lines.iter().map(|line| line.status).collect();
        assert_eq!(statuses, [ChunkStatus::Delivered, ChunkStatus::Merged, ChunkStatus::Delivered]);
    }
}
