//! Problems of a pair of servers. Each is a part of the time to first token that lies on one server, while its scheduler went on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::PairSide;
use super::activity::PairActivity;
use super::interval::Interval;
use super::join::Pair;
use super::moment::{PairLeg, PairMoment};
use super::row::PairRow;
use crate::clock::MonoNs;
use crate::detect::Severity;
use crate::detect::thresholds::{GAP_WARNING_NS, LATE_NS, gap_severity};
use crate::words::{count, duration, percent, plural};

/// Minimum number, and share, of late requests: the first transfers of a run set up connections, and a busy machine delays a few.
pub(super) const MIN_LATE: u64 = 5;
pub(super) const MIN_LATE_REQUESTS: f64 = 0.05;
/// Fewer late responses of a prefill server are no accident either if they are most of a short run: nothing else explains the distance
/// between two observed writes. A leg needs more, because one stop makes several requests late that have it in common.
pub(super) const MIN_FEW_LATE: u64 = 3;
pub(super) const MIN_FEW_LATE_REQUESTS: f64 = 0.5;
/// Minimum share of a leg in the time to first token of the late requests.
pub(super) const MIN_LATE_SHARE: f64 = 0.25;
/// A leg whose late requests take less of all time to first token is information: another leg matters more.
pub(super) const MIN_WHOLE_SHARE: f64 = 0.1;
/// A leg is usually long if it takes [`LegRule::usual_ns`] in half of at least so many requests, and half of all time to first token.
pub(super) const MIN_USUAL: u64 = 10;
/// The same of a transfer: a busy machine delays it by some hundred milliseconds.
pub(super) const USUAL_TRANSFER_NS: u64 = 500_000_000;
/// Time of a transfer that each token of the prompt explains: 300 kB of cache at 3 GB/s.
pub(super) const TRANSFER_NS_PER_TOKEN: u64 = 100_000;
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
    /// Time that it explains, by which findings of equal severity are ordered.
    pub total_ns: u128,
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
    /// The leg's server may wait for this moment of the other server: the time before it is not judged.
    waits_for: Option<PairMoment>,
    /// Sides whose stopped scheduler makes it long, too.
    sides: &'static [PairSide],
    /// It is long or short without any of the schedulers, so that nothing shows whether one that has nothing else to do has stopped.
    is_without_schedulers: bool,
    usual_ns: u64,
    /// Time that each token of the prompt explains.
    ns_per_token: u64,
    place: &'static str,
    advice: &'static str,
}

impl LegRule {
    /// The judged part of the rule's leg, which is the time between two moments of a request. If the leg's server may have to wait for a
    /// moment of the other server, the judged part begins no earlier than that moment. `None` if the request has no such leg.
    fn judged_part(&self, row: &PairRow<'_>) -> Option<Interval> {
        let leg = PairLeg { from: self.from, to: self.to };
        let timed = row.timed_legs().find(|timed| timed.leg == leg)?;
        let waited_until = self.waits_for.and_then(|moment| row.time_of(moment)).unwrap_or_default();
        Some(Interval { from: timed.from.max(waited_until).min(timed.to), to: timed.to })
    }

