//! A request's path as nested stages, shared by all formats with spans.

use std::borrow::Cow;

use super::hops::Hops;
use super::life::LiveRequest;
use super::{Closed, OnHop};
use crate::clock::MonoNs;
use crate::id::FrameId;
use crate::ledger::Summary;

/// One stage. Lists have parents before their children, and siblings in time order. Children lie within their
/// parents and siblings do not overlap, regardless of clock skew between observers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stage<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
    /// Nesting depth; 0 is directly below the request.
    pub(super) depth: usize,
    /// Frame of the stage, for hops and for processing by the receiver.
    pub(super) frame: Option<FrameId>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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

/// Start and end of a request's span.
pub(super) fn span(request: &Closed<'_>) -> (MonoNs, MonoNs) {
    let first = request.summary.first_at;
    let began = request.life.hops.iter().filter_map(|h| h.first.began()).min();
    let from = began.map_or(first, |at| at.min(first));
    (from, request.life.ended(request.summary.last_at).max(from))
}

/// From the send of the finishing chunk by the scheduler to its receive by the tokenizer, in nanoseconds.
pub(super) fn last_gap(life: &LiveRequest, hops: &Hops) -> Option<u64> {
    let last = |wanted: &dyn Fn(&OnHop) -> bool| life.hops.iter().find(|h| wanted(h))?.last;
    let sent = last(&|h| hops.is_origin(h.hop))?.sent?;
    let received = last(&|h| hops.get(h.hop).is_some_and(|h| h.last))?.received?;
    Some(received.since(sent))
}

/// From the receive of the first token by the tokenizer to its delivery to the client, in nanoseconds.
pub(super) fn first_delivery(summary: &Summary) -> Option<u64> {
    Some(summary.delivered_first?.since(summary.received_first?))
}

/// Observed stages of a request.
pub(super) fn stages<'a>(request: &Closed<'_>, hops: &'a Hops) -> Vec<Stage<'a>> {
    let (begin, end) = span(request);
    let (summary, life) = (request.summary, request.life);
    let mut list = Stages { list: Vec::new(), end };
    let mut path: Vec<&OnHop> = life.hops.iter().collect();
    path.sort_by_key(|h| h.first.began());
    let gap = summary.sent_first.zip(summary.received_first);
    let mut cursor = begin;
    if let Some((sent, received)) = gap {
        if let Some((from, to)) =
            list.push("first token gap".into(), (sent, received), (cursor, end), 0, None, Kind::Gap)
        {
            list.path(&path, hops, (from, to), 1);
            cursor = to;
        }
    } else {
        cursor = list.path(&path, hops, (cursor, end), 0);
    }
    let arrival = path.iter().find(|h| hops.get(h.hop).is_some_and(|h| h.last));
    if let Some((first, received)) = arrival.and_then(|h| Some((h.first, h.first.received?))) {
        let frame = Some(first.frame);
        if let Some(processed) = first.processed
            && let Some((_, to)) =
                list.push("processing".into(), (received, processed), (cursor, end), 0, frame, Kind::Processing)
        {
            cursor = to;
        }
        if let Some(delivered) = life.first_delivered
            && let Some((_, to)) =
                list.push("delivery".into(), (cursor, delivered), (cursor, end), 0, frame, Kind::Delivery)
        {
            cursor = to;
        }
    }
    let last_received = arrival.and_then(|h| h.last?.received);
    if let Some(last) = life.last_delivered.max(last_received) {
        list.push("streaming".into(), (cursor, last), (cursor, end), 0, None, Kind::Streaming);
    }
    list.list
}

struct Stages<'a> {
    list: Vec<Stage<'a>>,
    end: MonoNs,
}

impl<'a> Stages<'a> {
    /// Adds a stage, clipped to `bounds`. Returns its clipped interval; `None` if nothing is left.
    fn push(
        &mut self,
        name: Cow<'a, str>,
        (from, to): (MonoNs, MonoNs),
        (low, high): (MonoNs, MonoNs),
        depth: usize,
        frame: Option<FrameId>,
        kind: Kind,
    ) -> Option<(MonoNs, MonoNs)> {
        let (from, to) = (from.max(low), to.min(high).min(self.end));
        if to < from {
            return None;
        }
        self.list.push(Stage { name, from, to, depth, frame, kind });
        Some((from, to))
    }

    /// Adds the path of the first chunk, hop by hop, with the times in between. Returns its end.
    fn path(&mut self, path: &[&OnHop], hops: &'a Hops, (low, high): (MonoNs, MonoNs), depth: usize) -> MonoNs {
        let mut cursor = low;
        let mut before: Option<MonoNs> = None;
        for on in path {
            let Some(hop) = hops.get(on.hop) else { continue };
            let first = &on.first;
            if let Some((received, sent)) = before.zip(first.sent)
                && let Some((_, to)) =
                    self.push((&*hop.ends.from).into(), (received, sent), (cursor, high), depth, None, Kind::Between)
            {
                cursor = to;
            }
            before = first.received;
            let frame = Some(first.frame);
            let name = Cow::from(&*hop.name);
            let whole = first.sent.zip(first.received);
            let bounds = whole.and_then(|span| self.push(name, span, (cursor, high), depth, frame, Kind::Hop));
            let (inside, below) = bounds.map_or(((cursor, high), depth), |bounds| (bounds, depth + 1));
            if let Some(span) = first.sent.zip(first.forwarded)
                && let Some((_, to)) = self.push("relay".into(), span, inside, below, frame, Kind::Relay)
            {
                cursor = to;
            }
            cursor = bounds.map_or(cursor, |bounds| bounds.1);
        }
        cursor
    }
}
