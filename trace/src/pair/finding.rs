//! Problems of a pair of servers. Each is a part of the time to first token that lies on one server, while its scheduler went on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::join::Pair;
use super::moment::{PairLeg, PairMoment, TimedPairLeg};
use super::row::PairRow;
use crate::clock::MonoNs;
use crate::detect::Severity;
use crate::detect::thresholds::{GAP_WARNING_NS, LATE_NS, gap_severity};
use crate::words::{count, duration, percent, plural};

/// Minimum number, and share, of late requests: the first transfers of a run set up connections, and a busy machine delays a few.
pub(super) const MIN_LATE: u64 = 5;
pub(super) const MIN_LATE_REQUESTS: f64 = 0.05;
/// Minimum share of a leg in the time to first token of the late requests.
pub(super) const MIN_LATE_SHARE: f64 = 0.25;
/// A leg whose late requests take less of all time to first token is information: another leg matters more.
pub(super) const MIN_WHOLE_SHARE: f64 = 0.1;
/// A leg is usually long if it takes [`LATE_NS`] in half of at least so many requests, and half of all time to first token.
pub(super) const MIN_USUAL: u64 = 10;
pub(super) const USUAL_SHARE: f64 = 0.5;

/// A problem.
#[derive(Clone, Debug, PartialEq)]
pub struct PairFinding {
    /// Its kind.
    pub kind: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Worst affected request, by its id on the decode server.
    pub rid: String,
    /// First and last time of an affected request, on the decode server's clock.
    pub span: [MonoNs; 2],
    /// One sentence, with numbers.
    pub summary: String,
    /// Time of the affected requests, by which findings of equal severity are ordered.
    total_ns: u128,
    /// Numbers by name.
    pub evidence: BTreeMap<String, Value>,
    /// What to do.
    pub advice: String,
}

impl PairFinding {
    /// Whether findings of this kind are of a pair.
    pub fn is_kind(kind: &str) -> bool {
        kind == LATE_RESPONSE || LEG_RULES.iter().any(|rule| rule.kind == kind)
    }
}

const LATE_RESPONSE: &str = "late-prefill-response";

/// A leg that lies on one server.
pub(super) struct LegRule {
    pub(super) kind: &'static str,
    from: PairMoment,
    to: PairMoment,
    place: &'static str,
    advice: &'static str,
}

pub(super) const LEG_RULES: [LegRule; 4] = [
    LegRule {
        kind: "prefill-queue",
        from: PairMoment::PrefillQueued,
        to: PairMoment::PrefillStarted,
        place: "in the prefill server's queue",
        advice: "more prompts arrive than the prefill server computes: add prefill servers, or raise its --chunked-prefill-size and \
                 --max-prefill-tokens",
    },
    LegRule {
        kind: "decode-allocation",
        from: PairMoment::DecodeReceived,
        to: PairMoment::Allocated,
        place: "until the decode server has memory for the request",
        advice: "the decode server's KV cache is full, or its scheduler waits for the prefill server's bootstrap: add decode servers, raise \
                 --mem-fraction-static, or lower --num-reserved-decode-tokens",
    },
    LegRule {
        kind: "transfer-slow",
        from: PairMoment::PrefillEnded,
        to: PairMoment::Transferred,
        place: "in the transfer of the cache",
        advice: "the network between the servers, the transfer backend, or CPUs for its threads are the bottleneck: check \
                 --disaggregation-ib-device, that the backend uses RDMA and not TCP, and the CPU of both servers",
    },
    LegRule {
        kind: "decode-queue",
        from: PairMoment::DecodeQueued,
        to: PairMoment::DecodeBatch,
        place: "in the decode server's queue",
        advice: "more requests arrive than run at once on the decode server: raise --max-running-requests, or add decode servers",
    },
];

/// A request with its part of the time to first token.
#[derive(Clone, Copy)]
struct LateRequest<'p> {
    rid: &'p str,
    from: MonoNs,
    to: MonoNs,
    ttft_ns: u64,
}

impl LateRequest<'_> {
    fn ns(&self) -> u64 {
        self.to.since(self.from)
    }
}

/// Late requests and their sums.
struct LateRequests<'p> {
    list: Vec<LateRequest<'p>>,
}

