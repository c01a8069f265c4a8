//! Requests with the longest waits, by rid, to look them up in the engine's own logs.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use trace::clock::MonoNs;
use trace::ledger::{ItlEnds, Ledger, Request, RequestNumbers, RequestSummary, TtftPath};
use trace::words::duration;

use super::ttft::RequestLegLine;

/// One listed request. Times are relative to the start of the capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLine {
    /// The engine's request id.
    pub rid: String,
    /// First receive at the tokenizer minus first send by the scheduler; `null` until both are observed.
    pub gap_ns: Option<u64>,
    /// Time when its first bytes were in the server's socket; `null` if unknown.
    pub arrived_ns: Option<u64>,
    /// Time when the server had read its first bytes; `null` if unknown.
    pub read_ns: Option<u64>,
    /// Why the time of its arrival is unknown; `null` if it is known.
    pub arrival_unknown: Option<String>,
    /// Trace of its caller: 32 hexadecimal digits; `null` if its head names none or was not observed.
    pub trace_id: Option<String>,
    /// Time when it was sent to the scheduler; `null` if not observed.
    pub dispatched_ns: Option<u64>,
    /// Time when the scheduler received it; `null` if not observed.
    pub scheduler_received_ns: Option<u64>,
    /// Time when it entered the scheduler's queue, by the engine; `null` if unknown (`engine_times.absent`), or before the capture.
    pub queued_ns: Option<u64>,
    /// Time when it first entered a batch, by the engine; `null` likewise.
    pub batch_entered_ns: Option<u64>,
    /// Time when its prefill ended, by the engine; `null` if unknown (`engine_times.prefill_absent`), or before the capture.
    pub prefill_finished_ns: Option<u64>,
    /// Time when the scheduler sent its first chunk.
    pub first_sent_ns: Option<u64>,
    /// Time when the tokenizer received its first chunk.
    pub first_received_ns: Option<u64>,
    /// From the first observed moment to its first token's delivery or receive; `null` unless a moment before its first send was observed.
    pub ttft_ns: Option<u64>,
    /// Parts of `ttft_ns`, in order. They sum to it.
    #[serde(default)]
    pub ttft_legs: Vec<RequestLegLine>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens received by the tokenizer.
    pub tokens_received: Option<u64>,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u64,
    /// Time when its first tokens were accepted for its client.
    pub first_delivered_ns: Option<u64>,
    /// Tokens delivered; `null` if deliveries are not observed.
    pub tokens_delivered: Option<u64>,
    /// Its inter-token latency at both ends, by token; quantiles are accurate to 6 %.
    pub itl_ns: ItlEnds,
    /// Chunks proven dropped between the tokenizer and its client.
    pub dropped: Option<u64>,
    /// Tokens in the dropped chunks.
    pub tokens_lost: Option<u64>,
    /// Finish reason: `length`, `stop`, `abort` or `other`; `null` if no frame has one.
    pub finish: Option<String>,
    /// How its response ended: `whole`, `client-left`, `server-left`, `failed` or `unknown`; `null` before that, and where responses are
    /// not observed.
    pub response_end: Option<String>,
    /// Whether its response was written to its end with neither a finish reason nor `[DONE]`; `null` if its events were not read.
    pub response_lacks_finish: Option<bool>,
    /// Finish reason of its response: `stop`, `length`, `tool_calls`, `abort` or `other`; `null` if it has none, or was observed in part.
    pub response_finish: Option<String>,
    /// Whether its response wrote `[DONE]`; `null` for a body, and if it was observed in part.
    pub response_done: Option<bool>,
    /// Tokens in its response; `null` if it carries text only, or was observed in part.
    pub response_tokens: Option<u32>,
    /// Tokens that the last event of its response claims; `null` if it claims none.
    pub response_tokens_claimed: Option<u32>,
}

/// The `max_requests` slowest requests that the ledger keeps, longest wait first. The wait is the time to first token or, if that was not
/// observed, the gap. For a request whose first token still waits, it is the wait so far. Requests of unknown wait come last.
pub(super) fn slowest_lines(
    ledger: &Ledger,
    max_requests: usize,
    capture_start: MonoNs,
    capture_end: MonoNs,
) -> Vec<SlowLine> {
    if max_requests == 0 {
        return Vec::new();
    }
    let live = ledger.requests().map(|request| Ranked::of_live(ledger, request, capture_end));
    let over = ledger.finished().map(Ranked::of_finished);
    let worst = select_and_sort_worst(live.chain(over).collect(), max_requests);
    let lines = worst.into_iter().map(|Ranked { rid, record, .. }| match record {
        RequestRecord::Live(request) => SlowLine::new(rid, &ledger.numbers(request), capture_start),
        RequestRecord::Over(summary) => SlowLine::new(rid, summary, capture_start),
    });
    lines.collect()
}

/// A request with the wait by which it ranks.
struct Ranked<'l> {
    wait_ns: Option<u64>,
    rid: &'l str,
    record: RequestRecord<'l>,
}

