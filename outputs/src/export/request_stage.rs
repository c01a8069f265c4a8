//! A request's path as nested stages, shared by all formats with spans.

use std::borrow::Cow;

use trace::clock::MonoNs;
use trace::id::FrameId;
use trace::ledger::{
    FirstCrossing, FirstTokenLeg, FirstTokenPlace, FrameTimes, HopGroup, HopTimes, Ledger, RequestSummary,
    RequestTimeline, TtftPath, WayPart, first_token_legs,
};

use super::ExportedRequest;

/// Begin and end of a request, a stage or a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeSpan {
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

/// One stage. Lists have parents before their children, and siblings in time order. Children lie within their
/// parents and siblings do not overlap, regardless of clock skew between observers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestStage<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) span: TimeSpan,
    /// Nesting depth; 0 is directly below the request.
    pub(super) depth: usize,
    /// Frame of the stage, for hops and for processing by the receiver.
    pub(super) frame: Option<FrameId>,
    pub(super) kind: StageKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageKind {
    /// Before the first send by the scheduler.
    Request,
    /// First send by the scheduler to first receive by the tokenizer, as in the report.
    Gap,
    /// A frame on a hop, from send to receive.
    Hop,
    /// Part of a hop's time inside the relay.
    Relay,
    /// Time inside an intermediate process, or a part of the way of which moments were not observed.
    Between,
    /// From the receive by the tokenizer to the end of processing, or to the delivery if that end was not observed.
    Processing,
    /// From the end of processing to the first tokens accepted for the client.
    Delivery,
    /// From the first delivery to the last.
    Streaming,
}

/// First and last known moment of a request.
pub(super) fn span_of_request(request: &ExportedRequest<'_>) -> TimeSpan {
    let ExportedRequest { summary, timeline, .. } = request;
    // A request begins with its first known moment, such as its arrival, which may precede its first frame.
    let mut from = summary.first_at;
    if let Some(first_time) = timeline.first_time() {
        from = from.min(first_time);
    }
    if let Some((_, first_moment)) = TtftPath::new(summary).moments().next() {
        from = from.min(first_moment);
    }
    let mut to = summary.last_at;
    if let Some(last_time) = timeline.last_time() {
        to = to.max(last_time);
    }
    // Clocks of observers differ slightly, and a span must not end before it begins.
    TimeSpan { from, to: to.max(summary.first_at).max(from) }
}

/// Times of a request's frames on the last hop, whose receiver is the tokenizer; `None` if none was observed.
pub(super) fn times_on_last_hop<'l>(timeline: &'l RequestTimeline, ledger: &Ledger) -> Option<&'l HopTimes> {
    timeline.hops.iter().find(|times| ledger.hop(times.hop).is_some_and(|hop| hop.last))
}

/// Time from the send of the finishing chunk by the scheduler to its receive by the tokenizer. `None` if either was not observed.
pub(super) fn last_chunk_gap_ns(timeline: &RequestTimeline, ledger: &Ledger) -> Option<u64> {
    let first_hop = timeline.hops.iter().find(|times| ledger.is_origin(times.hop))?;
    let last_hop = times_on_last_hop(timeline, ledger)?;
    // `last` has the times of the finishing chunk.
    let sent = first_hop.last?.sent?;
    let received = last_hop.last?.received?;
    Some(received.since(sent))
}

/// Time from the receive of the first token by the tokenizer to its delivery to the client. `None` if either was not observed.
pub(super) fn first_token_delivery_ns(summary: &RequestSummary) -> Option<u64> {
    let received = summary.received_first?;
    let delivered = summary.delivered_first?;
    Some(delivered.since(received))
}

/// Stages of a request in the order of a tree: each is followed by those within it. A leg is the time between two observed moments of the
/// first token. Legs are before, on, or behind the way from the scheduler to the tokenizer.
pub(super) fn stages_of_request<'a>(request: &ExportedRequest<'_>, ledger: &'a Ledger) -> Vec<RequestStage<'a>> {
    let whole = span_of_request(request);
    let ExportedRequest { summary, timeline, .. } = *request;
    let path = HopPath::new(timeline, ledger);
    let legs = first_token_legs(summary, &path.first_crossings());
    let mut list = StageList { stages: Vec::new(), depth: 0, next_from: whole.from, end: whole.to };
    list.add_legs_before_way(&legs, &path);
    list.add_first_token_gap(&legs, &path, summary);
    let on_last_hop = times_on_last_hop(timeline, ledger);
    list.add_legs_behind_way(&legs, &path, on_last_hop);
    list.add_streaming_stage(timeline, on_last_hop);
    list.stages
}

/// For a stage that belongs to no single frame. Only a stage on a hop and the processing by the receiver belong to one.
const NO_FRAME: Option<FrameId> = None;

