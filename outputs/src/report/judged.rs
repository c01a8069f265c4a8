//! Kinds of faults that a run could have shown. They follow from the observations alone, so a replay has the same answer as the live run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace::MonoNs;
use trace::detect::{Finding, FindingPhase, LASTING_NS, Severity};
use trace::ledger::{Hop, Ledger, ObservationEnd};
use trace::path::UNKNOWN;
use trace::words::{duration, names, plural};

use super::ttft::UNKNOWN_BOTTLENECK;
use super::{Clock, FindingLine, Report, Requests, describe_bottleneck};

/// Share of chunks with a known outcome below which losses count as not judged.
pub(super) const JUDGED_SHARE: f64 = 0.9;

/// Kind of a source that reads an engine's log.
const IMPORT: &str = "import";

/// Reason of what only a report of both servers of a pair shows.
const WAITS_FOR_OTHER_SERVER: &str = "requests wait for the other server of a pair";

/// Reason of what no log line shows.
const NOT_IN_LOG: &str = "the log does not show them";

/// Reasons that end with more traffic.
const NO_TWO_CHUNKS: &str = "no request sent two chunks";
const NO_ENDED_RESPONSE: &str = "no response ended";
const NO_FIRST_TOKEN: &str = "no request was seen until its first token";
const NO_GAP: &str = "no first token was seen on both ends";
const NO_RECEIVER: &str = "no receiver was seen";
const NO_FRAME_NOW: &str = "no frame comes now, and a relay notices missed frames only at the next one";

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// First tokens that wait between scheduler and tokenizer.
    FirstTokenGap,
    /// Tokens that reach no client.
    LostTokens,
    /// An engine that sends nothing.
    EngineSilence,
    /// Frames that wait on a hop.
    Queues,
    /// Tokens that reach their client late or merged.
    Delivery,
    /// Clients that leave or read slowly.
    Clients,
    /// Requests that wait before their first token, from their arrival on.
    LateRequests,
}

names! {
    FaultKind {
        FirstTokenGap = "first-token gap",
        LostTokens = "lost tokens",
        EngineSilence = "engine silence",
        Queues = "queues",
        Delivery = "late delivery",
        Clients = "clients",
        LateRequests = "late requests",
    }
}

impl FaultKind {
    /// Its name as a label of metrics, which is the one in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::FirstTokenGap => "first-token-gap",
            Self::LostTokens => "lost-tokens",
            Self::EngineSilence => "engine-silence",
            Self::Queues => "queues",
            Self::Delivery => "delivery",
            Self::Clients => "clients",
            Self::LateRequests => "late-requests",
        }
    }
}

/// Whether faults of one kind would have been found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The kind.
    pub fault: FaultKind,
    /// Whether the run could have shown it.
    pub judged: bool,
    /// Why not; `null` if judged.
    pub reason: Option<String>,
}

/// Judgements of all kinds of faults, in the order of [`FaultKind::ALL`].
pub fn judgements(ledger: &Ledger) -> Vec<Judgement> {
    FaultKind::ALL.iter().map(|&fault| judge_fault(ledger, fault)).collect()
}

/// Whether the run could have shown this kind of fault, or why not.
fn judge_fault(ledger: &Ledger, fault: FaultKind) -> Judgement {
    let reason = match fault {
        FaultKind::FirstTokenGap => why_gap_unjudged(ledger),
        FaultKind::LostTokens => why_loss_unjudged(ledger),
        FaultKind::EngineSilence => why_silence_unjudged(ledger),
        FaultKind::Queues => why_queues_unjudged(ledger),
        FaultKind::Delivery => why_delivery_unjudged(ledger),
        FaultKind::Clients => why_clients_unjudged(ledger),
        FaultKind::LateRequests => why_late_requests_unjudged(ledger),
    };
    let reason = reason.map(str::to_owned).or_else(|| explain_partial_judgement(ledger, fault));
    Judgement { fault, judged: reason.is_none(), reason }
}

