//! A request's path as nested stages, shared by all formats with spans.

use std::borrow::Cow;

use trace::clock::MonoNs;
use trace::id::FrameId;
use trace::ledger::{FrameTimes, HopTimes, Ledger, RequestSummary, RequestTimeline, TtftMoment, TtftPath};

use super::ExportedRequest;

/// One stage. Lists have parents before their children, and siblings in time order. Children lie within their
/// parents and siblings do not overlap, regardless of clock skew between observers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestStage<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
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
    /// From the receive on one hop to the send on the next: time inside an intermediate process.
    Between,
    /// Processing of the frame by the tokenizer.
    Processing,
    /// From the end of processing to the first tokens accepted for the client.
    Delivery,
    /// From the first delivery to the last.
    Streaming,
}

/// First and last known moment of a request.
pub(super) fn span_of_request(request: &ExportedRequest<'_>) -> (MonoNs, MonoNs) {
    let ExportedRequest { summary, timeline, .. } = request;
    // A request begins with its first known moment, such as its arrival, which may precede its first frame.
    let times = [timeline.first_time(), TtftPath::new(summary).moments().next().map(|(_, at)| at)];
    let from = times.into_iter().flatten().fold(summary.first_at, MonoNs::min);
    let to = timeline.last_time().map_or(summary.last_at, |at| at.max(summary.last_at));
    // Clocks of observers differ slightly, and a span must not end before it begins.
    (from, to.max(summary.first_at).max(from))
}

pub(super) fn times_on_last_hop<'l>(timeline: &'l RequestTimeline, ledger: &Ledger) -> Option<&'l HopTimes> {
    timeline.hops.iter().find(|h| ledger.hop(h.hop).is_some_and(|h| h.last))
}

/// From the send of the finishing chunk by the scheduler to its receive by the tokenizer, in nanoseconds.
pub(super) fn last_gap_ns(timeline: &RequestTimeline, ledger: &Ledger) -> Option<u64> {
    let sent = timeline.hops.iter().find(|h| ledger.is_origin(h.hop))?.last?.sent?;
    let received = times_on_last_hop(timeline, ledger)?.last?.received?;
    Some(received.since(sent))
}

/// From the receive of the first token by the tokenizer to its delivery to the client, in nanoseconds.
pub(super) fn first_delivery_ns(summary: &RequestSummary) -> Option<u64> {
    Some(summary.delivered_first?.since(summary.received_first?))
}

/// Stages of a request in the order of a tree: each is followed by those within it.
pub(super) fn stages_of_request<'a>(request: &ExportedRequest<'_>, ledger: &'a Ledger) -> Vec<RequestStage<'a>> {
    let (begin, end) = span_of_request(request);
    let ExportedRequest { summary, timeline, .. } = *request;
    let mut list = StageList { list: Vec::new(), depth: 0, now: begin, end };
    for timed in TtftPath::new(summary).legs().filter(|timed| timed.leg.to <= TtftMoment::FirstSent) {
        let span = (timed.at, MonoNs(timed.at.0 + timed.ns));
        list.add(timed.leg.to_string().into(), span, None, StageKind::Request, |_| {});
    }
    let mut path: Vec<&HopTimes> = timeline.hops.iter().collect();
    path.sort_by_key(|h| h.first.first_time());
    if let Some(gap) = summary.sent_first.zip(summary.received_first) {
        list.add("first token gap".into(), gap, None, StageKind::Gap, |list| list.add_path(&path, ledger));
    } else {
        list.add_path(&path, ledger);
    }
    let arrival = path.iter().find(|h| ledger.hop(h.hop).is_some_and(|h| h.last));
    if let Some((first, received)) = arrival.and_then(|h| Some((h.first, h.first.received?))) {
        let frame = Some(first.frame);
        if let Some(processed) = first.processed {
            list.add("processing".into(), (received, processed), frame, StageKind::Processing, |_| {});
        }
        if let Some(delivered) = timeline.first_delivered {
            list.add("delivery".into(), (list.now, delivered), frame, StageKind::Delivery, |_| {});
        }
    }
    let last_received = arrival.and_then(|h| h.last?.received);
    // `None` is less than any time.
    if let Some(last) = timeline.last_delivered.max(last_received) {
        list.add("streaming".into(), (list.now, last), None, StageKind::Streaming, |_| {});
    }
    list.list
}

/// Stages so far, and the interval and depth of the next one.
struct StageList<'a> {
    list: Vec<RequestStage<'a>>,
    depth: usize,
    now: MonoNs,
    end: MonoNs,
}

impl<'a> StageList<'a> {
    /// Adds a stage, clipped to the interval, with those that `inside` adds within it. Returns `false` if nothing is left of it.
    fn add(
        &mut self,
        name: Cow<'a, str>,
        span: (MonoNs, MonoNs),
        frame: Option<FrameId>,
        kind: StageKind,
        inside: impl FnOnce(&mut Self),
    ) -> bool {
        let from = span.0.max(self.now);
        // Clocks of observers differ slightly: a stage starts where its sibling ended and ends within its parent.
        let to = span.1.min(self.end);
        if to < from {
            return false;
        }
        let outer_depth = self.depth;
        let outer_end = self.end;
        self.list.push(RequestStage { name, from, to, depth: outer_depth, frame, kind });
        // Stages inside lie within this one, one level deeper.
        self.depth = outer_depth + 1;
        self.now = from;
        self.end = to;
        inside(self);
        // The next sibling starts where this one ends.
        self.depth = outer_depth;
        self.now = to;
        self.end = outer_end;
        true
    }

    /// Adds the path of the first chunk, hop by hop, with the times in between.
    fn add_path(&mut self, path: &[&HopTimes], ledger: &'a Ledger) {
        let mut previous_receive: Option<MonoNs> = None;
        for times in path {
            let Some(hop) = ledger.hop(times.hop) else { continue };
            let group = &ledger.groups()[hop.group];
            let first = &times.first;
            if let Some(between) = previous_receive.zip(first.sent) {
                self.add((&*group.ends.from).into(), between, None, StageKind::Between, |_| {});
            }
            previous_receive = first.received;
            let frame = Some(first.frame);
            let time_on_hop = first.sent.zip(first.received);
            let is_added = time_on_hop.is_some_and(|span| {
                self.add((&*group.name).into(), span, frame, StageKind::Hop, |list| list.add_relay(first))
            });
            // Without both ends of the hop, the relay's part is directly on the path.
            if !is_added {
                self.add_relay(first);
            }
        }
    }

    /// Adds the time of a frame inside the relay.
    fn add_relay(&mut self, times: &FrameTimes) {
        if let Some(span) = times.sent.zip(times.forwarded) {
            self.add("relay".into(), span, Some(times.frame), StageKind::Relay, |_| {});
        }
    }
}
