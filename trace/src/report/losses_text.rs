//! Requests that lost tokens, as text: the worst few, with their missing positions.

use std::fmt::Write as _;

use super::hostile::plain;
use super::wrap::wrap;
use super::{LossLine, LossList, Report};
use crate::words::{count, plural};

/// Maximum number of requests named; the JSON lists more.
const LIMIT: usize = 5;
/// Maximum number of ranges and ids per request.
const RANGES: usize = 12;

pub(super) fn render(out: &mut String, report: &Report) {
    let losses = &report.losses;
    let (confirmed, predicted) = (losses.confirmed.as_ref(), losses.predicted.as_ref());
    let proven = confirmed.filter(|list| !list.lines.is_empty());
    // If deliveries are observed, they decide. The prediction only matters for judging its accuracy.
    let expected = predicted.filter(|list| confirmed.is_none() && !list.lines.is_empty());
    for (list, how) in [(proven, "LOST TOKENS, CONFIRMED"), (expected, "LOST TOKENS, PREDICTED")] {
        if let Some(list) = list {
            lines(out, list, how);
        }
    }
}

fn lines(out: &mut String, list: &LossList, how: &str) {
    let _ = writeln!(out, "{how}: {}", plural(list.requests, "request"));
    for line in list.lines.iter().take(LIMIT) {
        wrap(out, &describe(line), "  ", "    ");
    }
    let more = list.requests.saturating_sub(LIMIT.min(list.lines.len()) as u64);
    if more > 0 {
        let _ = writeln!(
            out,
            "  and {} more; the JSON lists {}",
            count(more),
            count(list.lines.len() as u64)
        );
    }
    let _ = writeln!(out);
}

fn describe(line: &LossLine) -> String {
    let mut text = format!(
        "{}: {} of {} tokens in {}",
        plain(&line.rid),
        count(line.tokens),
        count(line.tokens_sent),
        plural(line.chunks, "chunk")
    );
    let places = line.places(RANGES);
    if !places.is_empty() {
        let _ = write!(text, ", at {places}");
    }
    let ids = line.ids(RANGES);
    if !ids.is_empty() {
        let _ = write!(text, " (ids {ids})");
    }
    text
}
