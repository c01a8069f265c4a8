//! A decode server's report with what its prefill servers did for its requests.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::detect::Severity;
use trace::pair::{ClockUse, Pair, PairFinding, PairLegLengths, PairMoment};
use trace::stats::{Spread, WINDOW_NS};
use trace::words::{duration, percent, plural};

use super::judged::{JUDGED_SHARE, headline, judge_late_requests_of_pair};
use super::pair_order::{order_pair_and_server_findings, remove_milder_queue_finding, sort_by_explained_time};
use super::pair_request::{PairRequestLine, slowest_requests};
use super::{Clock, EpisodeLine, FindingLine, Report};

/// The pair of a decode server, whose requests have their whole way here. Its tokens are those of the decode server's report: the token of
/// each request that the prefill server sends is the first one of the decode server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The leg that takes most of the time to first token, unless the clocks leave it open.
    pub headline: String,
    /// Evidence that this is the decode server.
    pub decode_by: String,
    /// Its prefill servers.
    pub prefill: Vec<PrefillServerLine>,
    /// Requests of the decode server that were found on a prefill server.
    pub requests: u64,
    /// Requests of the decode server that are in none of these numbers, because they are no longer kept.
    pub requests_evicted: u64,
    /// Number of finished requests of each server that were read, the newest; `null` if all were.
    pub newest_finished: Option<u64>,
    /// Requests of the decode server that were not found; `null` if not all requests of a prefill server were read.
    pub decode_only: Option<u64>,
    /// Requests of the prefill servers that were not found on this server; `null` if there are other decode servers, or if not all requests
    /// of a server were read.
    pub prefill_only: Option<u64>,
    /// Time to first token on the decode server, of requests of both; `null` without any.
    pub ttft_ns: Option<Spread>,
    /// Its mean; `null` without any.
    pub ttft_mean_ns: Option<u64>,
    /// Its parts, in order. Their shares add up to 1.
    pub legs: Vec<PairLegLine>,
    /// Moments that some requests of both servers lack.
    pub absent: Vec<AbsentMomentLine>,
    /// Requests with the longest time to first token.
    pub slowest: Vec<PairRequestLine>,
    /// Findings, which are among those of the report.
    #[serde(skip)]
    findings: Vec<FindingLine>,
}

/// A prefill server of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillServerLine {
    /// Name of the engine, or of its recording.
    pub name: String,
    /// Index of its run.
    #[serde(skip)]
    run_index: usize,
    /// Evidence that it is a prefill server.
    pub side_by: String,
    /// Requests of both servers.
    pub requests: u64,
    /// How its times are compared with those of the decode server: `same`, `offset` or `drifting`.
    pub clock: String,
    /// How far the decode server's clock is ahead; `null` unless the clocks are those of two hosts and can be compared.
    pub clock_ahead_ns: Option<i64>,
    /// Maximum error of its times; `null` if unknown.
    pub clock_uncertainty_ns: Option<u64>,
    /// The two wall clocks differ at least so much, by the order of messages.
    pub wall_clock_error_ns: Option<u64>,
    /// Number of limits from the order of messages that contradict the others.
    pub clock_contradictions: u64,
    /// Tokens that it sent, which are not added to those of the decode server.
    pub tokens_sent: Option<u64>,
    /// Headline of its own report.
    pub verdict: Option<String>,
    /// Its worst severity.
    pub severity: Option<Severity>,
}

/// A part of the time to first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairLegLine {
    /// Its name; several joined by `+` if moments between them were not observed.
    pub name: String,
    /// The same in words.
    pub words: String,
    /// Moment at which it begins.
    pub from: String,
    /// Moment at which it ends.
    pub to: String,
    /// Its length over requests; quantiles are accurate to 6 %.
    pub ns: Spread,
    /// Mean length.
    pub mean_ns: u64,
    /// Share in the time to first token of all requests, from 0 to 1.
    pub share: f64,
}

