//! Detail of one request: its stages, and the outcome of each chunk.

use outputs::report::bar::{Segment, merge_small_segments};
use trace::MonoNs;
use trace::detect::attribution::LegKind;
use trace::engine::{EngineState, Facts};
use trace::ledger::{
    ChunkLife, ChunkOutcome, ChunkState, FirstCrossing, FirstTokenPlace, LifeLeg, RequestHistory, RequestLife,
    RequestNumbers, TtftMoment, TtftPath, WayPart, first_token_legs,
};

use super::chunk_status::tick_symbol;
use super::request_facts::{FlagEvidence, RequestFacts, evidence_of_flags};
use super::request_row::RequestRow;

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

impl TickTrack {
    /// A track of ticks at these times, whose symbols say nothing more.
    fn plain(label: String, times: impl Iterator<Item = MonoNs>) -> Self {
        Self { label, ticks: times.map(|at| Tick { at, symbol: PLAIN_TICK }).collect() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: MonoNs,
    pub(crate) symbol: char,
}

/// Tick of an observation whose chunk has no state of its own.
const PLAIN_TICK: char = '|';

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
    pub(crate) chunks: Vec<ChunkLife>,
    /// Roles that receive the chunks, in the order of the path.
    pub(crate) receiving_roles: Vec<String>,
    /// One sentence per flag.
    pub(crate) evidence: Vec<FlagEvidence>,
    pub(crate) facts: RequestFacts,
    /// Start of the known chunks, if earlier ones were overwritten.
    pub(crate) known_since: Option<MonoNs>,
}

impl RequestDetail {
    /// Collects the detail of a request. `history` has its chunks as the ledger keeps them, and `life` their way over the legs of the path.
    /// `row` is its row in the table, or `None` if the ledger has evicted the request.
    pub(crate) fn new(
        rid: &str,
        history: &RequestHistory,
        life: RequestLife,
        row: Option<RequestRow>,
        engine: &EngineState,
        facts: RequestFacts,
    ) -> Self {
        let numbers = row.as_ref().map(|row| row.numbers).unwrap_or_default();
        let RequestLife { legs, chunks } = life;
        // What this engine calls its processes and stages.
        let engine_facts = engine.facts();
        Self {
            rid: rid.to_owned(),
            first_token_path: first_token_path(&legs, &numbers, engine_facts),
            stages: list_path_stages(&legs, history, &numbers, engine_facts),
            tracks: tick_tracks(&legs, history, &chunks),
            evidence: row.as_ref().map(|row| evidence_of_flags(row, engine, &facts)).unwrap_or_default(),
            receiving_roles: legs.iter().map(|leg| leg.ends.to.to_string()).collect(),
            known_since: history.since,
            chunks,
            row,
            facts,
        }
    }

    /// Indices of the chunks that were lost or merged, or that are in the differing part of a tool call. If a tool call differs, chunks
    /// with an unknown outcome are left out, because all chunks behind the difference have that outcome.
    pub(crate) fn harmed_chunk_indices(&self) -> impl DoubleEndedIterator<Item = usize> {
        let has_damaged_call = self.chunks.iter().any(|chunk| chunk.tool_call.is_some());
        let harmed = self.chunks.iter().enumerate().filter(move |(_, chunk)| {
            let is_unknown = matches!(chunk.state, ChunkState::Judged(ChunkOutcome::Unjudged(_)));
            let is_left_out = is_unknown && has_damaged_call;
            chunk.tool_call.is_some() || (chunk.state.is_harmed() && !is_left_out)
        });
        harmed.map(|(index, _)| index)
    }