impl<'p> LateRequests<'p> {
    fn at_least(list: &[LateRequest<'p>], ns: u64) -> Self {
        Self { list: list.iter().filter(|late| late.ns() >= ns).copied().collect() }
    }

    fn count(&self) -> u64 {
        self.list.len() as u64
    }

    fn sum_ns(&self) -> u128 {
        self.list.iter().map(|late| u128::from(late.ns())).sum()
    }

    /// Share in the time to first token of these requests.
    fn share(&self) -> f64 {
        let whole: u128 = self.list.iter().map(|late| u128::from(late.ttft_ns)).sum();
        if whole == 0 { 0.0 } else { self.sum_ns() as f64 / whole as f64 }
    }

    fn worst(&self) -> Option<&LateRequest<'p>> {
        self.list.iter().max_by_key(|late| late.ns())
    }

    fn span(&self) -> [MonoNs; 2] {
        let from = self.list.iter().map(|late| late.from).min();
        let to = self.list.iter().map(|late| late.to).max();
        [from.unwrap_or_default(), to.unwrap_or_default()]
    }
}

/// All problems, worst first.
pub(super) fn find_problems(pair: &Pair<'_>) -> Vec<PairFinding> {
    let rows: Vec<&PairRow<'_>> = pair.joined().filter(|row| row.ttft_ns.is_some()).collect();
    let progress = Progress::of_rows(pair.rows());
    let legs = LEG_RULES.iter().filter_map(|rule| find_long_leg(rule, &rows, &progress));
    let mut findings: Vec<PairFinding> = legs.chain(find_late_prefill_responses(pair, &rows)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.total_ns)));
    findings
}