/// A moment that is not known of some requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsentMomentLine {
    /// Its name.
    pub moment: String,
    /// Number of requests without it.
    pub requests: u64,
    /// Why.
    pub reason: String,
}

/// A prefill server whose requests were joined.
#[derive(Clone, Debug)]
pub struct PrefillName {
    /// Name of the engine, or of its recording.
    pub name: String,
    /// Index of its run: names need not differ.
    pub run_index: usize,
    /// Evidence that it is a prefill server.
    pub side_by: String,
}

impl PairReport {
    /// The requests of a decode server that were found on its prefill servers; `None` if none was. `prefill_servers` must be in the order
    /// that they have in `pair`. `decode_by` is the evidence that this is the decode server. Times count from `capture_start`.
    pub fn new(
        pair: &Pair<'_>,
        prefill_servers: &[PrefillName],
        decode_by: &str,
        capture_start: MonoNs,
        slowest_limit: usize,
    ) -> Option<Self> {
        let requests = pair.joined().count() as u64;
        if requests == 0 {
            return None;
        }
        Some(Self {
            headline: describe_worst_leg(pair),
            decode_by: decode_by.to_owned(),
            prefill: prefill_lines(pair, prefill_servers),
            requests,
            requests_evicted: pair.requests_evicted(),
            newest_finished: pair.finished_limit_if_reached().map(|limit| limit as u64),
            decode_only: pair.decode_only(),
            prefill_only: pair.prefill_only,
            ttft_ns: pair.ttft(),
            ttft_mean_ns: pair.ttft_mean_ns(),
            legs: pair.legs().iter().map(|lengths| PairLegLine::new(pair, lengths)).collect(),
            absent: list_absent_moments(pair),
            slowest: slowest_requests(pair, capture_start, slowest_limit),
            findings: finding_lines(pair, capture_start),
        })
    }

    /// Adds tokens, verdict and severity from a prefill server's own report to the line of that server, which has this `run_index`.
    pub fn add_prefill_report(&mut self, run_index: usize, report: &Report) {
        for server in self.prefill.iter_mut().filter(|server| server.run_index == run_index) {
            server.tokens_sent = Some(report.tokens.sent);
            server.verdict = Some(report.verdict.clone());
            server.severity = report.severity;
        }
    }

    /// Its findings, worst first, until [`Report::add_pair_report`] takes them. Those that last have no end.
    pub fn findings(&self) -> &[FindingLine] {
        &self.findings
    }

    /// Why the prefill and the transfer of the cache are not told apart, so that a slow transfer looks like a long prefill. `None` if they
    /// are told apart for most requests.
    fn why_prefill_is_unseparated(&self) -> Option<String> {
        let without_end = self.absent.iter().filter(|absent| absent.moment == PairMoment::PrefillEnded.as_str());
        let absent = without_end.max_by_key(|absent| absent.requests)?;
        // If more requests than these lack the end of the prefill, the others show too little.
        let allowed_without_end = (1.0 - JUDGED_SHARE) * self.requests as f64;
        let are_too_many = absent.requests as f64 > allowed_without_end;
        are_too_many.then(|| format!("the prefill and the transfer of the cache are not told apart: {}", absent.reason))
    }
}

/// The prefill servers with requests of the decode server. `servers` are in the order of the join, as the pair has them.
fn prefill_lines(pair: &Pair<'_>, servers: &[PrefillName]) -> Vec<PrefillServerLine> {
    let lines = servers.iter().enumerate().map(|(index, server)| {
        let requests_of_both = pair.joined_with(index).count() as u64;
        PrefillServerLine::new(server, pair.clock_uses()[index], requests_of_both)
    });
    // Without a request of both, a server is no part of the pair.
    lines.filter(|server| server.requests > 0).collect()
}

impl PairLegLine {
    /// The line of a leg, a part of the time to first token of the pair's requests, with these lengths.
    fn new(pair: &Pair<'_>, lengths: &PairLegLengths) -> Self {
        let leg = lengths.leg;
        Self {
            name: leg.to_string(),
            words: leg.describe(),
            from: leg.from.as_str().to_owned(),
            to: leg.to.as_str().to_owned(),
            ns: lengths.spread(),
            mean_ns: lengths.mean_ns(),
            share: pair.share_of_leg(lengths),
        }
    }
}