    /// The requests that have the rule's leg, each with its time on the leg. Leaves out requests whose time to first token or prefill
    /// server is unknown.
    fn requests_on_leg<'p>(&self, rows: &[&PairRow<'p>]) -> Vec<LateRequest<'p>> {
        let mut on_leg = Vec::new();
        for row in rows {
            let Some(span) = self.judged_part(row) else { continue };
            let Some(ttft_ns) = row.ttft_ns else { continue };
            let Some(prefill_server) = row.prefill_server else { continue };
            let prompt_tokens = row.prompt_tokens.map(u64::from);
            // The length of the prompt explains a part of the time on some legs.
            let depends_on_prompt = self.ns_per_token > 0;
            on_leg.push(LateRequest {
                rid: row.decode_rid,
                span,
                ttft_ns,
                prefill_server,
                explained_ns: prompt_tokens.unwrap_or_default().saturating_mul(self.ns_per_token),
                is_explained: !depends_on_prompt || prompt_tokens.is_some(),
            });
        }
        on_leg
    }

    /// Whether a stop of a scheduler explains why this request was late. That is a finding of its own server.
    fn is_explained_by_stop(&self, late: &LateRequest<'_>, activity: &PairActivity) -> bool {
        self.sides.iter().any(|side| activity.is_wait_explained_by_stop(*side, late.prefill_server, late.span))
    }

    /// Selects the late requests, in order of time: those that spent at least `min_late_ns` more on the rule's leg than the lengths of
    /// their prompts explain. Also counts how many of them are late independently of each other.
    fn late_requests<'p>(
        &self,
        candidates: &[LateRequest<'p>],
        min_late_ns: u64,
        activity: &PairActivity,
    ) -> LateRequests<'p> {
        let late = candidates.iter().filter(|request| request.is_late_by(min_late_ns));
        let mut list: Vec<LateRequest<'p>> = late.copied().collect();
        list.sort_by_key(|late| late.span.from);
        // On a leg without schedulers, such as a transfer, a stop of a scheduler shows only as its pause. Such a stop may have made all
        // requests of the pause late, so they count once.
        let independent =
            if self.is_without_schedulers { self.count_once_per_pause(&list, activity) } else { list.len() };
        LateRequests { list, independent: independent as u64 }
    }

    /// Counts the late requests, but those that overlap during a pause of a scheduler only once. A single stop of a scheduler that had
    /// nothing else to do may have made all of these late. `late` is in order of time.
    fn count_once_per_pause(&self, late: &[LateRequest<'_>], activity: &PairActivity) -> usize {
        let mut counted = 0;
        let mut counted_until = MonoNs(0);
        for request in late {
            let span = request.span;
            let has_paused = self.sides.iter().any(|side| activity.has_paused(*side, request.prefill_server, span));
            let overlaps_counted = span.from < counted_until;
            if has_paused && overlaps_counted {
                continue;
            }
            counted += 1;
            // Only a request during a pause may share its cause with the following ones.
            if has_paused {
                counted_until = span.to;
            }
        }
        counted
    }
}

pub(super) const LEG_RULES: [LegRule; 4] = [
    LegRule {
        kind: "prefill-queue",
        from: PairMoment::PrefillQueued,
        to: PairMoment::PrefillStarted,
        waits_for: None,
        sides: &[PairSide::Prefill, PairSide::Decode],
        is_without_schedulers: false,
        usual_ns: LATE_NS,
        ns_per_token: 0,
        place: "in the prefill server's queue",
        advice: "more prompts arrive than the prefill server computes: add prefill servers, or raise its --chunked-prefill-size and \
                 --max-prefill-tokens",
    },
    LegRule {
        kind: "decode-allocation",
        from: PairMoment::DecodeReceived,
        to: PairMoment::Allocated,
        waits_for: Some(PairMoment::PrefillReceived),
        sides: &[PairSide::Prefill, PairSide::Decode],
        is_without_schedulers: false,
        usual_ns: LATE_NS,
        ns_per_token: 0,
        place: "until the decode server has memory for the request",
        advice: "the decode server's KV cache is full, or its scheduler waits for the prefill server's bootstrap: add decode servers, raise \
                 --mem-fraction-static, or lower --num-reserved-decode-tokens",
    },
    LegRule {
        kind: "transfer-slow",
        from: PairMoment::PrefillEnded,
        to: PairMoment::Transferred,
        waits_for: None,
        sides: &[PairSide::Prefill, PairSide::Decode],
        is_without_schedulers: true,
        usual_ns: USUAL_TRANSFER_NS,
        ns_per_token: TRANSFER_NS_PER_TOKEN,
        place: "in the transfer of the cache",
        advice: "the network between the servers, the transfer backend or a lack of CPUs for its threads may slow it: check \
                 --disaggregation-ib-device, that the backend uses RDMA and not TCP, and the CPU of both servers",
    },
    LegRule {
        kind: "decode-queue",
        from: PairMoment::DecodeQueued,
        to: PairMoment::DecodeBatch,
        waits_for: None,
        sides: &[PairSide::Decode],
        is_without_schedulers: false,
        usual_ns: LATE_NS,
        ns_per_token: 0,
        place: "in the decode server's queue",
        advice: "`#running-req` in the decode server's log shows what ran: at --max-running-requests, raise it or add decode servers; below \
                 it, memory for the cache is short (--mem-fraction-static), or its steps are long",
    },
];