/// Why a kind of fault was judged for a part of the run only. `None` if it was judged for the whole run.
fn explain_partial_judgement(ledger: &Ledger, fault: FaultKind) -> Option<String> {
    match fault {
        FaultKind::FirstTokenGap | FaultKind::Queues => {
            explain_end_of_observation(ledger, "receives", ledger.receives_end())
        }
        FaultKind::LostTokens | FaultKind::Delivery | FaultKind::Clients => {
            explain_end_of_observation(ledger, "deliveries", ledger.deliveries_end())
        }
        FaultKind::EngineSilence | FaultKind::LateRequests => None,
    }
}

/// Reason that `stages` are not observed after `end`. `None` if that moment is unknown, or if no frame was sent later, so none was missed.
fn explain_end_of_observation(ledger: &Ledger, stages: &str, end: Option<MonoNs>) -> Option<String> {
    let end = end.filter(|end| ledger.was_sent_after(*end))?;
    let after_ns = end.since(ledger.started().unwrap_or_default());
    Some(format!("{stages} are not observed after {}", duration(after_ns)))
}

/// Sentences about receives or deliveries that are not observed any more, each with its hops, the moment and the reason.
pub fn describe_observation_ends(ledger: &Ledger, format_moment: impl Fn(MonoNs) -> String) -> Vec<String> {
    let mut hops_by_end: BTreeMap<String, Vec<Box<str>>> = BTreeMap::new();
    for ObservationEnd { stages, hop, at } in ledger.observation_ends() {
        let reason = match stages {
            "deliveries" => "responses are not read any more",
            _ => "the receiving process has exited or is not watched any more",
        };
        let end = format!("{stages} are not observed since {}: {reason}", format_moment(at));
        // Hops with the same sentence share it.
        hops_by_end.entry(end).or_default().push(hop);
    }
    hops_by_end.into_iter().map(|(end, hops)| format!("{}: {end}", hops.join(", "))).collect()
}

/// Reason for not judging what only frames show, in a run without frames; `None` if frames are observed. If the engine's log was read
/// instead, the reason is `reason_with_log`.
fn reason_without_frames(ledger: &Ledger, reason_with_log: &'static str) -> Option<&'static str> {
    let has_frames = ledger.output_groups().next().is_some();
    if has_frames {
        return None;
    }
    let was_log_read = ledger.stages().counts.logged > 0;
    Some(if was_log_read { reason_with_log } else { "no frames are observed" })
}

/// Why first-token gaps, the times from a request's first send to its first receive, could not be judged. `None` if they could.
fn why_gap_unjudged(ledger: &Ledger) -> Option<&'static str> {
    // A first token that still waits is a gap without an end.
    let has_gap =
        ledger.gap().count() > 0 || ledger.requests().any(|request| request.first_token_waiting_since().is_some());
    if ledger.observes_gaps() && has_gap {
        return None;
    }
    let reason_with_log = "the log has not both times of a first token";
    let reason_with_frames = if ledger.observes_receives() { NO_GAP } else { unobserved_receives(ledger) };
    Some(reason_without_frames(ledger, reason_with_log).unwrap_or(reason_with_frames))
}

/// Why no receive is known. Until a receiver was seen, it is not known whether it can be observed.
fn unobserved_receives(ledger: &Ledger) -> &'static str {
    let knows_receiver = ledger.output_groups().any(|(_, group)| &*group.ends.to != UNKNOWN);
    if knows_receiver { "receives are not observed" } else { NO_RECEIVER }
}