fn find_long_leg(rule: &LegRule, rows: &[&PairRow<'_>], progress: &Progress) -> Option<PairFinding> {
    let leg = PairLeg { from: rule.from, to: rule.to };
    let mut all = Vec::new();
    for row in rows {
        let timed = row.timed_legs().find(|timed| timed.leg == leg);
        if let Some((timed, ttft_ns)) = timed.zip(row.ttft_ns) {
            all.push((timed, LateRequest { rid: row.decode_rid, from: timed.from, to: timed.to, ttft_ns }));
        }
    }
    let ttft_ns: u128 = all.iter().map(|(_, request)| u128::from(request.ttft_ns)).sum();
    let requests = all.len() as u64;
    // A scheduler that stopped is a finding of its own server.
    all.retain(|(timed, _)| timed.ns() >= LATE_NS && progress.went_on(timed));
    let long: Vec<LateRequest<'_>> = all.into_iter().map(|(_, request)| request).collect();
    let late = LateRequests::at_least(&long, GAP_WARNING_NS);
    let are_late = late.count() >= MIN_LATE && late.count() as f64 >= MIN_LATE_REQUESTS * requests as f64;
    if are_late && late.share() >= MIN_LATE_SHARE {
        let is_minor = (late.sum_ns() as f64) < MIN_WHOLE_SHARE * ttft_ns as f64;
        let severity = if is_minor { Severity::Info } else { gap_severity(late.worst()?.ns())? };
        return Some(describe_leg(rule, severity, &late, GAP_WARNING_NS, late.share(), requests));
    }
    let usual = LateRequests::at_least(&long, LATE_NS);
    let is_usual = usual.count() >= MIN_USUAL && usual.count() * 2 >= requests;
    let share = if ttft_ns == 0 { 0.0 } else { usual.sum_ns() as f64 / ttft_ns as f64 };
    (is_usual && share >= USUAL_SHARE).then(|| describe_leg(rule, Severity::Warning, &usual, LATE_NS, share, requests))
}

fn describe_leg(
    rule: &LegRule,
    severity: Severity,
    late: &LateRequests<'_>,
    from_ns: u64,
    share: f64,
    requests: u64,
) -> PairFinding {
    let worst = late.worst();
    let longest_ns = worst.map_or(0, LateRequest::ns);
    let summary = format!(
        "{} of TTFT is spent {}: up to {}, {} or more in {} of {}",
        percent(share),
        rule.place,
        duration(longest_ns),
        duration(from_ns),
        count(late.count()),
        plural(requests, "request"),
    );
    let evidence = [
        ("longest_ns", Value::from(longest_ns)),
        ("requests", Value::from(requests)),
        ("requests_late", Value::from(late.count())),
        ("ttft_share", Value::from(round(share))),
    ];
    PairFinding {
        kind: rule.kind,
        severity,
        rid: worst.map_or_else(String::new, |worst| worst.rid.to_owned()),
        span: late.span(),
        total_ns: late.sum_ns(),
        summary,
        evidence: evidence.map(|(name, value)| (name.to_owned(), value)).into(),
        advice: rule.advice.to_owned(),
    }
}

fn round(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// First tokens that had been delivered by the decode server when the prefill server's response was still to be written. Whether a router
/// waits for that is not observed.
fn find_late_prefill_responses(pair: &Pair<'_>, rows: &[&PairRow<'_>]) -> Option<PairFinding> {
    let mut held = Vec::new();
    for row in rows {
        let uncertainty_ns = row.prefill_server.and_then(|server| pair.clock_uses()[server].uncertainty_ns());
        let delivered = row.time_of(PairMoment::Delivered).zip(row.time_of(PairMoment::PrefillDelivered));
        let (Some(uncertainty_ns), Some((from, to)), Some(ttft_ns)) = (uncertainty_ns, delivered, row.ttft_ns) else {
            continue;
        };
        if to.since(from) >= GAP_WARNING_NS.saturating_add(uncertainty_ns) {
            held.push(LateRequest { rid: row.decode_rid, from, to, ttft_ns: ttft_ns.saturating_add(to.since(from)) });
        }
    }
    let held = LateRequests { list: held };
    let requests = rows.len() as u64;
    let are_late = held.count() >= MIN_LATE && held.count() as f64 >= MIN_LATE_REQUESTS * requests as f64;
    if !are_late || held.share() < MIN_LATE_SHARE {
        return None;
    }
    let worst = held.worst()?;
    let summary = format!(
        "the prefill server's response was written up to {} after the first token of the decode server, {} or more in {} of {}: a router \
         that waits for it holds the first token back as long",
        duration(worst.ns()),
        duration(GAP_WARNING_NS),
        count(held.count()),
        plural(requests, "request"),
    );
    let evidence = [
        ("longest_ns", Value::from(worst.ns())),
        ("requests", Value::from(requests)),
        ("requests_late", Value::from(held.count())),
    ];
    Some(PairFinding {
        kind: LATE_RESPONSE,
        severity: Severity::Info,
        rid: worst.rid.to_owned(),
        span: held.span(),
        total_ns: held.sum_ns(),
        summary,
        evidence: evidence.map(|(name, value)| (name.to_owned(), value)).into(),
        advice: "what held it up is a finding of the prefill server; sglang-router waits for that response, mini-lb does not".to_owned(),
    })
}

/// Times at which the schedulers did something for any request, in order.
struct Progress {
    prefill: Vec<MonoNs>,
    decode: Vec<MonoNs>,
}

impl Progress {
    fn of_rows(rows: &[PairRow<'_>]) -> Self {
        use PairMoment::{
            Allocated, DecodeBatch, DecodeFrame, DecodeQueued, DecodeReceived, PrefillEnded, PrefillFrame,
            PrefillQueued, PrefillReceived, PrefillStarted,
        };
        Self {
            prefill: times_of(rows, &[PrefillReceived, PrefillQueued, PrefillStarted, PrefillEnded, PrefillFrame]),
            decode: times_of(rows, &[DecodeReceived, Allocated, DecodeQueued, DecodeBatch, DecodeFrame]),
        }
    }

    /// Whether both schedulers went on during the leg: neither did nothing for half of it. A transfer needs both.
    fn went_on(&self, leg: &TimedPairLeg) -> bool {
        longest_pause(&self.prefill, leg).max(longest_pause(&self.decode, leg)) * 2 <= leg.ns()
    }
}

/// The longest time in a leg without one of these times.
fn longest_pause(times: &[MonoNs], leg: &TimedPairLeg) -> u64 {
    let first = times.partition_point(|at| *at <= leg.from);
    let mut before = leg.from;
    let mut longest_ns = 0;
    for at in times[first..].iter().take_while(|at| **at < leg.to) {
        longest_ns = longest_ns.max(at.since(before));
        before = *at;
    }
    longest_ns.max(leg.to.since(before))
}

fn times_of(rows: &[PairRow<'_>], moments: &[PairMoment]) -> Vec<MonoNs> {
    let mut times: Vec<MonoNs> =
        rows.iter().flat_map(|row| moments.iter().filter_map(|moment| row.time_of(*moment))).collect();
    times.sort_unstable();
    times
}