/// A request with its part of the time to first token.
#[derive(Clone, Copy)]
struct LateRequest<'p> {
    rid: &'p str,
    span: Interval,
    ttft_ns: u64,
    /// Index of its prefill server.
    prefill_server: usize,
    /// Part of its time that the length of its prompt explains; 0 if that is unknown.
    explained_ns: u64,
    /// Whether the length of its prompt is known, or explains nothing.
    is_explained: bool,
}

impl LateRequest<'_> {
    fn ns(&self) -> u64 {
        self.span.ns()
    }

    /// Whether it took at least `min_ns` longer than the length of its prompt explains.
    fn is_late_by(&self, min_ns: u64) -> bool {
        self.ns() >= self.explained_ns.saturating_add(min_ns)
    }
}

/// Late requests and their sums.
struct LateRequests<'p> {
    list: Vec<LateRequest<'p>>,
    /// Number of them without those that one stop may have made late together with another one.
    independent: u64,
}

impl<'p> LateRequests<'p> {
    fn count(&self) -> u64 {
        self.list.len() as u64
    }

    /// Share of `requests` that is late, where those that depend on another one count on neither side.
    fn share_of_requests(&self, requests: u64) -> f64 {
        let independent_requests = requests.saturating_sub(self.count() - self.independent);
        self.independent as f64 / independent_requests.max(1) as f64
    }

    /// Whether they are many enough to be no accident.
    fn are_many_of(&self, requests: u64) -> bool {
        self.independent >= MIN_LATE && self.share_of_requests(requests) >= MIN_LATE_REQUESTS
    }

    /// Whether they are most of a few requests.
    fn are_most_of_few(&self, requests: u64) -> bool {
        self.independent >= MIN_FEW_LATE && self.share_of_requests(requests) >= MIN_FEW_LATE_REQUESTS
    }

    /// Whether a request is usually late.
    fn are_usual_of(&self, requests: u64) -> bool {
        self.independent >= MIN_USUAL && self.share_of_requests(requests) >= USUAL_SHARE
    }

    fn sum_ns(&self) -> u128 {
        self.list.iter().map(|late| u128::from(late.ns())).sum()
    }

    /// Share in the time to first token of these requests.
    fn share_of_ttft(&self) -> f64 {
        share_of(self.sum_ns(), self.list.iter().map(|late| u128::from(late.ttft_ns)).sum())
    }

    fn worst(&self) -> Option<&LateRequest<'p>> {
        self.list.iter().max_by_key(|late| late.ns())
    }

    /// The time at which the first of the late requests began to wait, and the time at which the last wait ended.
    fn begin_and_end(&self) -> [MonoNs; 2] {
        let from = self.list.iter().map(|late| late.span.from).min();
        let to = self.list.iter().map(|late| late.span.to).max();
        [from.unwrap_or_default(), to.unwrap_or_default()]
    }
}

