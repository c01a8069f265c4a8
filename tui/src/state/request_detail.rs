//! Detail of one request: its stages, and the outcome of each chunk.

use std::ops::Deref;

use outputs::report::bar::{Segment, merge_small_segments};
use trace::MonoNs;
use trace::detect::attribution::LegKind;
use trace::engine::{EngineState, Facts};
use trace::event::{ToolCallOutcome, ToolCalls};
use trace::ledger::{
    ChunkLife, ChunkRecord, FirstCrossing, FirstTokenPlace, LifeLeg, RequestHistory, RequestLife, RequestNumbers,
    TtftMoment, TtftPath, WayPart, first_token_legs,
};
use trace::path::Ends;

use super::chunk_status::ChunkStatus;
use super::request_facts::{FlagEvidence, RequestFacts, evidence_of_flags};
use super::request_row::RequestRow;

/// A row of the list of chunks: a chunk of the first hop, with what the ledger knows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLine {
    life: ChunkLife,
    pub(crate) status: ChunkStatus,
    /// How a part of a tool call that is in this chunk differs in the response.
    pub(crate) tool_call: Option<ToolCallOutcome>,
}

impl ChunkLine {
    fn new(life: ChunkLife) -> Self {
        Self { status: life.state.into(), life, tool_call: None }
    }
}

impl Deref for ChunkLine {
    type Target = ChunkLife;

    fn deref(&self) -> &ChunkLife {
        &self.life
    }
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
    pub(crate) evidence: Vec<FlagEvidence>,
    pub(crate) facts: RequestFacts,
    /// Start of the known chunks, if earlier ones were overwritten.
    pub(crate) known_since: Option<MonoNs>,
}

impl RequestDetail {
    pub(crate) fn new(
        rid: &str,
        history: &RequestHistory,
        life: RequestLife,
        row: Option<RequestRow>,
        engine: &EngineState,
        facts: RequestFacts,
    ) -> Self {
        let numbers = row.as_ref().map(|row| row.numbers).unwrap_or_default();
        let legs = hop_legs(&life.legs, history, &numbers);
        let mut chunks: Vec<ChunkLine> = life.chunks.into_iter().map(ChunkLine::new).collect();
        if let Some(calls) = &facts.tool_calls {
            mark_damaged_tool_call(&mut chunks, calls);
        }
        Self {
            rid: rid.to_owned(),
            first_token_path: first_token_path(&legs, &numbers, engine.facts()),
            stages: path_stages(&legs, history, &numbers, engine.facts()),
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
            chunk.tool_call.is_some() || (chunk.state.is_harmed() && !is_left_out)
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
        let mut span = Self { first, last: first };
        for at in times {
            span.first = span.first.min(at);
            span.last = span.last.max(at);
        }
        Some(span)
    }

    pub(crate) fn length_ns(self) -> u64 {
        self.last.since(self.first)
    }
}

/// The request between two roles, with the times of its first chunk.
struct HopLeg<'a> {
    ends: &'a Ends<Box<str>>,
    observes_received: bool,
    is_last: bool,
    chunks: &'a [ChunkRecord],
    first_sent: Option<MonoNs>,
    first_received: Option<MonoNs>,
}

/// The legs of the request's path with the times of its first chunk, where these are known.
fn hop_legs<'a>(legs: &'a [LifeLeg], history: &RequestHistory, numbers: &RequestNumbers) -> Vec<HopLeg<'a>> {
    let legs = legs.iter().map(|leg| HopLeg {
        ends: &leg.ends,
        observes_received: leg.observes_received,
        is_last: leg.is_last,
        chunks: &leg.chunks,
        first_sent: None,
        first_received: None,
    });
    let mut legs: Vec<HopLeg<'a>> = legs.collect();
    // If early chunks were overwritten, the first ones in the history are not the request's first.
    if history.since.is_none() {
        for leg in &mut legs {
            leg.first_sent = leg.chunks.iter().find_map(|chunk| chunk.sent);
            leg.first_received = leg.chunks.iter().find_map(|chunk| chunk.received);
        }
    }
    if let Some(origin) = legs.first_mut() {
        origin.first_sent = origin.first_sent.or(numbers.sent_first);
    }
    if let Some(last) = legs.last_mut() {
        last.first_received = last.first_received.or(numbers.received_first);
    }
    legs
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

