//! Requests that lost tokens, with the lost positions. Losses proven by deliveries and losses predicted from receives are separate lists.

use serde::{Deserialize, Serialize};

use trace::MonoNs;
use trace::event::Finish;
use trace::ledger::{self, Ledger, LostRange, Request};
use trace::words::{duration, plural};

use super::Clock;

/// Maximum number of requests listed, worst first.
const MAX_REQUESTS: usize = 1_000;

/// Both lists. `null` means not observable with the attached sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Proven by deliveries.
    pub confirmed: Option<LossList>,
    /// Predicted from chunks that share a wakeup and the known behaviour of the release; never a proof.
    pub predicted: Option<LossList>,
}

/// Requests that lost tokens, as far as the ledger keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossList {
    /// Number of requests, including those not listed.
    pub requests: u64,
    /// Worst first, at most a thousand.
    pub lines: Vec<LossLine>,
}

/// Losses of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossLine {
    /// The engine's request id.
    pub rid: String,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens delivered; `null` if deliveries are not observed.
    pub tokens_delivered: Option<u64>,
    /// Tokens lost.
    pub tokens: u64,
    /// Chunks lost.
    pub chunks: u64,
    /// First loss; `null` if only chunks without tokens are lost.
    pub at_ns: Option<u64>,
    /// Last loss.
    pub last_at_ns: Option<u64>,
    /// End of the losses; `null` while the request is unfinished and may lose more.
    pub ended_at_ns: Option<u64>,
    /// Time from the first loss to the last.
    pub duration_ns: Option<u64>,
    /// Missing positions in the output.
    pub ranges: Vec<LostRange>,
    /// Part of `tokens` in none of the ranges, because the number of ranges is limited.
    pub tokens_unlisted: u64,
    /// Finish reason; `null` if no frame has one.
    pub finish: Option<String>,
}

/// The losses kept by the ledger: those proven by deliveries, and those predicted. A list is `None` if the run could not have shown it.
pub(super) fn collect_losses(ledger: &Ledger, capture_start: MonoNs) -> Losses {
    let can_predict = ledger.chunks_dropped_predicted().is_some();
    Losses {
        confirmed: ledger.observes_deliveries().then(|| confirmed_losses(ledger, capture_start)),
        predicted: can_predict.then(|| predicted_losses(ledger, capture_start)),
    }
}

/// Requests whose deliveries prove a loss: those in flight, then those that are kept only for their losses.
fn confirmed_losses(ledger: &Ledger, capture_start: MonoNs) -> LossList {
    let live = ledger.requests().filter_map(|request| Some(LossyRequest::of_live(ledger, request, request.losses()?)));
    let closed =
        ledger.lossy_requests().filter_map(|lossy| Some(LossyRequest::of_closed(lossy, lossy.confirmed.as_deref()?)));
    let lines = worst_lines(live.chain(closed).collect(), capture_start);
    // The total also counts requests that the list leaves out.
    LossList { requests: ledger.totals().drops.rids, lines }
}

/// Requests that are predicted to lose tokens: those in flight, then those that are kept only for their losses.
fn predicted_losses(ledger: &Ledger, capture_start: MonoNs) -> LossList {
    let live =
        ledger.requests().filter_map(|request| Some(LossyRequest::of_live(ledger, request, request.predicted()?)));
    let closed =
        ledger.lossy_requests().filter_map(|lossy| Some(LossyRequest::of_closed(lossy, lossy.predicted.as_deref()?)));
    let lines = worst_lines(live.chain(closed).collect(), capture_start);
    // The total also counts requests that the list leaves out.
    LossList { requests: ledger.totals().predicted_drops.rids, lines }
}

/// A request that lost tokens, in flight or over.
struct LossyRequest<'l> {
    losses: &'l ledger::Losses,
    rid: &'l str,
    tokens_sent: u32,
    /// `None` if deliveries are not observed.
    tokens_delivered: Option<u32>,
    finish: Option<Finish>,
    is_over: bool,
}

impl<'l> LossyRequest<'l> {
    /// A request of the ledger's table, with these losses. It is over if its finish was observed.
    fn of_live(ledger: &Ledger, request: &'l Request, losses: &'l ledger::Losses) -> Self {
        Self {
            losses,
            rid: &request.rid,
            tokens_sent: request.tokens_sent,
            tokens_delivered: ledger.observes_deliveries().then_some(request.tokens_delivered),
            finish: request.finish,
            is_over: request.finish.is_some(),
        }
    }

