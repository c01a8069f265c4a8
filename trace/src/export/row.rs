//! One row per request: the columns of CSV and Parquet, in order.
//!
//! Numbers that the screen's table may show, too, are in [`crate::columns`].

use crate::clock::MonoNs;
use crate::columns::COLUMNS;
use crate::event::Finish;
use crate::ledger::{Numbers, Request, Summary};
use crate::report::places;

use super::{Closed, ExportContext, stage};

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Flag,
    Moment,
}

/// An observed value.
pub(super) enum Cell<'a> {
    Text(&'a str),
    Number(u64),
    Flag(bool),
    /// Wall-clock time in nanoseconds since the Unix epoch.
    Moment(u64),
}

/// Type of a field of [`Row`].
trait Field {
    const KIND: Kind;
    /// `None` means "not observed".
    fn cell(&self) -> Option<Cell<'_>>;
}

/// Wall-clock time in nanoseconds since the Unix epoch.
pub(super) struct Moment(u64);

macro_rules! field {
    ($type:ty, $kind:ident, $value:ident => $cell:expr) => {
        impl Field for $type {
            const KIND: Kind = Kind::$kind;
            fn cell(&self) -> Option<Cell<'_>> {
                let $value = self;
                Some(Cell::$kind($cell))
            }
        }
    };
}
field!(&str, Text, text => text);
field!(String, Text, text => text);
field!(u64, Number, number => *number);
field!(bool, Flag, flag => *flag);
field!(Moment, Moment, moment => moment.0);

impl<T: Field> Field for Option<T> {
    const KIND: Kind = T::KIND;
    fn cell(&self) -> Option<Cell<'_>> {
        self.as_ref().and_then(T::cell)
    }
}

macro_rules! row {
    ($($(#[$about:meta])* $name:ident: $type:ty,)+) => {
        pub(super) struct Row<'a> {
            numbers: &'a Numbers,
            $($(#[$about])* $name: $type,)+
        }

        impl<'a> Row<'a> {
            /// Name and type of each column.
            pub(super) fn columns() -> impl Iterator<Item = (&'static str, Kind)> {
                let fields = [$((stringify!($name), <$type as Field>::KIND)),+];
                let numbers = COLUMNS.iter().filter_map(|column| Some((column.name?, Kind::Number)));
                fields.into_iter().chain(numbers)
            }

            /// Value of each column.
            pub(super) fn cells(&self) -> impl Iterator<Item = Option<Cell<'_>>> {
                let fields = [$(self.$name.cell()),+];
                let numbers = COLUMNS.iter().filter(|column| column.name.is_some());
                let numbers = numbers.map(|column| (column.of)(self.numbers).map(Cell::Number));
                fields.into_iter().chain(numbers)
            }
        }
    };
}

row! {
    rid: &'a str,
    first_seen: Moment,
    first_seen_ns: u64,
    last_seen_ns: u64,
    /// `finished`, `orphaned` or `open`.
    state: &'static str,
    finish: Option<&'static str>,
    sent_first_ns: Option<u64>,
    received_first_ns: Option<u64>,
    processed_first_ns: Option<u64>,
    delivered_first_ns: Option<u64>,
    delivered_last_ns: Option<u64>,
    last_gap_ns: Option<u64>,
    /// Positions of tokens proven lost (1-based), as in `3, 7-9`.
    lost_places: Option<String>,
    inflated: bool,
    bursts: bool,
    /// Hop on which the first chunk waited longest, and its queue wait there.
    slowest_hop: Option<&'a str>,
    slowest_hop_wait_ns: Option<u64>,
}

impl<'a> Row<'a> {
    pub(super) fn new(request: &Closed<'a>, context: &ExportContext<'a>) -> Self {
        let (s, life) = (request.summary, request.life);
        let at = |time: Option<MonoNs>| time.map(|t| context.clock.at(t));
        let arrival = life.hops.iter().find(|h| context.hops.get(h.hop).is_some_and(|h| h.last));
        let (from, to) = stage::span(request);
        let slowest = request.life.hops.iter().filter_map(|h| {
            let (sent, received) = h.first.sent.zip(h.first.received)?;
            Some((received.since(sent), context.hops.name(h.hop)))
        });
        let slowest = slowest.max_by_key(|(wait, _)| *wait);
        Self {
            numbers: &s.numbers,
            rid: &s.rid,
            first_seen: Moment(context.clock.wall(from)),
            first_seen_ns: context.clock.at(from),
            last_seen_ns: context.clock.at(to),
            state: request.state(),
            finish: s.finish.map(Finish::as_str),
            sent_first_ns: at(s.sent_first),
            received_first_ns: at(s.received_first),
            processed_first_ns: at(arrival.and_then(|h| h.first.processed)),
            delivered_first_ns: at(life.first_delivered),
            delivered_last_ns: at(life.last_delivered),
            last_gap_ns: stage::last_gap(life, context.hops),
            lost_places: s.tokens_lost.map(|lost| lost_places(s, lost, context)),
            inflated: s.inflated,
            bursts: s.bursts,
            slowest_hop: slowest.map(|(_, hop)| hop),
            slowest_hop_wait_ns: slowest.map(|(wait, _)| wait),
        }
    }
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