/// Why losses of tokens could not be judged; `None` if they could.
fn why_loss_unjudged(ledger: &Ledger) -> Option<&'static str> {
    let totals = ledger.totals();
    let outcomes = totals.chunks.outcomes;
    let are_chunks_judged = are_mostly_judged(outcomes.chunks() - outcomes.unjudged, outcomes.chunks());
    // Responses without frames to compare with are judged alone, by their own counts.
    let are_responses_judged = totals.answers.judged_alone > 0;
    if are_chunks_judged || are_responses_judged {
        return None;
    }
    if let Some(reason) = reason_without_frames(ledger, NOT_IN_LOG) {
        // Without frames, responses can be judged by their own counts.
        let has_responses = totals.answers.seen > 0;
        return Some(if has_responses {
            "responses list no token ids, or no count to compare them with"
        } else {
            reason
        });
    }
    // Only deliveries count. A prediction from wakeups is no observation of what clients received.
    Some(if ledger.observes_deliveries() {
        "responses carry text that is not counted, or parts of them were not observed"
    } else {
        "deliveries are not observed"
    })
}

/// Whether the judged ones are enough of all to judge the run by them.
fn are_mostly_judged(judged: u64, all: u64) -> bool {
    all > 0 && judged as f64 >= JUDGED_SHARE * all as f64
}

/// Why silence of the engine could not be judged; `None` if it could.
fn why_silence_unjudged(ledger: &Ledger) -> Option<&'static str> {
    // The engine may be silent, or frames may have been missed. Only the next frame shows which.
    if ledger.has_undecided_silence(ledger.now()) {
        return Some(NO_FRAME_NOW);
    }
    // A latency between tokens needs two chunks of one request.
    let has_two_chunks = ledger.itl_sent().count() > 0;
    if has_two_chunks {
        return None;
    }
    Some(reason_without_frames(ledger, NOT_IN_LOG).unwrap_or(NO_TWO_CHUNKS))
}

/// Why queues of frames could not be judged; `None` if they could.
fn why_queues_unjudged(ledger: &Ledger) -> Option<&'static str> {
    if ledger.hops().iter().any(observes_output_queue) {
        return None;
    }
    Some(reason_without_frames(ledger, NOT_IN_LOG).unwrap_or_else(|| unobserved_receives(ledger)))
}

/// Whether the queue of outputs on the hop is observed, which is the difference between its sends and receives.
fn observes_output_queue(hop: &Hop) -> bool {
    !hop.carries_requests && hop.capabilities().sent && hop.capabilities().received
}

/// Why deliveries could not be judged; `None` if they could.
fn why_delivery_unjudged(ledger: &Ledger) -> Option<&'static str> {
    if ledger.delivery_wait().count() > 0 || ledger.itl_delivered().count() > 0 {
        return None;
    }
    let reason_with_frames = if ledger.observes_deliveries() {
        "no delivery could be matched with its chunks"
    } else {
        "deliveries are not observed"
    };
    Some(reason_without_frames(ledger, NOT_IN_LOG).unwrap_or(reason_with_frames))
}

/// Why the behaviour of clients could not be judged; `None` if it could.
fn why_clients_unjudged(ledger: &Ledger) -> Option<&'static str> {
    if ledger.totals().answers.seen > 0 {
        return None;
    }
    let reason_with_frames =
        if ledger.observes_deliveries() { NO_ENDED_RESPONSE } else { "responses are not observed" };
    Some(reason_without_frames(ledger, NOT_IN_LOG).unwrap_or(reason_with_frames))
}

/// Why late requests could not be judged. A late request waits long before its first token. `None` if nearly all requests were judged from
/// their arrival to their first token.
fn why_late_requests_unjudged(ledger: &Ledger) -> Option<&'static str> {
    let judged = ledger.ttft().judged();
    // A request that shares its rid with another one cannot be judged, but counts.
    let requests = judged.requests + judged.shared_rids;
    let are_arrivals_judged = are_mostly_judged(judged.before_dispatch, requests);
    let are_first_tokens_judged = are_mostly_judged(judged.until_first_token, requests);
    if are_arrivals_judged && are_first_tokens_judged {
        return None;
    }
    if let Some(reason) = reason_without_frames(ledger, NOT_IN_LOG) {
        return Some(reason);
    }
    let are_dispatches_observed = ledger.hops().iter().any(|hop| hop.carries_requests && hop.counts.frames_sent > 0);
    Some(if !are_dispatches_observed {
        "requests on their way to the engine are not observed"
    } else if requests == 0 {
        NO_FIRST_TOKEN
    } else if !are_arrivals_judged {
        "arrivals of requests are not observed"
    } else if judged.of_pairs > 0 {
        WAITS_FOR_OTHER_SERVER
    } else {
        "responses are not streamed, or share their ids"
    })
}