    /// First and last time of all ticks and stages; `None` without any.
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

/// Breakdown of the first token's time between the first and last known moments. Empty if no two moments are known. `legs` are the hops
/// between two roles each, in the order of the path.
fn first_token_path(legs: &[LifeLeg], numbers: &RequestNumbers, engine: &dyn Facts) -> Vec<Segment> {
    // When the first chunk was sent and received on each hop.
    let crossings = legs.iter().map(|leg| FirstCrossing {
        sent: leg.first_sent,
        received: leg.first_received,
        is_last: leg.is_last,
    });
    let crossings: Vec<FirstCrossing> = crossings.collect();
    // A part is the time from one known moment to the next one. These are moments of the request, or of its first chunk on a hop.
    let timed_parts = first_token_legs(numbers, &crossings);
    let whole = TimeSpan::enclosing(timed_parts.iter().flat_map(|part| [part.from, part.to]));
    let whole_ns = whole.map_or(0, TimeSpan::length_ns);
    if whole_ns == 0 {
        return Vec::new();
    }
    let mut segments = Vec::new();
    for part in &timed_parts {
        let name = describe_place(part.place, legs, engine);
        segments.push(Segment { name, share: part.to.since(part.from) as f64 / whole_ns as f64 });
    }
    // The parts may leave some of the time uncovered.
    let observed: f64 = segments.iter().map(|segment| segment.share).sum();
    segments.push(Segment { name: "not observed".into(), share: (1.0 - observed).max(0.0) });
    merge_small_segments(segments.into_iter())
}

/// Describes where the first token spends a part of its time: on a leg of the time to first token, or on a part of the way from scheduler
/// to tokenizer.
fn describe_place(place: FirstTokenPlace, legs: &[LifeLeg], engine: &dyn Facts) -> String {
    match place {
        FirstTokenPlace::Ttft(ttft_leg) => ttft_leg.describe(engine),
        FirstTokenPlace::Way(way) => describe_way(&way.iter().collect::<Vec<_>>(), legs),
    }
}

/// Describes consecutive parts of the way from scheduler to tokenizer with the names of the run's path. A part is the wait on a hop, or the
/// time inside the process behind it.
fn describe_way(parts: &[WayPart], legs: &[LifeLeg]) -> String {
    match *parts {
        [WayPart::OnHop(hop)] => LegKind::Wait.describe(&legs[hop].ends.to_string()),
        [WayPart::Behind(hop)] => LegKind::Inside.describe(&legs[hop].ends.to),
        // No moment between the two is known, so they have one name.
        [WayPart::OnHop(hop), WayPart::Behind(_)] => LegKind::WaitAndInside.describe(&legs[hop].ends.to),
        // Any other way is described part by part.
        _ => parts.iter().map(|part| describe_way(&[*part], legs)).collect::<Vec<String>>().join(" + "),
    }
}

/// The known moments of the request on its path, in the order of time. A leg is the hop between two roles, from the scheduler on.
fn list_path_stages(
    legs: &[LifeLeg],
    history: &RequestHistory,
    numbers: &RequestNumbers,
    engine: &dyn Facts,
) -> Vec<PathStage> {
    let log_names = engine.stages();
    let mut stages = Vec::new();
    for (moment, at) in TtftPath::new(numbers).moments() {
        // The legs and deliveries below have all moments from the first send on, except the processing.
        let is_listed_below = moment >= TtftMoment::FirstSent && moment != TtftMoment::Processed;
        if !is_listed_below {
            stages.push(PathStage { at, text: moment.describe(engine) });
        }
    }
    for (index, leg) in legs.iter().enumerate() {
        // The engine's log names only the first send and the last receive of the path.
        let is_last_leg = index + 1 == legs.len();
        let sent_log_name = if index == 0 { log_names.first_sent } else { "" };
        let received_log_name = if is_last_leg { log_names.first_received } else { "" };
        push_stages_of_leg(&mut stages, leg, sent_log_name, received_log_name);
    }
    if let Some(at) = numbers.delivered_first {
        let log_name = in_parentheses(log_names.first_delivered);
        stages.push(PathStage { at, text: format!("first tokens accepted for the client{log_name}") });
    }
    // A single delivery is that of the first tokens, which is listed above.
    if let [_, .., latest] = history.deliveries.as_slice() {
        stages.push(PathStage { at: latest.at, text: "latest tokens accepted for the client".into() });
    }
    // The stages come from several sources, each in its own order.
    stages.sort_by_key(|stage| stage.at);
    stages
}

/// ` (name)`, or nothing for an empty name.
fn in_parentheses(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({name})") }
}

/// Adds the stages at which the first chunk was sent and received on a leg. The log names are those of the engine's log, or empty.
fn push_stages_of_leg(stages: &mut Vec<PathStage>, leg: &LifeLeg, sent_log_name: &str, received_log_name: &str) {
    if let Some(at) = leg.first_sent {
        let log_name = in_parentheses(sent_log_name);
        stages.push(PathStage { at, text: format!("{} sent its first chunk{log_name}", leg.ends.from) });
    }
    if let Some(at) = leg.first_received {
        let log_name = in_parentheses(received_log_name);
        stages.push(PathStage { at, text: format!("{} received it{log_name}", leg.ends.to) });
    }
}

/// Rows of ticks: the sends of each leg, its receives if they are observed, and at the end the deliveries. `first_leg_chunks` says what
/// became of the chunks of the first leg, in their order.
fn tick_tracks(legs: &[LifeLeg], history: &RequestHistory, first_leg_chunks: &[ChunkLife]) -> Vec<TickTrack> {
    let mut tracks = Vec::new();
    for (leg_index, leg) in legs.iter().enumerate() {
        // Only the chunks of the first leg have a state.
        let chunk_states: &[ChunkLife] = if leg_index == 0 { first_leg_chunks } else { &[] };
        let ticks = ticks_of_sends(leg, chunk_states);
        tracks.push(TickTrack { label: format!("{} sent", leg.ends.from), ticks });
        if leg.observes_received {
            let received = leg.chunks.iter().filter_map(|chunk| chunk.received);
            tracks.push(TickTrack::plain(format!("{} received", leg.ends.to), received));
        }
    }
    if !history.deliveries.is_empty() {
        let delivered = history.deliveries.iter().map(|delivery| delivery.at);
        tracks.push(TickTrack::plain("client".to_owned(), delivered));
    }
    tracks
}

/// A tick for each chunk of the leg whose send was observed. Its symbol is that of the chunk's state, if `chunk_states` has it for the same
/// index.
fn ticks_of_sends(leg: &LifeLeg, chunk_states: &[ChunkLife]) -> Vec<Tick> {
    let mut ticks = Vec::new();
    for (index, chunk) in leg.chunks.iter().enumerate() {
        let Some(at) = chunk.sent else { continue };
        let symbol = chunk_states.get(index).map_or(PLAIN_TICK, |life| tick_symbol(life.state));
        ticks.push(Tick { at, symbol });
    }
    ticks
}

#[cfg(test)]
mod tests {
    use trace::event::{Capabilities, Received, ToolCallOutcome, What};
    use trace::ledger::UnjudgedCause;
    use trace::{FrameId, HopId};