/// Begin and end of a leg.
fn span_of_leg(leg: &FirstTokenLeg) -> TimeSpan {
    TimeSpan { from: leg.from, to: leg.to }
}

/// The hops that the first chunk crossed, in the order of time.
struct HopPath<'t, 'a> {
    hops: Vec<&'t HopTimes>,
    ledger: &'a Ledger,
}

impl<'t, 'a> HopPath<'t, 'a> {
    /// Finds the hops of this request's first chunk. Those beyond the ledger's limit of hops are left out.
    fn new(timeline: &'t RequestTimeline, ledger: &'a Ledger) -> Self {
        let mut hops_by_time: Vec<&HopTimes> = timeline.hops.iter().collect();
        hops_by_time.sort_by_key(|hop_times| hop_times.first.first_time());
        // A group has all hops with one name, each to another worker. Later chunks may go to another worker than the first one, so only the
        // earliest hop of a group is that of the first chunk.
        let mut hops: Vec<&HopTimes> = Vec::new();
        let mut groups: Vec<usize> = Vec::new();
        for hop_times in hops_by_time {
            let Some(hop) = ledger.hop(hop_times.hop) else { continue };
            if !groups.contains(&hop.group) {
                groups.push(hop.group);
                hops.push(hop_times);
            }
        }
        Self { hops, ledger }
    }

    /// When the first chunk was sent and received on each of the hops.
    fn first_crossings(&self) -> Vec<FirstCrossing> {
        let crossings = self.hops.iter().map(|hop_times| FirstCrossing {
            sent: hop_times.first.sent,
            received: hop_times.first.received,
            is_last: self.ledger.hop(hop_times.hop).is_some_and(|hop| hop.last),
        });
        crossings.collect()
    }

    /// Frame of the first chunk on the hop of a leg. `None` if the leg is not the time on exactly one hop.
    fn frame_of_leg(&self, leg: &FirstTokenLeg) -> Option<FrameId> {
        let FirstTokenPlace::Way(parts) = leg.place else { return None };
        let hop_times = self.hops.get(parts.only_hop()?)?;
        Some(hop_times.first.frame)
    }

    /// Group of the hop with this index on the path. `None` if the path has no such hop.
    fn group_of_hop(&self, index: usize) -> Option<&'a HopGroup> {
        let hop_times = self.hops.get(index)?;
        let hop = self.ledger.hop(hop_times.hop)?;
        Some(&self.ledger.groups()[hop.group])
    }

    /// Name of a leg, a part of the time to first token. On the way from the scheduler to the tokenizer, it consists of the names of the
    /// hops and the roles of the processes, joined by `+`.
    fn name_of_leg(&self, leg: &FirstTokenLeg) -> Cow<'a, str> {
        let parts = match leg.place {
            FirstTokenPlace::Ttft(ttft_leg) => return ttft_leg.to_string().into(),
            FirstTokenPlace::Way(parts) => parts,
        };
        let names = parts.iter().filter_map(|part| match part {
            WayPart::OnHop(index) => Some(&*self.group_of_hop(index)?.name),
            // In the process that receives from the hop.
            WayPart::Behind(index) => Some(&*self.group_of_hop(index)?.ends.to),
        });
        names.collect::<Vec<&str>>().join("+").into()
    }
}

/// Stages so far, and the limits of the next one.
struct StageList<'a> {
    stages: Vec<RequestStage<'a>>,
    depth: usize,
    /// End of the previous sibling, or begin of the parent.
    next_from: MonoNs,
    /// End of the parent.
    end: MonoNs,
}

impl<'a> StageList<'a> {
    /// Adds a stage without stages inside, clipped to the limits. Adds nothing if nothing is left of it.
    fn add_leaf(&mut self, name: Cow<'a, str>, span: TimeSpan, frame: Option<FrameId>, kind: StageKind) {
        self.add_clipped_stage(name, span, frame, kind, |_| {});
    }

    /// Adds a stage, and by `add_inside` the stages inside it. Clips the stage to the time within its parent and behind its previous
    /// sibling. If it lies outside that time, adds nothing and returns `false`.
    fn add_clipped_stage(
        &mut self,
        name: Cow<'a, str>,
        span: TimeSpan,
        frame: Option<FrameId>,
        kind: StageKind,
        add_inside: impl FnOnce(&mut Self),
    ) -> bool {
        // Clocks of observers differ slightly: a stage starts where its sibling ended and ends within its parent.
        let from = span.from.max(self.next_from);
        let to = span.to.min(self.end);
        if to < from {
            return false;
        }
        let outer_depth = self.depth;
        let outer_end = self.end;
        self.stages.push(RequestStage { name, span: TimeSpan { from, to }, depth: outer_depth, frame, kind });
        // Stages inside lie within this one, one level deeper.
        self.depth = outer_depth + 1;
        self.next_from = from;
        self.end = to;
        add_inside(self);
        // The next sibling starts where this one ends.
        self.depth = outer_depth;
        self.next_from = to;
        self.end = outer_end;
        true
    }