    /// A request with these losses that has ended and is kept only for them.
    fn of_closed(lossy: &'l ledger::Lossy, losses: &'l ledger::Losses) -> Self {
        Self {
            losses,
            rid: &lossy.rid,
            tokens_sent: lossy.tokens_sent,
            tokens_delivered: lossy.tokens_delivered,
            finish: lossy.finish,
            is_over: true,
        }
    }
}

/// The requests that lost most tokens, worst first.
fn worst_lines(mut requests: Vec<LossyRequest<'_>>, capture_start: MonoNs) -> Vec<LossLine> {
    requests.sort_unstable_by_key(|request| (std::cmp::Reverse(request.losses.tokens), request.rid));
    requests.iter().take(MAX_REQUESTS).map(|request| LossLine::new(request, capture_start)).collect()
}

impl LossLine {
    /// The losses of a request, with times since the start of the capture.
    fn new(request: &LossyRequest<'_>, capture_start: MonoNs) -> Self {
        let losses = request.losses;
        let at_ns = losses.since.map(|at| at.since(capture_start));
        let last_at_ns = losses.last_at.map(|at| at.since(capture_start));
        Self {
            rid: request.rid.to_owned(),
            tokens_sent: request.tokens_sent.into(),
            tokens_delivered: request.tokens_delivered.map(u64::from),
            tokens: losses.tokens,
            chunks: losses.chunks,
            at_ns,
            last_at_ns,
            // A request in flight may lose more.
            ended_at_ns: if request.is_over { last_at_ns } else { None },
            duration_ns: losses.last_at.zip(losses.since).map(|(last, first)| last.since(first)),
            ranges: losses.ranges.clone(),
            tokens_unlisted: losses.unlisted,
            finish: request.finish.map(|finish| finish.as_str().to_owned()),
        }
    }

    /// Times of the first and the last loss, and whether more can follow: `07:20:03.120 to 07:20:05.320 (2.200 s), then the request ended`.
    pub(super) fn describe_loss_times(&self, clock: &Clock) -> String {
        let Some((first_ns, last_ns)) = self.at_ns.zip(self.last_at_ns) else { return String::from("-") };
        let first = clock.describe_moment(first_ns);
        let span = if first_ns == last_ns {
            first
        } else {
            let length = duration(last_ns.saturating_sub(first_ns));
            format!("{first} to {} ({length})", clock.describe_moment(last_ns))
        };
        let outlook = if self.ended_at_ns.is_some() { "then the request ended" } else { "more may follow" };
        format!("{span}, {outlook}")
    }

    /// Formats the positions as `3, 7-9`, with at most `max_ranges` ranges.
    pub fn list_positions(&self, max_ranges: usize) -> String {
        let ranges = self.ranges.iter().map(|range| range.tokens);
        format_position_ranges(ranges, max_ranges, self.tokens_unlisted)
    }

    /// Ids of the first `limit` lost tokens; empty if unknown.
    pub fn list_ids(&self, limit: usize) -> String {
        list_ids(self.ranges.iter().flat_map(|range| &range.ids), limit)
    }

    /// Lists the positions, at most `max_ranges` ranges of them, and counts the others: `3, 7-9, and 2 more ranges`.
    pub(super) fn list_and_count_positions(&self, max_ranges: usize) -> String {
        let ranges = self.ranges.iter().map(|range| format_range(range.tokens));
        let mut text = list_and_count_rest(ranges, max_ranges, "range");
        // The ledger keeps a limited number of ranges.
        if self.tokens_unlisted > 0 {
            let separator = if text.is_empty() { "" } else { ", and " };
            append!(text, "{separator}{} whose positions were not kept", plural(self.tokens_unlisted, "token"));
        }
        text
    }

    /// Lists the ids of the first `limit` lost tokens, and counts the others: `13, 14, and 1 more id`. Empty if unknown.
    pub(super) fn list_and_count_ids(&self, limit: usize) -> String {
        let ids: Vec<i64> = self.ranges.iter().flat_map(|range| &range.ids).copied().collect();
        list_and_count_rest(ids.iter().map(i64::to_string), limit, "id")
    }
}

