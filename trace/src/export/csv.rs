//! CSV with one row per request. An empty field means "not observed", never 0. Times are since the start of the capture.

use std::borrow::Cow;
use std::io;

use serde::Serialize;

use super::{Closed, Exporter, Look, stage, words};
use crate::clock::MonoNs;
use crate::event::Event;
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
    /// `finished`, `forgotten` or `open`.
    state: &'static str,
    finish: Option<&'static str>,
    worker: Option<u16>,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    tokens_sent: u32,
    tokens_taken: Option<u32>,
    tokens_delivered: Option<u32>,
    tokens_lost: Option<u32>,
    tokens_missing_on_wire: u32,
    chunks_sent: u32,
    chunks_coalesced: Option<u32>,
    chunks_dropped: Option<u32>,
    sent_first_ns: Option<u64>,
    taken_first_ns: Option<u64>,
    handled_first_ns: Option<u64>,
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
    /// Queue wait of the first chunk on each hop, as a JSON object, in nanoseconds.
    first_residence_ns: String,
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
    fn event(&mut self, _: &Event<'_>, _: &Look<'_>) -> io::Result<()> {
        Ok(())
    }

    fn closed(&mut self, request: &Closed<'_>, look: &Look<'_>) -> io::Result<()> {
        if look.options.wants(request.summary) {
            self.any = true;
            self.out.serialize(row(request, look)).map_err(plain)?;
        }
        Ok(())
    }

    fn finish(&mut self, _: &Report, _: &Look<'_>) -> io::Result<()> {
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

fn row<'a>(request: &Closed<'a>, look: &Look<'_>) -> Row<'a> {
    let (s, life) = (request.summary, request.life);
    let at = |time: Option<MonoNs>| time.map(|t| look.clock.at(t));
    let arrival = life.hops.iter().find(|h| look.hops.get(h.hop).is_some_and(|h| h.last));
    let (from, to) = stage::span(request);
    Row {
        rid: cell(&s.rid),
        first_seen: date(look.clock.wall(from)),
        first_seen_ns: look.clock.at(from),
        last_seen_ns: look.clock.at(to),
        state: request.state(),
        finish: s.finish.map(words::finish),
        worker: s.worker,
        prompt_tokens: s.prompt_tokens,
        cached_tokens: life.cached_tokens,
        tokens_sent: s.tokens_sent,
        tokens_taken: look.ledger.sees_takes().then_some(s.tokens_taken),
        tokens_delivered: s.tokens_delivered,
        tokens_lost: s.tokens_lost,
        tokens_missing_on_wire: s.wire_missing,
        chunks_sent: s.chunks_sent,
        chunks_coalesced: s.coalesced,
        chunks_dropped: s.dropped,
        sent_first_ns: at(s.sent_first),
        taken_first_ns: at(s.taken_first),
        handled_first_ns: at(arrival.and_then(|h| h.first.handled)),
        delivered_first_ns: at(life.first_delivered),
        delivered_last_ns: at(life.last_delivered),
        gap_ns: s.gap_ns,
        last_gap_ns: stage::last_gap(life, look.hops),
        longest_silence_ns: s.silence_ns,
        itl_client_p50_ns: s.paces.delivered.map(|pace| pace.p50),
        itl_client_p90_ns: s.paces.delivered.map(|pace| pace.p90),
        itl_client_p99_ns: s.paces.delivered.map(|pace| pace.p99),
        itl_sent_p50_ns: s.paces.sent.map(|pace| pace.p50),
        itl_sent_p90_ns: s.paces.sent.map(|pace| pace.p90),
        itl_sent_p99_ns: s.paces.sent.map(|pace| pace.p99),
        lost_places: lost_places(s, look),
        retractions: s.retractions,
        inflated: s.inflated,
        bursts: s.bursts,
        first_residence_ns: residences(request, look),
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
fn lost_places(s: &Summary, look: &Look<'_>) -> String {
    if s.tokens_lost.is_none_or(|n| n == 0) {
        return String::new();
    }
    let closed = (look.ledger.lossy().rev())
        .find(|lossy| lossy.rid == s.rid && lossy.first_at == s.first_at)
        .and_then(|lossy| lossy.confirmed.as_deref());
    let open = || look.ledger.request(&s.rid).and_then(Request::losses);
    let Some(losses) = closed.or_else(open) else {
        return String::from("...");
    };
    let ranges = losses.ranges.iter().map(|range| range.tokens);
    places(ranges, usize::MAX, losses.unlisted)
}

fn residences(request: &Closed<'_>, look: &Look<'_>) -> String {
    let of = |h: &super::OnHop| {
        let (sent, taken) = h.first.sent.zip(h.first.taken)?;
        Some((look.hops.name(h.hop).to_owned(), taken.since(sent).into()))
    };
    let all: serde_json::Map<String, serde_json::Value> = request.life.hops.iter().filter_map(of).collect();
    serde_json::Value::Object(all).to_string()
}

fn date(wall_ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).map_or_else(|_| String::new(), |t| format!("{t:.9}"))
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn a_rid_is_no_formula() {
        for rid in ["=HYPERLINK(\"http://x\")", "@SUM(A1)", "+1", "-1", "\t=1"] {
            assert_eq!(cell(rid), format!("'{rid}"));
        }
        assert_eq!(cell("chatcmpl-1"), "chatcmpl-1");
    }
}