/// Breakdown of the first token's time between the first and last known moments.
fn first_token_path(legs: &[HopLeg<'_>], numbers: &RequestNumbers, engine: &dyn Facts) -> Vec<Segment> {
    let crossings = legs.iter().map(|leg| FirstCrossing {
        sent: leg.first_sent,
        received: leg.first_received,
        is_last: leg.is_last,
    });
    let first_token_legs = first_token_legs(numbers, &crossings.collect::<Vec<_>>());
    let whole = TimeSpan::enclosing(first_token_legs.iter().flat_map(|leg| [leg.from, leg.to]));
    let whole_ns = whole.map_or(0, TimeSpan::length_ns);
    if whole_ns == 0 {
        return Vec::new();
    }
    let segments = first_token_legs.iter().map(|leg| Segment {
        name: match leg.place {
            FirstTokenPlace::Ttft(leg) => leg.describe(engine),
            FirstTokenPlace::Way(parts) => describe_way(&parts.iter().collect::<Vec<_>>(), legs),
        },
        share: leg.to.since(leg.from) as f64 / whole_ns as f64,
    });
    let mut segments: Vec<Segment> = segments.collect();
    let observed: f64 = segments.iter().map(|segment| segment.share).sum();
    segments.push(Segment { name: "not observed".into(), share: (1.0 - observed).max(0.0) });
    merge_small_segments(segments.into_iter())
}

/// Describes parts of the way from scheduler to tokenizer with the names of the run's path.
fn describe_way(parts: &[WayPart], legs: &[HopLeg<'_>]) -> String {
    match *parts {
        [WayPart::OnHop(hop)] => LegKind::Wait.describe(&legs[hop].ends.to_string()),
        [WayPart::Behind(hop)] => LegKind::Inside.describe(&legs[hop].ends.to),
        [WayPart::OnHop(hop), WayPart::Behind(_)] => LegKind::WaitAndInside.describe(&legs[hop].ends.to),
        _ => parts.iter().map(|part| describe_way(&[*part], legs)).collect::<Vec<String>>().join(" + "),
    }
}

/// The known moments of the request on its path, in the order of time.
fn path_stages(
    legs: &[HopLeg<'_>],
    history: &RequestHistory,
    numbers: &RequestNumbers,
    engine: &dyn Facts,
) -> Vec<PathStage> {
    let log_names = engine.stages();
    let mut stages = Vec::new();
    for (moment, at) in TtftPath::new(numbers).moments() {
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
    if let Some(at) = numbers.delivered_first {
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

/// A row of ticks for the sends and for the receives of each leg, and one for the deliveries.
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
    use trace::event::{ArgumentsPart, Capabilities, Received, What};
    use trace::ledger::{ChunkOutcome, ChunkState, UnjudgedCause};
    use trace::{FrameId, HopId};

    use super::*;
    use crate::state::model::Model;
    use crate::state::scene::{MS, Scene};

    fn line_of(end: u32, outcome: ChunkOutcome) -> ChunkLine {
        ChunkLine::new(ChunkLife {
            sent: Some(MonoNs(0)),
            waits_ns: Vec::new(),
            wakeup: None,
            tokens: 1,
            end: Some(end),
            state: ChunkState::Judged(outcome),
            judged: None,
            combined_with: None,
            next_in_wakeup: None,
        })
    }

    #[test]
    fn the_chunks_of_a_damaged_tool_call_are_found() {
        let outcome = |end| match end {
            1 => ChunkOutcome::Delivered,
            _ => ChunkOutcome::Unjudged(UnjudgedCause::TextOnly),
        };
        let mut chunks: Vec<ChunkLine> = (1..=4).map(|end| line_of(end, outcome(end))).collect();
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

    /// Sends the chunk with this token on a hop in a frame of its own, and receives it, at times in milliseconds.
    fn pass_chunk(scene: &mut Scene, hop: u16, frame: u64, token: u32, [sent, received]: [u64; 2]) {
        scene.send_on(hop, sent * MS, &[("a", 1, token)], None);
        let id = FrameId::new(HopId(hop), 0, frame);
        scene.emit(received * MS, What::Received(Received::in_wakeup(id, received)));
    }

    fn detail_of(scene: &Scene) -> RequestDetail {
        let mut model = Model::default();
        model.refresh_detail(&scene.analysis, &scene.pinned, "a");
        model.detail.expect("a detail")
    }

    fn shares(detail: &RequestDetail) -> Vec<String> {
        detail.first_token_path.iter().map(|part| format!("{:.1} {}", part.share, part.name)).collect()
    }

    #[test]
    fn the_legs_of_a_request_that_changes_its_worker_are_those_of_its_first_chunk() {
        let both = Capabilities::SENT | Capabilities::RECEIVED;
        let delivering = both | Capabilities::DELIVERED;
        let mut scene = Scene::new(&[
            ("scheduler->router", both),
            ("router->detokenizer", both),
            ("router->detokenizer", both),
            ("detokenizer->tokenizer", delivering),
            ("detokenizer->tokenizer", delivering),
        ]);
        pass_chunk(&mut scene, 0, 0, 1, [0, 1]);
        pass_chunk(&mut scene, 1, 0, 1, [1, 2]);
        pass_chunk(&mut scene, 3, 0, 1, [2, 10]);
        scene.deliver(10 * MS, "a", 1, 1);
        // The second chunk goes to the other detokenizer.
        pass_chunk(&mut scene, 0, 1, 2, [500, 501]);
        pass_chunk(&mut scene, 2, 0, 2, [501, 502]);
        pass_chunk(&mut scene, 4, 0, 2, [502, 503]);
        let detail = detail_of(&scene);
        let path = shares(&detail);
        let expected = [
            "0.8 waiting on detokenizer->tokenizer",
            "0.1 waiting on scheduler->router",
            "0.1 waiting on router->detokenizer",
        ];
        assert!(expected.iter().all(|part| path.iter().any(|shown| shown == part)), "{path:?}");
        assert_eq!(detail.receiving_roles, ["router", "detokenizer", "tokenizer"]);
        let waits: Vec<_> = detail.chunks.iter().map(|chunk| chunk.waits_ns.clone()).collect();
        assert_eq!(waits, [[1, 1, 8], [1, 1, 1]].map(|waits| waits.map(|ms| Some(ms * MS)).to_vec()));
        let tracks: Vec<(&str, usize)> = detail.tracks.iter().map(|track| (&*track.label, track.ticks.len())).collect();
        assert_eq!(tracks.len(), 7, "{tracks:?}");
        assert!(tracks[..6].iter().all(|(_, ticks)| *ticks == 2), "{tracks:?}");
    }
}
