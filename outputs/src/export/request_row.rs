//! One row per request: the columns of CSV and Parquet, in order.
//!
//! Numbers that the screen's table may show, too, are in [`trace::columns`].

use std::borrow::Cow;

use trace::clock::MonoNs;
use trace::columns::COLUMNS;
use trace::ledger::{Ledger, Losses, RequestSummary, TtftPath};

use super::request_stage::{self, last_chunk_gap_ns};
use super::{ExportContext, ExportedRequest};
use crate::report::format_position_ranges;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
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
type CellOf = for<'a> fn(&'a ExportedRequest<'a>, &'a ExportContext<'a>) -> Option<Cell<'a>>;

/// A column that only exports have.
struct ExportColumn {
    name: &'static str,
    kind: ColumnKind,
    cell_of: CellOf,
}

/// Columns that only exports have, before those of [`COLUMNS`].
static EXPORT_COLUMNS: [ExportColumn; 25] = [
    ExportColumn { name: "rid", kind: ColumnKind::Text, cell_of: |request, _| Some(text_cell(&*request.summary.rid)) },
    ExportColumn {
        name: "first_seen",
        kind: ColumnKind::Moment,
        cell_of: |request, context| Some(Moment(context.clock.wall_ns(request_stage::span_of_request(request).from))),
    },
    ExportColumn {
        name: "first_seen_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, Some(request_stage::span_of_request(request).from)),
    },
    ExportColumn {
        name: "last_seen_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, Some(request_stage::span_of_request(request).to)),
    },
    ExportColumn { name: "state", kind: ColumnKind::Text, cell_of: |request, _| Some(text_cell(request.state())) },
    ExportColumn {
        name: "finish",
        kind: ColumnKind::Text,
        cell_of: |request, _| Some(text_cell(request.summary.finish?.as_str())),
    },
    ExportColumn {
        name: "response_end",
        kind: ColumnKind::Text,
        cell_of: |request, _| Some(text_cell(request.summary.response_end?.end.as_str())),
    },
    ExportColumn {
        name: "response_finish",
        kind: ColumnKind::Text,
        cell_of: |request, _| Some(text_cell(request.summary.response_end?.finish?.as_str())),
    },
    ExportColumn {
        name: "response_done",
        kind: ColumnKind::Flag,
        cell_of: |request, _| Some(Flag(request.summary.response_end?.done?)),
    },
    ExportColumn {
        name: "response_tokens",
        kind: ColumnKind::Number,
        cell_of: |request, _| Some(Number(request.summary.response_end?.carried_tokens?.into())),
    },
    ExportColumn {
        name: "response_tokens_claimed",
        kind: ColumnKind::Number,
        cell_of: |request, _| Some(Number(request.summary.response_end?.claimed_tokens?.into())),
    },
    ExportColumn {
        name: "dispatched_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.dispatch.map(|dispatch| dispatch.sent)),
    },
    ExportColumn {
        name: "scheduler_received_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.dispatch.and_then(|dispatch| dispatch.received)),
    },
    ExportColumn {
        name: "sent_first_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.sent_first),
    },
    ExportColumn {
        name: "received_first_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.received_first),
    },
    ExportColumn {
        name: "processed_first_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.processed_first),
    },
    ExportColumn {
        name: "delivered_first_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.summary.delivered_first),
    },
    ExportColumn {
        name: "delivered_last_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| time_cell(context, request.timeline.last_delivered),
    },
    ExportColumn {
        name: "ttft_legs",
        kind: ColumnKind::Text,
        cell_of: |request, _| Some(text_cell(describe_ttft_legs(request.summary)?)),
    },
    ExportColumn {
        name: "last_gap_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| last_chunk_gap_ns(request.timeline, context.ledger).map(Number),
    },
    ExportColumn {
        name: "lost_places",
        kind: ColumnKind::Text,
        cell_of: |request, context| {
            Some(text_cell(describe_lost_positions(request.summary, request.summary.tokens_lost?, context)))
        },
    },
    ExportColumn {
        name: "inflated",
        kind: ColumnKind::Flag,
        cell_of: |request, _| Some(Flag(request.summary.inflated)),
    },
    ExportColumn { name: "bursts", kind: ColumnKind::Flag, cell_of: |request, _| Some(Flag(request.summary.bursts)) },
    ExportColumn {
        name: "slowest_hop",
        kind: ColumnKind::Text,
        cell_of: |request, context| Some(text_cell(slowest_hop_of_first_chunk(request, context)?.name)),
    },
    ExportColumn {
        name: "slowest_hop_wait_ns",
        kind: ColumnKind::Number,
        cell_of: |request, context| Some(Number(slowest_hop_of_first_chunk(request, context)?.wait_ns)),
    },
];