/// Judges late requests, which a single server of a pair cannot judge if they wait for the other one. Both servers together can, unless
/// prefill and cache transfer are not told apart: the requests then stay unjudged for the reason `unseparated_reason`.
pub(super) fn judge_late_requests_of_pair(judgements: &mut [Judgement], unseparated_reason: Option<&str>) {
    for judgement in judgements {
        if judgement.reason.as_deref() == Some(WAITS_FOR_OTHER_SERVER) {
            judgement.judged = unseparated_reason.is_none();
            judgement.reason = unseparated_reason.map(str::to_owned);
        }
    }
}

/// When a finding began, and whether it is over, in nanoseconds on one clock.
#[derive(Clone, Copy, Debug)]
pub struct FindingSpan<'f> {
    kind: &'f str,
    severity: Severity,
    at_ns: u64,
    last_at_ns: u64,
    ended_at_ns: Option<u64>,
    /// Whether it may occur again, or lasts.
    phase: FindingPhase,
}

impl<'f> FindingSpan<'f> {
    /// When a finding began and ended, and whether it lasts at `now`.
    pub fn at(finding: &'f Finding, now: MonoNs) -> Self {
        Self {
            kind: finding.kind,
            severity: finding.verdict.severity,
            at_ns: finding.began.0,
            last_at_ns: finding.last_at.0,
            ended_at_ns: finding.ended_at().map(|at| at.0),
            phase: finding.phase(now),
        }
    }

    /// When a finding of a report began and ended, and whether it lasts at the end of the capture (`end_ns`).
    fn at_end(line: &'f FindingLine, end_ns: u64) -> Self {
        let is_active = line.ended_at_ns.is_none();
        let since_last_ns = end_ns.saturating_sub(line.last_at_ns);
        Self {
            kind: &line.kind,
            severity: line.severity,
            at_ns: line.at_ns,
            last_at_ns: line.last_at_ns,
            ended_at_ns: line.ended_at_ns,
            phase: FindingPhase::new(is_active, since_last_ns),
        }
    }

    /// Whether it is a problem that lasts and began before the end of `other`. Both may then be parts of the same problem. A finding whose
    /// last occurrence is some seconds ago does not last, although it may occur again.
    fn outlasts(self, other: FindingSpan<'_>) -> bool {
        let lasts = self.severity > Severity::Info && self.phase == FindingPhase::Lasts;
        lasts && self.at_ns <= other.last_at_ns
    }
}

/// Text of a headline about the worst finding: its `summary`. If it is over, its end comes first, with what may still affect users. That is
/// another problem that lasts, or a lack of frames since then: with new traffic, the finding may go on. `last_frame_ns` is the time of the
/// last frame of the output; `None` without one.
pub fn headline_of_finding<'f>(
    worst: FindingSpan<'f>,
    mut all_findings: impl Iterator<Item = FindingSpan<'f>>,
    last_frame_ns: Option<u64>,
    summary: &str,
    format_moment: impl FnOnce(u64) -> String,
) -> String {
    let Some(ended_at_ns) = worst.ended_at_ns else { return summary.to_owned() };
    let lasting = all_findings.find(|finding| finding.outlasts(worst));
    // A problem is said to last for a while after its last occurrence. A frame in this time does not count as a later one.
    let lasted_until_ns = worst.last_at_ns + LASTING_NS;
    let has_no_frame_since = last_frame_ns.is_some_and(|at_ns| at_ns <= lasted_until_ns);
    let addition = match lasting {
        Some(lasting) => format!(" ({} lasts)", lasting.kind),
        None if has_no_frame_since => String::from(", no frame since"),
        None => String::new(),
    };
    format!("ended {}{addition}: {summary}", format_moment(ended_at_ns))
}