impl PrefillServerLine {
    /// A server that has `requests` in common with the decode server. The result of its own report is added later.
    fn new(server: &PrefillName, clock: ClockUse, requests: u64) -> Self {
        let mut line = Self {
            name: server.name.clone(),
            run_index: server.run_index,
            side_by: server.side_by.clone(),
            requests,
            clock: name_clock_use(clock).to_owned(),
            clock_ahead_ns: None,
            clock_uncertainty_ns: clock.uncertainty_ns(),
            wall_clock_error_ns: None,
            clock_contradictions: 0,
            tokens_sent: None,
            verdict: None,
            severity: None,
        };
        // Only clocks that are a constant time apart have these numbers.
        if let ClockUse::Offset { ahead_ns, wall_error_ns, contradictions, .. } = clock {
            line.clock_ahead_ns = Some(ahead_ns);
            // The wall clocks are not known to differ if it is 0.
            line.wall_clock_error_ns = Some(wall_error_ns).filter(|error| *error > 0);
            line.clock_contradictions = contradictions;
        }
        line
    }
}

/// How the clock of a prefill server is related to that of the decode server, in one word.
fn name_clock_use(clock: ClockUse) -> &'static str {
    match clock {
        ClockUse::Same => "same",
        ClockUse::Offset { .. } => "offset",
        ClockUse::Drifting { .. } => "drifting",
    }
}

impl Report {
    /// Adds what the prefill servers did for this decode server's requests. The findings of the pair become findings of this report, and
    /// its verdict and severity follow from all of them.
    pub fn add_pair_report(&mut self, mut pair: PairReport) {
        // The findings move from the pair into the report, which lists them with its own.
        let mut pair_findings = std::mem::take(&mut pair.findings);
        // Both may have one about the queue of this server, of which one remains.
        remove_milder_queue_finding(&mut pair_findings, "decode-queue", &mut self.findings);
        let server_findings = std::mem::take(&mut self.findings);
        self.findings = order_pair_and_server_findings(pair_findings, server_findings);
        judge_late_requests_of_pair(&mut self.judged, pair.why_prefill_is_unseparated().as_deref());
        self.pair = Some(Box::new(pair));
        self.sort_findings_and_conclude();
    }

    /// Adds the findings of a prefill server's own report to this report of the decode server, and updates verdict and severity. `clock`
    /// relates the prefill server's clock to this server's. [`Self::add_pair_report`] must have added the findings of the pair before.
    pub fn add_prefill_findings(&mut self, server_name: &str, prefill: &Self, clock: ClockUse) {
        // The kinds of findings tell those of the pair from this server's own.
        let present_findings = std::mem::take(&mut self.findings);
        let (mut pair_findings, mut server_findings): (Vec<_>, Vec<_>) =
            present_findings.into_iter().partition(|finding| PairFinding::is_kind(&finding.kind));
        let mut prefill_findings = prefill.findings.clone();
        // The pair and the prefill server may both have a finding about that server's queue.
        remove_milder_queue_finding(&mut pair_findings, "prefill-queue", &mut prefill_findings);
        let shift_ns = self.shift_of_prefill_times_ns(prefill, clock);
        for finding in prefill_findings {
            server_findings.push(finding.into_finding_of_prefill_server(server_name, shift_ns));
        }
        self.findings = order_pair_and_server_findings(pair_findings, server_findings);
        self.sort_findings_and_conclude();
    }