/// Names and kinds of all columns, in order.
pub(super) fn request_columns() -> impl Iterator<Item = (&'static str, ColumnKind)> {
    // Without a name, a column is only on the screen.
    let numbers = COLUMNS.iter().filter_map(|column| column.name).map(|name| (name, ColumnKind::Number));
    EXPORT_COLUMNS.iter().map(|column| (column.name, column.kind)).chain(numbers)
}

/// Values of a request in the order of [`request_columns`]; `None` for unobserved ones.
pub(super) fn cells_of_request<'a>(
    request: &'a ExportedRequest<'a>,
    context: &'a ExportContext<'a>,
) -> impl Iterator<Item = Option<Cell<'a>>> {
    // Without a name, a column is only on the screen.
    let named = COLUMNS.iter().filter(|column| column.name.is_some());
    // `of` reads the value of the column from the numbers of a request.
    let numbers = named.map(|column| (column.of)(&request.summary.numbers).map(Number));
    EXPORT_COLUMNS.iter().map(|column| (column.cell_of)(request, context)).chain(numbers)
}

/// A cell with this text.
fn text_cell<'a>(text: impl Into<Cow<'a, str>>) -> Cell<'a> {
    Cell::Text(text.into())
}

/// Nanoseconds from the start of the capture to this time, as a cell.
fn time_cell<'a>(context: &ExportContext<'_>, time: Option<MonoNs>) -> Option<Cell<'a>> {
    time.map(|time| Number(context.clock.since_start_ns(time)))
}

/// Lists the legs (parts) of the time to first token with their lengths in nanoseconds, as in `intake+queue+prefill=270`. Legs joined by
/// `+` have one length, because the moments between them were not observed. `None` if the time to first token is unknown.
fn describe_ttft_legs(summary: &RequestSummary) -> Option<String> {
    let path = TtftPath::new(summary);
    // Without the whole time, its parts are not listed.
    path.ttft_ns()?;
    let legs: Vec<String> = path.legs().map(|timed| format!("{}={}", timed.leg, timed.ns)).collect();
    Some(legs.join(" "))
}

/// The hop on which the first chunk waited longest.
struct SlowestHop<'a> {
    name: Cow<'a, str>,
    wait_ns: u64,
}

/// Finds the hop on which the first chunk waited longest. `None` if no wait was observed.
fn slowest_hop_of_first_chunk<'a>(
    request: &ExportedRequest<'_>,
    context: &ExportContext<'a>,
) -> Option<SlowestHop<'a>> {
    let waits = request.timeline.hops.iter().filter_map(|hop_times| {
        let sent = hop_times.first.sent?;
        let received = hop_times.first.received?;
        Some(SlowestHop { name: context.ledger.hop_name(hop_times.hop), wait_ns: received.since(sent) })
    });
    waits.max_by_key(|hop| hop.wait_ns)
}

/// Lists the positions of the request's lost tokens, of which there are `lost_tokens`. Empty without losses. Ends with `...` if the ledger
/// has not kept all of them.
fn describe_lost_positions(summary: &RequestSummary, lost_tokens: u32, context: &ExportContext<'_>) -> String {
    if lost_tokens == 0 {
        return String::new();
    }
    let Some(losses) = find_losses(summary, context.ledger) else { return String::from("...") };
    let ranges = losses.ranges.iter().map(|range| range.tokens);
    // A cell has no limit on ranges of its own.
    let max_ranges = usize::MAX;
    format_position_ranges(ranges, max_ranges, losses.unlisted)
}

/// The lost tokens of a request, proven by its deliveries. `None` if the ledger does not keep them.
fn find_losses<'l>(summary: &RequestSummary, ledger: &'l Ledger) -> Option<&'l Losses> {
    // An earlier request may have had the same rid, so the time must match, too. The search begins with the latest request.
    let mut latest_first = ledger.lossy_requests().rev();
    let closed = latest_first.find(|lossy| lossy.rid == summary.rid && lossy.first_at == summary.first_at);
    if let Some(losses) = closed.and_then(|lossy| lossy.confirmed.as_deref()) {
        return Some(losses);
    }
    // The request may be in flight.
    ledger.request(&summary.rid)?.losses()
}