/// Requests and responses of a run without a warning.
#[derive(Clone, Copy, Debug)]
pub struct SeenTraffic<'a> {
    /// Its requests.
    pub requests: &'a Requests,
    /// Its responses.
    pub responses: u64,
    /// Those with an error status, or in which the server wrote an error.
    pub errors: u64,
    /// Kind of its source.
    pub source: &'a str,
    /// Where most of their time to first token goes, as [`super::describe_bottleneck`] says.
    pub bottleneck: &'a str,
}

impl SeenTraffic<'_> {
    /// States that no request was seen, in the log or on the watched hops.
    fn describe_absence(self) -> String {
        let health_checks = match self.requests.health_checks {
            0 => String::new(),
            checks => format!(", only {}", plural(checks, "health check")),
        };
        // An import without stages has neither hops nor a request.
        let place = if self.source == IMPORT { "is in the log" } else { "crossed the watched hops" };
        format!("no request {place}{health_checks}")
    }
}

/// Headline of a run without a warning. Counts its requests, or its responses if no request was observed. A run that could not have shown
/// a fault is not called healthy.
pub fn headline_without_warning(judged: &[Judgement], traffic: SeenTraffic<'_>, has_findings: bool) -> String {
    let SeenTraffic { responses, errors, bottleneck, .. } = traffic;
    let requests = traffic.requests.seen;
    if requests == 0 && responses == 0 {
        return format!("NOTHING OBSERVED: {}", traffic.describe_absence());
    }
    let found = if has_findings { "no warnings" } else { "no findings" };
    // Responses with an error are no finding, because the server may be right to refuse the requests. But their clients were not served.
    let refused = match errors {
        0 => String::new(),
        errors => format!("; {} with an error", plural(errors, "response")),
    };
    let seen = if requests == 0 { plural(responses, "response") } else { plural(requests, "request") };
    let Some(unjudged) = describe_unjudged(judged) else {
        return format!("HEALTHY: {found}{refused}; {bottleneck}");
    };
    let is_any_judged = judged.iter().any(|judgement| judgement.judged);
    if is_any_judged {
        let details = join_details(&format!("not judged: {unjudged}"), bottleneck);
        format!("{} in {seen}{refused}; {details}", found.to_uppercase())
    } else {
        format!("NOT JUDGED: {seen}, {found}{refused}; {}", join_details(&unjudged, bottleneck))
    }
}

/// Joins the unjudged faults and the bottleneck of a run. A narrow screen cuts the end, where an unknown bottleneck is missed least.
fn join_details(unjudged: &str, bottleneck: &str) -> String {
    if bottleneck.starts_with(UNKNOWN_BOTTLENECK) {
        format!("{unjudged}; {bottleneck}")
    } else {
        format!("{bottleneck}; {unjudged}")
    }
}

/// Summary in one sentence: the worst finding, or else the judged kinds of faults and those that were not judged.
pub(super) fn headline(report: &Report, clock: &Clock) -> String {
    if let Some(worst) = report.worst_finding() {
        return headline_of_worst(worst, report, clock);
    }
    // Responses with an error status, which are counted apart from the other answers.
    let rejected: u64 = report.rejected.values().sum();
    // The legs of a pair are those on both servers.
    let bottleneck = match &report.pair {
        Some(pair) => pair.headline.clone(),
        None => describe_bottleneck(report.ttft.as_ref()),
    };
    let traffic = SeenTraffic {
        requests: &report.requests,
        responses: report.answers.map_or(0, |answers| answers.seen) + rejected,
        errors: report.answers.map_or(0, |answers| answers.failed) + rejected,
        source: &report.source.kind,
        bottleneck: &bottleneck,
    };
    let has_findings = !report.findings.is_empty();
    headline_without_warning(&report.judged, traffic, has_findings)
}