    /// Number of nanoseconds to add to a time of the prefill server's capture, so that it counts from the start of this capture.
    fn shift_of_prefill_times_ns(&self, prefill: &Self, clock: ClockUse) -> i64 {
        if let Some(ahead_ns) = clock.ahead_ns() {
            // The starts of both captures, on this server's clock.
            let prefill_start_ns = prefill.capture_start().0.cast_signed().wrapping_add(ahead_ns);
            let own_start_ns = self.capture_start().0.cast_signed();
            return prefill_start_ns.wrapping_sub(own_start_ns);
        }
        // The clocks cannot be compared, so a finding keeps its time of day, by the wall clock of its own server.
        if let (Some([prefill_start_ns, _]), Some([own_start_ns, _])) = (prefill.window_wall_ns, self.window_wall_ns) {
            return prefill_start_ns.cast_signed().wrapping_sub(own_start_ns.cast_signed());
        }
        // Without time of day, it keeps its time since the start of its own capture.
        0
    }

    /// Sorts the findings by severity. Of equally severe ones, those of the last ten seconds come first, then those that explain more time.
    /// Updates the severity of the report, which is that of the first finding, and its verdict.
    fn sort_findings_and_conclude(&mut self) {
        let end_ns = self.capture_length_ns();
        self.findings.sort_by_key(|finding| Reverse(finding.rank(end_ns).without_explained_time()));
        // Within a rank, the findings that explain time are sorted by it.
        let of_each_rank = self.findings.chunk_by_mut(|left, right| {
            left.rank(end_ns).without_explained_time() == right.rank(end_ns).without_explained_time()
        });
        of_each_rank.for_each(sort_by_explained_time);
        self.severity = self.findings.first().map(|worst| worst.severity);
        let in_utc = None;
        self.verdict = headline(self, &Clock::of(self, in_utc));
    }
}

impl FindingLine {
    /// The finding for the report of the decode server: names the prefill server, and moves the times to the decode server's capture.
    fn into_finding_of_prefill_server(self, server_name: &str, shift_ns: i64) -> Self {
        Self {
            summary: format!("prefill server {server_name}: {}", self.summary),
            at_ns: self.at_ns.saturating_add_signed(shift_ns),
            last_at_ns: self.last_at_ns.saturating_add_signed(shift_ns),
            ended_at_ns: self.ended_at_ns.map(|at_ns| at_ns.saturating_add_signed(shift_ns)),
            episodes: self.episodes.iter().map(|episode| episode.shifted_by(shift_ns)).collect(),
            // The decode server has a hop of the same name.
            hop: self.hop.map(|hop| format!("{server_name}: {hop}")),
            ..self
        }
    }
}

/// One sentence about the leg that takes most of the time to first token, or why it is unknown.
fn describe_worst_leg(pair: &Pair<'_>) -> String {
    let Some(worst) = pair.worst_leg() else { return describe_unknown_leg(pair) };
    format!(
        "most of TTFT: {}, {} of it (mean {} of {} over {})",
        worst.leg.describe(),
        percent(pair.share_of_leg(worst)),
        duration(worst.mean_ns()),
        duration(pair.ttft_mean_ns().unwrap_or_default()),
        plural(pair.ttft().map_or(0, |ttft| ttft.count), "request"),
    )
}

/// Why it is unknown which leg takes most of the time to first token.
fn describe_unknown_leg(pair: &Pair<'_>) -> String {
    if pair.ttft().is_none() {
        return String::from("no time to first token was observed on the decode server");
    }
    let error = pair
        .clock_uncertainty_ns()
        .map_or_else(|| "unknown error".to_owned(), |ns| format!("an error of {}", duration(ns)));
    format!("it is unknown what takes most of TTFT: times of the two servers are compared with {error}")
}

/// Moments that some requests lack, with the number of those requests by reason.
fn list_absent_moments(pair: &Pair<'_>) -> Vec<AbsentMomentLine> {
    let mut requests_by_cause: BTreeMap<(PairMoment, &str), u64> = BTreeMap::new();
    for row in pair.joined() {
        for moment in PairMoment::ALL {
            if let Some(reason) = pair.reason_moment_is_unknown(row, *moment) {
                *requests_by_cause.entry((*moment, reason)).or_default() += 1;
            }
        }
    }
    let lines = requests_by_cause.into_iter().map(|((moment, reason), requests)| AbsentMomentLine {
        moment: moment.as_str().to_owned(),
        requests,
        reason: reason.to_owned(),
    });
    lines.collect()
}