    use super::*;
    use crate::state::model::Model;
    use crate::state::tests::scene::{MS, Scene};

    #[test]
    fn unknown_chunks_are_left_out_where_a_tool_call_is_damaged() {
        let state = ChunkState::Judged(ChunkOutcome::Unjudged(UnjudgedCause::TextOnly));
        let unknown = ChunkLife { state, ..ChunkLife::default() };
        let chunks = vec![ChunkLife::default(), unknown.clone(), unknown];
        let mut detail = RequestDetail { chunks, ..RequestDetail::default() };
        assert_eq!(detail.harmed_chunk_indices().collect::<Vec<_>>(), [1, 2]);
        detail.chunks[1].tool_call = Some(ToolCallOutcome::Missing);
        assert_eq!(detail.harmed_chunk_indices().collect::<Vec<_>>(), [1]);
    }

    /// Sends the chunk with this token on a hop in a frame of its own, and receives it, at times in milliseconds.
    fn pass_chunk(scene: &mut Scene, hop: u16, frame: u64, token: u32, [sent, received]: [u64; 2]) {
        scene.send_on(hop, sent * MS, &[("a", 1, token)], None);
        let id = FrameId::new(HopId(hop), 0, frame);
        scene.emit(received * MS, What::Received(Received::in_wakeup(id, received)));
    }

    fn detail_of(scene: &Scene) -> RequestDetail {
        let mut model = Model::default();
        model.refresh_request_detail(&scene.analysis, &scene.pinned, "a");
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