/// Headline of a report whose worst finding is this one: its severity in capitals, then its text.
fn headline_of_worst(worst: &FindingLine, report: &Report, clock: &Clock) -> String {
    let end_ns = report.capture_length_ns();
    let all = report.findings.iter().map(|finding| FindingSpan::at_end(finding, end_ns));
    let output_hops = report.hops.iter().filter(|hop| !hop.carries_requests);
    let last_frame_ns = output_hops.filter_map(|hop| hop.last_frame_ns).max();
    let text = headline_of_finding(FindingSpan::at_end(worst, end_ns), all, last_frame_ns, &worst.summary, |at_ns| {
        clock.describe_moment_in_zone(at_ns)
    });
    format!("{}: {text}", worst.severity.as_str().to_uppercase())
}

/// What to do so that the kinds of faults that were not judged are judged. `None` if all were judged, or nothing helps. `source`: the kind
/// of the run's source.
pub fn advise_on_unjudged(judgements: &[Judgement], source: &str) -> Option<&'static str> {
    let reasons: Vec<&str> = judgements.iter().filter_map(|judgement| judgement.reason.as_deref()).collect();
    if reasons.contains(&NO_FRAME_NOW) {
        return Some(
            "if requests wait, the scheduler may be frozen: read its log, and use `py-spy dump --pid PID` while it lasts",
        );
    }
    if reasons.iter().any(|reason| is_reason_lack_of_observation(reason)) {
        return advise_on_source(source);
    }
    if reasons.contains(&WAITS_FOR_OTHER_SERVER) {
        return Some("`tokengap report` of the recordings of both servers, or one `tokengap attach` to both");
    }
    // The other reasons end with more traffic.
    let first_reason = *reasons.first()?;
    if first_reason == NO_TWO_CHUNKS {
        return Some("watch until a request sends two chunks, which those of a prefill server never do");
    }
    Some("watch until requests end")
}

/// How to observe more than this kind of source does; `None` if nothing helps.
fn advise_on_source(source: &str) -> Option<&'static str> {
    match source {
        "attach" => Some("`tokengap doctor` on the engine's host says what cannot be observed"),
        // A demo has no engine to attach to.
        "demo" => None,
        _ => Some("`tokengap attach` where the engine runs observes more"),
    }
}

/// Whether this reason of an unjudged kind of fault is that the source does not observe it, and more traffic would change nothing.
fn is_reason_lack_of_observation(reason: &str) -> bool {
    const ENDS_WITH_TRAFFIC: [&str; 6] =
        [NO_TWO_CHUNKS, NO_ENDED_RESPONSE, NO_FIRST_TOKEN, NO_GAP, NO_RECEIVER, NO_FRAME_NOW];
    !ENDS_WITH_TRAFFIC.contains(&reason) && reason != WAITS_FOR_OTHER_SERVER
}

/// Kinds of faults that were not judged, those with one reason together; `None` if all were judged.
fn describe_unjudged(judgements: &[Judgement]) -> Option<String> {
    let unjudged: Vec<&Judgement> = judgements.iter().filter(|judgement| !judgement.judged).collect();
    let mut groups: Vec<String> = Vec::new();
    for (index, Judgement { reason, .. }) in unjudged.iter().enumerate() {
        let is_listed = unjudged[..index].iter().any(|earlier| earlier.reason == *reason);
        if !is_listed {
            groups.push(list_faults_with_reason(&unjudged, reason.as_deref()));
        }
    }
    if groups.is_empty() { None } else { Some(groups.join("; ")) }
}