impl<'l> Ranked<'l> {
    /// A request in flight. While its first token waits, its wait lasts until `now`.
    fn of_live(ledger: &Ledger, request: &'l Request, now: MonoNs) -> Self {
        let path = TtftPath::new(&ledger.numbers(request));
        let wait_ns = if let Some(first_sent) = request.first_token_waiting_since() {
            // The time to first token begins with the first known moment, which may be before the first send.
            let waits_since = path.moments().next().map_or(first_sent, |(_, at)| at);
            Some(now.since(waits_since))
        } else {
            path.ttft_ns().or(request.gap_ns())
        };
        Self { wait_ns, rid: &request.rid, record: RequestRecord::Live(request) }
    }

    /// A request that has ended.
    fn of_finished(summary: &'l RequestSummary) -> Self {
        let wait_ns = TtftPath::new(summary).ttft_ns().or(summary.gap_ns);
        Self { wait_ns, rid: &summary.rid, record: RequestRecord::Over(summary) }
    }

    /// Orders by falling wait; the rid decides between equal ones, so that two reports of a run agree.
    fn worst_first(&self, other: &Ranked<'_>) -> Ordering {
        // The waits change sides, which makes their order falling. An unknown wait is the smallest, and comes last.
        (other.wait_ns, self.rid).cmp(&(self.wait_ns, other.rid))
    }
}

/// The `max_requests` worst requests, worst first.
fn select_and_sort_worst(mut requests: Vec<Ranked<'_>>, max_requests: usize) -> Vec<Ranked<'_>> {
    // The ledger may keep thousands of requests, of which few are listed. The worst are selected first, so that only these are sorted.
    if max_requests < requests.len() {
        requests.select_nth_unstable_by(max_requests, Ranked::worst_first);
        requests.truncate(max_requests);
    }
    requests.sort_unstable_by(Ranked::worst_first);
    requests
}

/// Where the ledger has a request.
enum RequestRecord<'l> {
    Live(&'l Request),
    Over(&'l RequestSummary),
}

impl SlowLine {
    /// Gap, or the wait so far of a first token that has not been received: `over 1.200 s`; `-` if neither is known.
    pub(super) fn format_gap_or_wait(&self, capture_length_ns: u64) -> String {
        if let Some(gap_ns) = self.gap_ns {
            return duration(gap_ns);
        }
        // A request that has not ended may still receive its first token.
        let is_waiting = self.tokens_received == Some(0) && self.finish.is_none();
        match self.first_sent_ns {
            Some(sent_ns) if is_waiting => format!("over {}", duration(capture_length_ns.saturating_sub(sent_ns))),
            _ => String::from("-"),
        }
    }

    /// A request, with times since the start of the capture.
    fn new(rid: &str, numbers: &RequestNumbers, capture_start: MonoNs) -> Self {
        let path = TtftPath::new(numbers);
        // An `Err` says why the arrival is unknown.
        let arrival = numbers.arrival.and_then(Result::ok);
        let by_engine = numbers.engine_times.unwrap_or_default();
        Self {
            rid: rid.to_owned(),
            gap_ns: numbers.gap_ns,
            arrived_ns: arrival.map(|times| times.arrived.since(capture_start)),
            read_ns: arrival.map(|times| times.read.since(capture_start)),
            arrival_unknown: match numbers.arrival {
                Some(Ok(_)) => None,
                Some(Err(why)) => Some(why.as_str().to_owned()),
                None => Some(String::from("not-observed")),
            },
            trace_id: numbers.trace_parent.map(|parent| parent.trace_id()),
            dispatched_ns: numbers.dispatch.map(|dispatch| dispatch.sent.since(capture_start)),
            scheduler_received_ns: numbers.dispatch.and_then(|dispatch| Some(dispatch.received?.since(capture_start))),
            // The engine may have written a time before the capture began.
            queued_ns: by_engine.queued.and_then(|at| at.checked_since(capture_start)),
            batch_entered_ns: by_engine.batch_entered.and_then(|at| at.checked_since(capture_start)),
            prefill_finished_ns: by_engine.prefill_finished.and_then(|at| at.checked_since(capture_start)),
            first_sent_ns: numbers.sent_first.map(|at| at.since(capture_start)),
            first_received_ns: numbers.received_first.map(|at| at.since(capture_start)),
            ttft_ns: path.ttft_ns(),
            // Without the whole time, its parts would not add up to it.
            ttft_legs: if path.ttft_ns().is_some() {
                path.legs().map(RequestLegLine::new).collect()
            } else {
                Vec::new()
            },
            tokens_sent: numbers.tokens_sent.into(),
            tokens_received: numbers.tokens_received.map(u64::from),
            chunks_sent: numbers.chunks_sent.into(),
            first_delivered_ns: numbers.delivered_first.map(|at| at.since(capture_start)),
            tokens_delivered: numbers.tokens_delivered.map(u64::from),
            itl_ns: numbers.itl,
            dropped: numbers.dropped.map(u64::from),
            tokens_lost: numbers.tokens_lost.map(u64::from),
            finish: numbers.finish.map(|finish| finish.as_str().to_owned()),
            response_end: numbers.response_end.map(|response| response.end.as_str().to_owned()),
            response_lacks_finish: numbers.response_end.and_then(|response| response.lacks_end),
            response_finish: numbers.response_end.and_then(|response| Some(response.finish?.as_str().to_owned())),
            response_done: numbers.response_end.and_then(|response| response.done),
            response_tokens: numbers.response_end.and_then(|response| response.carried_tokens),
            response_tokens_claimed: numbers.response_end.and_then(|response| response.claimed_tokens),
        }
    }
}
