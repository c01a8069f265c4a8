//! One row per request: the columns of CSV and Parquet, in order.
//!
//! Numbers that the screen's table may show, too, are in [`trace::columns`].

use std::borrow::Cow;

use trace::clock::MonoNs;
use trace::columns::COLUMNS;
use trace::ledger::{Request, Summary};

use super::stage::{self, last_gap};
use super::{Closed, ExportContext};
use crate::report::places;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Flag,
    Moment,
}

pub(super) enum Cell<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Flag(bool),
    /// Wall-clock time in nanoseconds since the Unix epoch.
    Moment(u64),
}

use Cell::{Flag, Moment, Number};

/// Value of a request's column; `None` means "not observed".
type Value = for<'a> fn(&'a Closed<'a>, &'a ExportContext<'a>) -> Option<Cell<'a>>;

/// Columns that only exports have, before those of [`COLUMNS`].
static FIELDS: [(&str, Kind, Value); 17] = [
    ("rid", Kind::Text, |r, _| Some(text(&*r.summary.rid))),
    ("first_seen", Kind::Moment, |r, c| Some(Moment(c.clock.wall(stage::span(r).0)))),
    ("first_seen_ns", Kind::Number, |r, c| at(c, Some(stage::span(r).0))),
    ("last_seen_ns", Kind::Number, |r, c| at(c, Some(stage::span(r).1))),
    ("state", Kind::Text, |r, _| Some(text(r.state()))),
    ("finish", Kind::Text, |r, _| Some(text(r.summary.finish?.as_str()))),
    ("sent_first_ns", Kind::Number, |r, c| at(c, r.summary.sent_first)),
    ("received_first_ns", Kind::Number, |r, c| at(c, r.summary.received_first)),
    ("processed_first_ns", Kind::Number, |r, c| at(c, stage::arrival(r.timeline, c.ledger)?.first.processed)),
    ("delivered_first_ns", Kind::Number, |r, c| at(c, r.timeline.first_delivered)),
    ("delivered_last_ns", Kind::Number, |r, c| at(c, r.timeline.last_delivered)),
    ("last_gap_ns", Kind::Number, |r, c| last_gap(r.timeline, c.ledger).map(Number)),
    ("lost_places", Kind::Text, |r, c| Some(text(lost_places(r.summary, r.summary.tokens_lost?, c)))),
    ("inflated", Kind::Flag, |r, _| Some(Flag(r.summary.inflated))),
    ("bursts", Kind::Flag, |r, _| Some(Flag(r.summary.bursts))),
    ("slowest_hop", Kind::Text, |r, c| Some(text(slowest(r, c)?.1))),
    ("slowest_hop_wait_ns", Kind::Number, |r, c| Some(Number(slowest(r, c)?.0))),
];

pub(super) fn columns() -> impl Iterator<Item = (&'static str, Kind)> {
    let numbers = COLUMNS.iter().filter_map(|column| Some((column.name?, Kind::Number)));
    FIELDS.iter().map(|(name, kind, _)| (*name, *kind)).chain(numbers)
}

pub(super) fn cells<'a>(
    request: &'a Closed<'a>,
    context: &'a ExportContext<'a>,
) -> impl Iterator<Item = Option<Cell<'a>>> {
    let numbers = COLUMNS.iter().filter(|column| column.name.is_some());
    let numbers = numbers.map(|column| (column.of)(&request.summary.numbers).map(Number));
    FIELDS.iter().map(|(_, _, of)| of(request, context)).chain(numbers)
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> Cell<'a> {
    Cell::Text(text.into())
}

/// Time since the start of the capture.
fn at<'a>(context: &ExportContext<'_>, time: Option<MonoNs>) -> Option<Cell<'a>> {
    time.map(|time| Number(context.clock.at(time)))
}

/// Hop on which the first chunk waited longest, after its queue wait there.
fn slowest<'a>(request: &Closed<'_>, context: &ExportContext<'a>) -> Option<(u64, Cow<'a, str>)> {
    let waits = request.timeline.hops.iter().filter_map(|h| {
        let (sent, received) = h.first.sent.zip(h.first.received)?;
        Some((received.since(sent), context.ledger.hop_name(h.hop)))
    });
    waits.max_by_key(|(wait, _)| *wait)
}

/// Positions of lost tokens; empty without losses. Ends with `...` if the ledger has no more ranges.
fn lost_places(s: &Summary, lost: u32, context: &ExportContext<'_>) -> String {
    if lost == 0 {
        return String::new();
    }
    let closed = (context.ledger.lossy().rev())
        .find(|lossy| lossy.rid == s.rid && lossy.first_at == s.first_at)
        .and_then(|lossy| lossy.confirmed.as_deref());
    let open = || context.ledger.request(&s.rid).and_then(Request::losses);
    let Some(losses) = closed.or_else(open) else {
        return String::from("...");
    };
    let ranges = losses.ranges.iter().map(|range| range.tokens);
    places(ranges, usize::MAX, losses.unlisted)
}