/// Lists at most `max_items` items, and counts the others in words: `3, 7-9, and 2 more ranges`. `noun` names a single item.
fn list_and_count_rest(items: impl ExactSizeIterator<Item = String>, max_items: usize, noun: &str) -> String {
    let not_shown = items.len().saturating_sub(max_items) as u64;
    let mut parts: Vec<String> = items.take(max_items).collect();
    if not_shown > 0 {
        parts.push(format!("and {}", plural(not_shown, &format!("more {noun}"))));
    }
    parts.join(", ")
}

/// Formats ranges of positions, at most `max_ranges`: `3, 7-9, ...`. `unlisted`: number of positions in none of the ranges.
pub fn format_position_ranges(
    ranges: impl ExactSizeIterator<Item = [u32; 2]>,
    max_ranges: usize,
    unlisted: u64,
) -> String {
    let ellipsis = if ranges.len() > max_ranges || unlisted > 0 { ", ..." } else { "" };
    let shown: Vec<String> = ranges.take(max_ranges).map(format_range).collect();
    shown.join(", ") + ellipsis
}

/// Formats a range of positions: `7-9`, or `3` for a single one.
fn format_range([first, last]: [u32; 2]) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Formats ids, at most `limit`: `13, 14, ...`.
pub fn list_ids<'i>(ids: impl Iterator<Item = &'i i64>, limit: usize) -> String {
    let mut ids = ids.peekable();
    let shown: Vec<String> = ids.by_ref().take(limit).map(i64::to_string).collect();
    // Whatever is left was cut by the limit.
    shown.join(", ") + if ids.peek().is_some() { ", ..." } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Losses of a request in flight, without positions.
    fn loss_line() -> LossLine {
        LossLine {
            rid: String::from("a"),
            tokens_sent: 9,
            tokens_delivered: Some(7),
            tokens: 2,
            chunks: 2,
            at_ns: Some(2 * SECOND_NS),
            last_at_ns: Some(5 * SECOND_NS),
            ended_at_ns: None,
            duration_ns: Some(3 * SECOND_NS),
            ranges: Vec::new(),
            tokens_unlisted: 0,
            finish: None,
        }
    }

    #[test]
    fn the_span_of_losses_says_how_long_they_lasted_and_whether_more_may_follow() {
        let clock = Clock::without_wall_clock(9 * SECOND_NS);
        let mut line = loss_line();
        assert_eq!(line.describe_loss_times(&clock), "2.000 s to 5.000 s (3.000 s), more may follow");
        line.ended_at_ns = line.last_at_ns;
        assert_eq!(line.describe_loss_times(&clock), "2.000 s to 5.000 s (3.000 s), then the request ended");
        line.at_ns = line.last_at_ns;
        assert_eq!(line.describe_loss_times(&clock), "5.000 s, then the request ended");
        line.at_ns = None;
        assert_eq!(line.describe_loss_times(&clock), "-");
    }

    #[test]
    fn positions_and_ids_beyond_a_limit_are_counted_in_words() {
        let mut line = loss_line();
        line.ranges = vec![
            LostRange { tokens: [1, 1], chunks: None, ids: vec![9] },
            LostRange { tokens: [3, 5], chunks: None, ids: vec![8, 7, 6] },
            LostRange { tokens: [7, 7], chunks: None, ids: Vec::new() },
        ];
        assert_eq!(line.list_and_count_positions(3), "1, 3-5, 7");
        assert_eq!(line.list_and_count_positions(1), "1, and 2 more ranges");
        assert_eq!([line.list_and_count_ids(4), line.list_and_count_ids(3)], ["9, 8, 7, 6", "9, 8, 7, and 1 more id"]);
        line.tokens_unlisted = 4;
        assert_eq!(line.list_and_count_positions(3), "1, 3-5, 7, and 4 tokens whose positions were not kept");
        line.ranges.clear();
        assert_eq!(line.list_and_count_positions(3), "4 tokens whose positions were not kept");
        assert_eq!(line.list_and_count_ids(3), "");
    }

    #[test]
    fn long_lists_of_positions_and_ids_end_with_an_ellipsis() {
        let ranges = [[1, 1], [3, 5], [7, 7]];
        assert_eq!(format_position_ranges(ranges.into_iter(), 9, 0), "1, 3-5, 7");
        assert_eq!(format_position_ranges(ranges.into_iter(), 2, 0), "1, 3-5, ...");
        assert_eq!(format_position_ranges(ranges.into_iter(), 9, 4), "1, 3-5, 7, ...");
        assert_eq!((list_ids([9, 8].iter(), 2), list_ids([9, 8].iter(), 1)), ("9, 8".into(), "9, ...".into()));
    }
}
