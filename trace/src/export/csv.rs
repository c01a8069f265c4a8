//! CSV with one row per request. An empty field means "not observed", never 0. Times are since the start of the capture.

use std::borrow::Cow;
use std::io;

use serde::Serialize;

use super::{Closed, ExportContext, Exporter, stage};
use crate::clock::MonoNs;
use crate::event::{Event, Finish};
use crate::ledger::{Request, Summary};
use crate::report::{Report, places};

/// Columns, in order.
#[derive(Default, Serialize)]
struct Row<'a> {
    /// See [`cell`].
    rid: Cow<'a, str>,
    /// Wall-clock time, RFC 3339 in UTC.
    first_seen: String,
    first_seen_ns: u64,
    last_seen_ns: u64,
    /// `finished`, `orphaned` or `open`.
    state: &'static str,
    finish: Option<&'static str>,
    worker: Option<u16>,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    tokens_sent: u32,
    tokens_received: Option<u32>,
    tokens_delivered: Option<u32>,
    tokens_lost: Option<u32>,
    tokens_missing_on_wire: u32,
    chunks_sent: u32,
    chunks_merged: Option<u32>,
    chunks_dropped: Option<u32>,
    sent_first_ns: Option<u64>,
    received_first_ns: Option<u64>,
    processed_first_ns: Option<u64>,
    delivered_first_ns: Option<u64>,
    delivered_last_ns: Option<u64>,
    gap_ns: Option<u64>,
    last_gap_ns: Option<u64>,
    longest_silence_ns: Option<u64>,
    itl_client_p50_ns: Option<u64>,
    itl_client_p90_ns: Option<u64>,
    itl_client_p99_ns: Option<u64>,
    itl_sent_p50_ns: Option<u64>,
    itl_sent_p90_ns: Option<u64>,
    itl_sent_p99_ns: Option<u64>,
    /// Positions of tokens proven lost (1-based), as in `3, 7-9`.
    lost_places: String,
    retractions: u32,
    inflated: bool,
    bursts: bool,
    /// Hop on which the first chunk waited longest, and its queue wait there.
    slowest_hop: Option<&'a str>,
    slowest_hop_wait_ns: Option<u64>,
}

pub(super) struct Csv<'w> {
    out: csv::Writer<Box<dyn io::Write + 'w>>,
    any: bool,
}

impl<'w> Csv<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>) -> Self {
        Self {
            out: csv::WriterBuilder::new().buffer_capacity(64 * 1024).from_writer(out),
            any: false,
        }
    }
}

impl Exporter for Csv<'_> {
    fn event(&mut self, _: &Event<'_>, _: &ExportContext<'_>) -> io::Result<()> {
        Ok(())
    }

    fn closed(&mut self, request: &Closed<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        if context.options.wants(request.summary) {
            self.any = true;
            self.out.serialize(row(request, context)).map_err(plain)?;
        }
        Ok(())
    }

    fn finish(&mut self, _: &Report, _: &ExportContext<'_>) -> io::Result<()> {
        if !self.any {
            // The header is written with the first row. Without requests, it is written here.
            let mut empty = csv::Writer::from_writer(Vec::new());
            empty.serialize(Row::default()).map_err(plain)?;
            let text = empty.into_inner().map_err(csv::IntoInnerError::into_error)?;
            let mut header = csv::Reader::from_reader(text.as_slice());
            self.out.write_record(header.headers().map_err(plain)?).map_err(plain)?;
        }
        self.out.flush()
    }
}

/// Unwraps the I/O error of a failed writer.
fn plain(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn row<'a>(request: &Closed<'a>, context: &ExportContext<'a>) -> Row<'a> {
    let (s, life) = (request.summary, request.life);
    let at = |time: Option<MonoNs>| time.map(|t| context.clock.at(t));
    let arrival = life
        .hops
        .iter()
        .find(|h| context.hops.get(h.hop).is_some_and(|h| h.last));
    let (from, to) = stage::span(request);
    let slowest = request.life.hops.iter().filter_map(|h| {
        let (sent, received) = h.first.sent.zip(h.first.received)?;
        Some((received.since(sent), context.hops.name(h.hop)))
    });
    let slowest = slowest.max_by_key(|(wait, _)| *wait);
    Row {
        rid: cell(&s.rid),
        first_seen: date(context.clock.wall(from)),
        first_seen_ns: context.clock.at(from),
        last_seen_ns: context.clock.at(to),
        state: request.state(),
        finish: s.finish.map(Finish::as_str),
        worker: s.worker,
        prompt_tokens: s.prompt_tokens,
        cached_tokens: life.cached_tokens,
        tokens_sent: s.tokens_sent,
        tokens_received: context.ledger.observes_receives().then_some(s.tokens_received),
        tokens_delivered: s.tokens_delivered,
        tokens_lost: s.tokens_lost,
        tokens_missing_on_wire: s.wire_missing,
        chunks_sent: s.chunks_sent,
        chunks_merged: s.merged,
        chunks_dropped: s.dropped,
        sent_first_ns: at(s.sent_first),
        received_first_ns: at(s.received_first),
        processed_first_ns: at(arrival.and_then(|h| h.first.processed)),
        delivered_first_ns: at(life.first_delivered),
        delivered_last_ns: at(life.last_delivered),
        gap_ns: s.gap_ns,
        last_gap_ns: stage::last_gap(life, context.hops),
        longest_silence_ns: s.silence_ns,
        itl_client_p50_ns: s.itl.delivered.map(|itl| itl.p50),
        itl_client_p90_ns: s.itl.delivered.map(|itl| itl.p90),
        itl_client_p99_ns: s.itl.delivered.map(|itl| itl.p99),
        itl_sent_p50_ns: s.itl.sent.map(|itl| itl.p50),
        itl_sent_p90_ns: s.itl.sent.map(|itl| itl.p90),
        itl_sent_p99_ns: s.itl.sent.map(|itl| itl.p99),
        lost_places: lost_places(s, context),
        retractions: s.retractions,
        inflated: s.inflated,
        bursts: s.bursts,
        slowest_hop: slowest.map(|(_, hop)| hop),
        slowest_hop_wait_ns: slowest.map(|(wait, _)| wait),
    }
}

/// Prefixes text that a spreadsheet would interpret as a formula with an apostrophe.
fn cell(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Positions of lost tokens; empty without losses. Ends with `...` if the ledger has no more ranges.
fn lost_places(s: &Summary, context: &ExportContext<'_>) -> String {
    if s.tokens_lost.is_none_or(|n| n == 0) {
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

fn date(wall_ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).map_or_else(|_| String::new(), |t| format!("{t:.9}"))
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn rids_are_not_interpreted_as_formulas() {
        for rid in ["=HYPERLINK(\"http://x\")", "@SUM(A1)", "+1", "-1", "\t=1"] {
            assert_eq!(cell(rid), format!("'{rid}"));
        }
        assert_eq!(cell("chatcmpl-1"), "chatcmpl-1");
    }
}