/// Findings of the pair, with times since `capture_start`.
fn finding_lines(pair: &Pair<'_>, capture_start: MonoNs) -> Vec<FindingLine> {
    let joined_at = pair.observed_until();
    pair.findings().into_iter().map(|finding| finding_line(finding, capture_start, joined_at)).collect()
}

/// Converts a finding of the pair, which has a single episode. Times count from `capture_start`, and the pair was observed until
/// `joined_at`.
fn finding_line(finding: PairFinding, capture_start: MonoNs, joined_at: MonoNs) -> FindingLine {
    let [began, last] = finding.span;
    // A problem of the last seconds before the end may go on, so it has not ended.
    let has_ended = joined_at.since(last) >= WINDOW_NS;
    let at_ns = began.since(capture_start);
    let last_at_ns = last.since(capture_start);
    FindingLine {
        kind: finding.kind.to_owned(),
        severity: finding.severity,
        rid: finding.rid,
        hop: None,
        at_ns,
        last_at_ns,
        ended_at_ns: has_ended.then_some(last_at_ns),
        duration_ns: last.since(began),
        episodes: vec![EpisodeLine { at_ns, last_at_ns }],
        explained_ns: u64::try_from(finding.total_ns).ok(),
        episodes_joined: 0,
        summary: finding.summary,
        evidence: finding.evidence,
        advice: Some(finding.advice),
    }
}

#[cfg(test)]
mod tests {
    use trace::{Analysis, Config, ReportInput};

    use super::super::judged::{FaultKind, Judgement};
    use super::*;

    fn with_length(mut finding: FindingLine, name: &str, ns: u64) -> FindingLine {
        finding.evidence.insert(name.to_owned(), ns.into());
        finding
    }

    #[test]
    fn a_stop_longer_than_the_waits_of_the_pair_comes_first() {
        for (stop_ns, expected) in [
            (3, ["consumer-stopped", "transfer-slow", "first-token-gap"]),
            (1, ["transfer-slow", "first-token-gap", "consumer-stopped"]),
        ] {
            let pair = vec![with_length(FindingLine::of_kind("transfer-slow", Severity::Warning), "longest_ns", 2)];
            let gap = with_length(FindingLine::of_kind("first-token-gap", Severity::Warning), "max_ns", 9);
            let stop =
                with_length(FindingLine::of_kind("consumer-stopped", Severity::Warning), "oldest_waiting_ns", stop_ns);
            let joined = order_pair_and_server_findings(pair, vec![gap, stop]);
            assert_eq!(joined.iter().map(|found| &*found.kind).collect::<Vec<_>>(), expected);
        }
    }

    /// The prefill and the transfer of the cache are one leg.
    #[test]
    fn late_requests_are_not_judged_without_the_end_of_the_prefill() {
        let mut pair = PairReport {
            headline: String::new(),
            decode_by: String::new(),
            prefill: Vec::new(),
            requests: 100,
            requests_evicted: 0,
            newest_finished: None,
            decode_only: None,
            prefill_only: None,
            ttft_ns: None,
            ttft_mean_ns: None,
            legs: Vec::new(),
            absent: vec![AbsentMomentLine { moment: "prefill_ended".to_owned(), requests: 5, reason: "R".to_owned() }],
            slowest: Vec::new(),
            findings: Vec::new(),
        };
        for (requests, reason) in
            [(5, None), (90, Some("the prefill and the transfer of the cache are not told apart: R"))]
        {
            pair.absent[0].requests = requests;
            let mut judged = vec![Judgement {
                fault: FaultKind::LateRequests,
                judged: false,
                reason: Some("requests wait for the other server of a pair".to_owned()),
            }];
            judge_late_requests_of_pair(&mut judged, pair.why_prefill_is_unseparated().as_deref());
            assert_eq!((judged[0].judged, judged[0].reason.as_deref()), (reason.is_none(), reason));
        }
    }