/// Faults that were not judged for this reason: `queues, clients (deliveries are not observed)`.
fn list_faults_with_reason(unjudged: &[&Judgement], reason: Option<&str>) -> String {
    let with_reason = unjudged.iter().filter(|judgement| judgement.reason.as_deref() == reason);
    let faults: Vec<&str> = with_reason.map(|judgement| judgement.fault.as_str()).collect();
    let reason_text = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("{}{reason_text}", faults.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORST: FindingSpan<'_> = FindingSpan {
        kind: "backlog",
        severity: Severity::Critical,
        at_ns: 10,
        last_at_ns: 20,
        ended_at_ns: Some(20),
        phase: FindingPhase::Ended,
    };

    /// Headline of a run with the worst finding and another one.
    fn headline_beside(other: FindingSpan<'_>) -> String {
        headline_of_finding(WORST, [WORST, other].into_iter(), None, "frames waited", |at_ns| at_ns.to_string())
    }

    /// What to do about one kind of fault that was not judged for this reason.
    fn advice_on(reason: &str, source: &str) -> Option<&'static str> {
        let unjudged = Judgement { fault: FaultKind::Clients, judged: false, reason: Some(reason.to_owned()) };
        let judged = Judgement { fault: FaultKind::Queues, judged: true, reason: None };
        advise_on_unjudged(&[judged, unjudged], source)
    }

    #[test]
    fn a_kind_has_one_name_in_json_and_in_metrics() {
        for fault in FaultKind::ALL {
            assert_eq!(serde_json::to_value(fault).expect("text"), fault.label());
        }
    }

    #[test]
    fn what_was_not_judged_comes_with_what_to_do() {
        let attach = "`tokengap attach` where the engine runs observes more";
        assert_eq!(advice_on("deliveries are not observed", "tap"), Some(attach));
        assert_eq!(advice_on(NOT_IN_LOG, IMPORT), Some(attach));
        let doctor = "`tokengap doctor` on the engine's host says what cannot be observed";
        assert_eq!(advice_on("deliveries are not observed", "attach"), Some(doctor));
        assert_eq!(advice_on(NO_ENDED_RESPONSE, "attach"), Some("watch until requests end"));
        assert!(advice_on(NO_TWO_CHUNKS, "tap").is_some_and(|advice| advice.contains("prefill")));
        assert!(advice_on(WAITS_FOR_OTHER_SERVER, "attach").is_some_and(|advice| advice.contains("both")));
        assert_eq!(advise_on_unjudged(&[], "attach"), None, "all was judged");
    }

    #[test]
    fn the_headline_says_when_its_finding_ended_and_what_lasts() {
        let other = FindingSpan { kind: "late-frames", severity: Severity::Warning, at_ns: 15, ..WORST };
        let lasting = FindingSpan { ended_at_ns: None, last_at_ns: 30, phase: FindingPhase::Lasts, ..other };
        let paused = FindingSpan { phase: FindingPhase::Pauses, ..lasting };
        assert_eq!(headline_beside(other), "ended 20: frames waited");
        assert_eq!(headline_beside(lasting), "ended 20 (late-frames lasts): frames waited", "what users feel lasts");
        assert_eq!(headline_beside(paused), "ended 20: frames waited", "it did not occur in the last second");
        for unrelated in [FindingSpan { severity: Severity::Info, ..lasting }, FindingSpan { at_ns: 25, ..lasting }] {
            assert_eq!(headline_beside(unrelated), "ended 20: frames waited");
        }
        let worst = FindingSpan { ended_at_ns: None, phase: FindingPhase::Lasts, ..WORST };
        let headline = headline_of_finding(worst, [worst].into_iter(), None, "frames wait", |at_ns| at_ns.to_string());
        assert_eq!(headline, "frames wait");
    }

    #[test]
    fn the_headline_says_that_no_frame_came_since_its_finding_ended() {
        let headline_after = |last_frame_ns| {
            headline_of_finding(WORST, [WORST].into_iter(), Some(last_frame_ns), "frames waited", |at_ns| {
                at_ns.to_string()
            })
        };
        assert_eq!(headline_after(20), "ended 20, no frame since: frames waited");
        assert_eq!(headline_after(2 * LASTING_NS), "ended 20: frames waited", "the traffic went on");
    }
}