/// Findings about requests of both servers, worst first.
pub(super) fn find_pair_problems(pair: &Pair<'_>) -> Vec<PairFinding> {
    let rows: Vec<&PairRow<'_>> = pair.joined().filter(|row| row.ttft_ns.is_some()).collect();
    let activity = PairActivity::new(pair);
    let legs = LEG_RULES.iter().filter_map(|rule| find_long_leg(rule, &rows, &activity));
    let mut findings: Vec<PairFinding> = legs.chain(find_late_prefill_responses(pair, &rows)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.total_ns)));
    findings
}

/// Finding about the rule's leg, which is a part of the time to first token. Either many requests were late on the leg, or most requests
/// spend much of their time to first token there. `None` if neither is so.
fn find_long_leg(rule: &LegRule, rows: &[&PairRow<'_>], activity: &PairActivity) -> Option<PairFinding> {
    let on_leg = rule.requests_on_leg(rows);
    // Shares are computed of all requests with the leg, including those that are removed below.
    let requests = on_leg.len() as u64;
    let ttft_ns: u128 = on_leg.iter().map(|request| u128::from(request.ttft_ns)).sum();
    let mut long = on_leg;
    long.retain(|request| request.ns() >= LATE_NS && !rule.is_explained_by_stop(request, activity));
    // First checks for exceptions: requests that were late by a fixed time, beside others that were not.
    let late = rule.late_requests(&long, GAP_WARNING_NS, activity);
    if late.are_many_of(requests) && late.share_of_ttft() >= MIN_LATE_SHARE {
        return finding_of_late_requests(rule, &late, requests, ttft_ns);
    }
    // Then checks for a usual length. A prompt of unknown length may explain any time, so requests with one do not count.
    long.retain(|request| request.is_explained);
    let usual = rule.late_requests(&long, rule.usual_ns, activity);
    if usual.are_usual_of(requests) && share_of(usual.sum_ns(), ttft_ns) >= USUAL_SHARE {
        return finding_of_usual_length(rule, &usual, requests, ttft_ns);
    }
    None
}

/// Finding about a leg on which some requests were late. `requests_on_leg` is the number of all requests with the leg, and `ttft_of_all_ns`
/// the sum of their times to first token. `None` if none was late enough.
fn finding_of_late_requests(
    rule: &LegRule,
    late: &LateRequests<'_>,
    requests_on_leg: u64,
    ttft_of_all_ns: u128,
) -> Option<PairFinding> {
    let longest_ns = late.worst()?.ns();
    let share_of_all = share_of(late.sum_ns(), ttft_of_all_ns);
    // If the leg takes little of the time of all requests, another leg matters more.
    let severity = if share_of_all < MIN_WHOLE_SHARE { Severity::Info } else { gap_severity(longest_ns)? };
    // The summary has the share in the times of the late requests alone, because that is what their clients saw.
    let summary = format!(
        "{} of the TTFT of {} of {} was spent {}: {} or more, up to {}",
        percent(late.share_of_ttft()),
        count(late.count()),
        plural(requests_on_leg, "request"),
        rule.place,
        duration(GAP_WARNING_NS),
        duration(longest_ns),
    );
    Some(leg_finding(rule, severity, late, summary, share_of_all, requests_on_leg))
}

/// Finding about a leg on which most requests spend long. `requests_on_leg` is the number of all requests with the leg, and
/// `ttft_of_all_ns` the sum of their times to first token. `None` without such a request.
fn finding_of_usual_length(
    rule: &LegRule,
    usual: &LateRequests<'_>,
    requests_on_leg: u64,
    ttft_of_all_ns: u128,
) -> Option<PairFinding> {
    let longest_ns = usual.worst()?.ns();
    let share_of_all = share_of(usual.sum_ns(), ttft_of_all_ns);
    let summary = format!(
        "{} of TTFT was spent {}: up to {}, {} or more in {} of {}",
        percent(share_of_all),
        rule.place,
        duration(longest_ns),
        duration(rule.usual_ns),
        count(usual.count()),
        plural(requests_on_leg, "request"),
    );
    Some(leg_finding(rule, Severity::Warning, usual, summary, share_of_all, requests_on_leg))
}

fn share_of(part_ns: u128, whole_ns: u128) -> f64 {
    if whole_ns == 0 { 0.0 } else { part_ns as f64 / whole_ns as f64 }
}

/// Builds the finding about the leg of this rule. `late` are the requests that spent long on it, out of `requests_on_leg`. `share_of_all`
/// is the leg's share in the time to first token of all requests, not only of the late ones.
fn leg_finding(
    rule: &LegRule,
    severity: Severity,
    late: &LateRequests<'_>,
    summary: String,
    share_of_all: f64,
    requests_on_leg: u64,
) -> PairFinding {
    let worst = late.worst();
    let evidence = [
        ("longest_ns", Value::from(worst.map_or(0, LateRequest::ns))),
        ("requests", Value::from(requests_on_leg)),
        ("requests_late", Value::from(late.count())),
        ("ttft_share", Value::from(round(late.share_of_ttft()))),
        ("ttft_share_of_all", Value::from(round(share_of_all))),
    ];
    PairFinding {
        kind: rule.kind,
        severity,
        rid: worst.map_or_else(String::new, |worst| worst.rid.to_owned()),
        span: late.begin_and_end(),
        total_ns: late.sum_ns(),
        summary,
        evidence: evidence.map(|(name, value)| (name.to_owned(), value)).into(),
        advice: rule.advice.to_owned(),
    }
}

/// Rounds a share for the evidence, to three digits.
fn round(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// Selects the requests whose first token the decode server delivered long before the prefill server wrote its response. The span of each
/// request is the time between both.
fn requests_with_late_response<'p>(pair: &Pair<'_>, rows: &[&PairRow<'p>]) -> Vec<LateRequest<'p>> {
    let mut held = Vec::new();
    for row in rows {
        let Some(prefill_server) = row.prefill_server else { continue };
        let Some(from) = row.time_of(PairMoment::Delivered) else { continue };
        let Some(to) = row.time_of(PairMoment::PrefillDelivered) else { continue };
        let Some(ttft_ns) = row.ttft_ns else { continue };
        let Some(uncertainty_ns) = pair.clock_uses()[prefill_server].uncertainty_ns() else { continue };
        let span = Interval { from, to };
        // An error of the clocks may make the span look longer by as much as `uncertainty_ns`.
        if span.ns() >= GAP_WARNING_NS.saturating_add(uncertainty_ns) {
            // The time to first token of a client whose router waits for the response.
            let ttft_behind_router_ns = ttft_ns.saturating_add(span.ns());
            held.push(LateRequest {
                rid: row.decode_rid,
                span,
                ttft_ns: ttft_behind_router_ns,
                prefill_server,
                explained_ns: 0,
                is_explained: true,
            });
        }
    }
    held
}

/// Finding about first tokens that the decode server delivered long before the prefill server wrote its response. A router that waits for
/// this response holds the tokens back, but whether it waits is not observed. `None` if there are few such tokens, or if the time between
/// both is a small part of their time to first token.
fn find_late_prefill_responses(pair: &Pair<'_>, rows: &[&PairRow<'_>]) -> Option<PairFinding> {
    let list = requests_with_late_response(pair, rows);
    // All of them are independent. A stop of a scheduler need not be considered, because both times are those of observed writes.
    let held = LateRequests { independent: list.len() as u64, list };
    let requests = rows.len() as u64;
    let are_enough = held.are_many_of(requests) || held.are_most_of_few(requests);
    if !are_enough || held.share_of_ttft() < MIN_LATE_SHARE {
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
        span: held.begin_and_end(),
        total_ns: held.sum_ns(),
        summary,
        evidence: evidence.map(|(name, value)| (name.to_owned(), value)).into(),
        advice: "what held it up is a finding of the prefill server; sglang-router waits for that response, mini-lb does not".to_owned(),
    })
}