    /// Adds the legs before the first send by the scheduler, such as the time in its queue.
    fn add_legs_before_way(&mut self, legs: &[FirstTokenLeg], path: &HopPath<'_, 'a>) {
        for leg in legs.iter().filter(|leg| leg.is_before_way()) {
            self.add_leaf(path.name_of_leg(leg), span_of_leg(leg), NO_FRAME, StageKind::Request);
        }
    }

    /// Adds the first-token gap, from the first send by the scheduler to the first receive by the tokenizer. The legs on the way between
    /// them are inside it.
    fn add_first_token_gap(&mut self, legs: &[FirstTokenLeg], path: &HopPath<'_, 'a>, summary: &RequestSummary) {
        let legs_on_way: Vec<&FirstTokenLeg> =
            legs.iter().filter(|leg| !leg.is_before_way() && !leg.is_behind_way()).collect();
        let (Some(from), Some(to)) = (summary.sent_first, summary.received_first) else {
            // Without both ends, the gap is unknown, and its parts stand alone.
            self.add_legs_on_way(&legs_on_way, path);
            return;
        };
        self.add_clipped_stage("first token gap".into(), TimeSpan { from, to }, NO_FRAME, StageKind::Gap, |list| {
            list.add_legs_on_way(&legs_on_way, path);
        });
    }

    /// Adds the legs behind the first receive by the tokenizer: its processing of the first token, then the delivery to the client.
    fn add_legs_behind_way(&mut self, legs: &[FirstTokenLeg], path: &HopPath<'_, 'a>, on_last_hop: Option<&HopTimes>) {
        // The frame in which the tokenizer received the first token.
        let frame = on_last_hop.map(|hop_times| hop_times.first.frame);
        for (number, leg) in legs.iter().filter(|leg| leg.is_behind_way()).enumerate() {
            let kind = if number == 0 { StageKind::Processing } else { StageKind::Delivery };
            self.add_leaf(path.name_of_leg(leg), span_of_leg(leg), frame, kind);
        }
    }

    /// Adds the time from the end of the last stage to the last delivery. Adds nothing if neither a delivery nor the receive of the
    /// finishing chunk was observed.
    fn add_streaming_stage(&mut self, timeline: &RequestTimeline, on_last_hop: Option<&HopTimes>) {
        let last_received = on_last_hop.and_then(|hop_times| hop_times.last?.received);
        // The later one counts. `None` is less than any time.
        if let Some(last) = timeline.last_delivered.max(last_received) {
            let streaming = TimeSpan { from: self.next_from, to: last };
            self.add_leaf("streaming".into(), streaming, NO_FRAME, StageKind::Streaming);
        }
    }

    /// Adds the legs of the way from the scheduler to the tokenizer as stages. The relays of the hops that a leg crosses become stages inside
    /// the leg. The relays of hops that no leg crosses come last.
    fn add_legs_on_way(&mut self, legs: &[&FirstTokenLeg], path: &HopPath<'_, 'a>) {
        let mut first_uncrossed_hop = 0;
        for leg in legs {
            // Indices in the path.
            let crossed_hops = match leg.place {
                // A leg of the time to first token crosses all hops that are left.
                FirstTokenPlace::Ttft(_) => first_uncrossed_hop..path.hops.len(),
                FirstTokenPlace::Way(parts) => parts.hops(),
            };
            first_uncrossed_hop = first_uncrossed_hop.max(crossed_hops.end);
            let relays = path.hops.get(crossed_hops).unwrap_or_default();
            let frame = path.frame_of_leg(leg);
            let kind = if frame.is_some() { StageKind::Hop } else { StageKind::Between };
            let is_added = self.add_clipped_stage(path.name_of_leg(leg), span_of_leg(leg), frame, kind, |list| {
                list.add_relay_stages(relays);
            });
            // If clocks differ, no time may be left for a leg, which still passed its relays.
            if !is_added {
                self.add_relay_stages(relays);
            }
        }
        let uncrossed_hops = path.hops.get(first_uncrossed_hop..).unwrap_or_default();
        self.add_relay_stages(uncrossed_hops);
    }

    /// Adds the time of the request's first frame inside the relay of each of these hops.
    fn add_relay_stages(&mut self, hops: &[&HopTimes]) {
        for hop_times in hops {
            self.add_relay_stage(&hop_times.first);
        }
    }

    /// Adds the time of a frame inside the relay, if it passed one.
    fn add_relay_stage(&mut self, times: &FrameTimes) {
        if let (Some(from), Some(to)) = (times.sent, times.forwarded) {
            self.add_leaf("relay".into(), TimeSpan { from, to }, Some(times.frame), StageKind::Relay);
        }
    }
}