    #[test]
    fn a_stop_that_ended_a_moment_ago_comes_before_a_slow_transfer_that_lasts() {
        let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach"));
        report.window_ns = [0, 20_000_000_000];
        for (last_at_ns, worst) in [(14_000_000_000, "consumer-stopped"), (4_000_000_000, "transfer-slow")] {
            let stop = FindingLine::of_kind("consumer-stopped", Severity::Warning);
            let stop = FindingLine { last_at_ns, ended_at_ns: Some(last_at_ns), ..stop };
            let slow = with_length(FindingLine::of_kind("transfer-slow", Severity::Warning), "longest_ns", 2);
            report.findings =
                order_pair_and_server_findings(vec![slow], vec![with_length(stop, "oldest_waiting_ns", 3)]);
            report.sort_findings_and_conclude();
            assert_eq!(report.findings[0].kind, worst);
        }
    }

    #[test]
    fn the_finding_that_explains_most_comes_first_whichever_server_it_is_of() {
        let explaining =
            |kind, explained_ns| FindingLine { explained_ns, ..FindingLine::of_kind(kind, Severity::Warning) };
        let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach"));
        let mut sort = |pair: &[FindingLine], servers: &[FindingLine]| {
            report.findings = order_pair_and_server_findings(pair.to_vec(), servers.to_vec());
            report.sort_findings_and_conclude();
            report.findings.iter().map(|finding| finding.kind.clone()).collect::<Vec<String>>()
        };
        let slow = with_length(explaining("transfer-slow", Some(4)), "longest_ns", 2);
        let [lost, starved, gap] =
            [("dropped-chunks", None), ("consumer-starved", Some(1)), ("first-token-gap", Some(9))]
                .map(|(kind, explained_ns)| explaining(kind, explained_ns));
        let servers = [lost.clone(), starved.clone(), gap.clone()];
        assert_eq!(sort(&[], &servers), ["dropped-chunks", "first-token-gap", "consumer-starved"]);
        let expected = ["first-token-gap", "dropped-chunks", "transfer-slow", "consumer-starved"];
        assert_eq!(sort(std::slice::from_ref(&slow), &servers), expected);
        let critical = FindingLine { severity: Severity::Critical, ..starved };
        assert_eq!(sort(std::slice::from_ref(&slow), &[gap, critical])[0], "consumer-starved");
        for (stop_ns, first) in [(3, "consumer-stopped"), (1, "transfer-slow")] {
            let stop = with_length(explaining("consumer-stopped", Some(3)), "oldest_waiting_ns", stop_ns);
            assert_eq!(sort(std::slice::from_ref(&slow), &[stop])[0], first, "of a stop of {stop_ns} ns");
        }
    }

    #[test]
    fn the_worse_finding_of_one_queue_is_left() {
        use Severity::{Critical, Info, Warning};
        let cases = [
            (Some(Warning), Some(Critical), [None, Some(Critical)]),
            (Some(Critical), Some(Warning), [Some(Critical), None]),
            (Some(Warning), Some(Warning), [Some(Warning), None]),
            (Some(Info), Some(Warning), [None, Some(Warning)]),
            (Some(Info), Some(Info), [Some(Info), Some(Info)]),
            (None, Some(Critical), [None, Some(Critical)]),
            (None, None, [None, None]),
        ];
        for (pair_severity, own_severity, expected) in cases {
            let mut pair: Vec<_> =
                pair_severity.map(|severity| FindingLine::of_kind("prefill-queue", severity)).into_iter().collect();
            let mut own: Vec<_> =
                own_severity.map(|severity| FindingLine::of_kind("queued", severity)).into_iter().collect();
            remove_milder_queue_finding(&mut pair, "prefill-queue", &mut own);
            let left = [pair, own].map(|findings| findings.first().map(|left| left.severity));
            assert_eq!(left, expected, "{pair_severity:?} {own_severity:?}");
        }
    }
}
