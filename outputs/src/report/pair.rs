//! A decode server's report with what its prefill servers did for its requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::detect::Severity;
use trace::pair::{ClockUse, Pair, PairFinding, PairMoment, PairRow};
use trace::stats::{Spread, WINDOW_NS};
use trace::words::{count, duration, percent, plural};

use super::finding::merge_findings;
use super::judged::{JUDGED_SHARE, headline, judge_pair};
use super::ttft::RequestLegLine;
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
    /// Requests of the decode server that were not found; `null` if a prefill server no longer keeps all of its requests.
    pub decode_only: Option<u64>,
    /// Requests of the prefill servers that were not found on this server; `null` if there are other decode servers, or if a server no longer
    /// keeps all of its requests.
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

/// A request of both servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRequestLine {
    /// Its room, as text: JSON numbers are too short; `null` if it was joined by its id.
    pub room: Option<String>,
    /// Its id on the prefill server.
    pub prefill_rid: String,
    /// Its id on the decode server.
    pub decode_rid: String,
    /// Time to first token on the decode server.
    pub ttft_ns: u64,
    /// Its moments since the start of the decode server's capture, negative before it; `null` if unknown.
    pub moments: BTreeMap<String, Option<i64>>,
    /// Why moments are `null`.
    pub absent: BTreeMap<String, String>,
    /// Parts of `ttft_ns`, in order. They sum to it.
    pub legs: Vec<RequestLegLine>,
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
    /// The joined requests of a decode server, of which the `slowest` are listed; `None` if none was joined. `prefill` names the prefill
    /// servers in the order of the join.
    pub fn new(
        pair: &Pair<'_>,
        prefill: &[PrefillName],
        decode_by: &str,
        from: MonoNs,
        slowest: usize,
    ) -> Option<Self> {
        let requests = pair.joined().count() as u64;
        if requests == 0 {
            return None;
        }
        let legs: Vec<PairLegLine> = pair
            .legs()
            .iter()
            .map(|lengths| PairLegLine {
                name: lengths.leg.to_string(),
                words: lengths.leg.describe(),
                from: lengths.leg.from.as_str().to_owned(),
                to: lengths.leg.to.as_str().to_owned(),
                ns: lengths.spread(),
                mean_ns: lengths.mean_ns(),
                share: pair.share(lengths),
            })
            .collect();
        let servers = prefill.iter().enumerate().map(|(index, server)| {
            PrefillServerLine::new(server, pair.clock_uses()[index], pair.joined_with(index).count() as u64)
        });
        Some(Self {
            headline: describe_worst_leg(pair),
            decode_by: decode_by.to_owned(),
            prefill: servers.filter(|server| server.requests > 0).collect(),
            requests,
            requests_evicted: pair.requests_evicted(),
            decode_only: pair.decode_only(),
            prefill_only: pair.prefill_only,
            ttft_ns: pair.ttft(),
            ttft_mean_ns: pair.ttft_mean_ns(),
            legs,
            absent: absent_moments(pair),
            slowest: slowest_requests(pair, from, slowest),
            findings: pair.findings().into_iter().map(|finding| finding_line(finding, from)).collect(),
        })
    }

    /// Adds the result of a prefill server's own report.
    pub fn add_prefill_report(&mut self, run_index: usize, report: &Report) {
        for server in self.prefill.iter_mut().filter(|server| server.run_index == run_index) {
            server.tokens_sent = Some(report.tokens.sent);
            server.verdict = Some(report.verdict.clone());
            server.severity = report.severity;
        }
    }

    /// Its worst finding, until [`Report::add_pair`] takes its findings; `None` without one.
    pub fn worst_finding(&self) -> Option<&FindingLine> {
        self.findings.first()
    }

    /// Why the prefill and the transfer of the cache are not told apart, so that a slow transfer looks like a long prefill; `None` if they mostly
    /// are.
    fn unseparated_prefill(&self) -> Option<String> {
        let without_end = self.absent.iter().filter(|absent| absent.moment == PairMoment::PrefillEnded.as_str());
        let absent = without_end.max_by_key(|absent| absent.requests)?;
        (absent.requests as f64 > (1.0 - JUDGED_SHARE) * self.requests as f64)
            .then(|| format!("the prefill and the transfer of the cache are not told apart: {}", absent.reason))
    }

    /// Its servers and their requests, as one paragraph each.
    pub(super) fn paragraphs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for server in &self.prefill {
            let result =
                server.verdict.as_deref().map_or_else(String::new, |verdict| format!("; its report: {verdict}"));
            lines.push(format!(
                "prefill server {}: {}, {}{result}",
                super::hostile::plain(&server.name),
                plural(server.requests, "request"),
                server.describe_clock()
            ));
        }
        if self.requests_evicted > 0 {
            let evicted = plural(self.requests_evicted, "request");
            lines.push(format!("without {evicted} that are no longer kept (`--max-finished`)"));
        }
        let mut others = Vec::new();
        if let Some(only) = self.decode_only.filter(|only| *only > 0) {
            others.push(format!("{} only on this server", count(only)));
        }
        if let Some(only) = self.prefill_only.filter(|only| *only > 0) {
            others.push(format!("{} only on the prefill server", count(only)));
        }
        if !others.is_empty() {
            lines.push(format!("requests of one server: {}", others.join(", ")));
        }
        lines
    }

    /// Moments that are not known, those with one reason together: `of 12 requests: prefill_queued, prefill_started (reason)`.
    pub(super) fn describe_absent(&self) -> Vec<String> {
        let groups = self.absent.chunk_by(|one, next| (one.requests, &one.reason) == (next.requests, &next.reason));
        let lines = groups.map(|group| {
            let moments: Vec<&str> = group.iter().map(|absent| absent.moment.as_str()).collect();
            format!("of {}: {} ({})", plural(group[0].requests, "request"), moments.join(", "), group[0].reason)
        });
        lines.collect()
    }
}

impl PrefillServerLine {
    fn new(server: &PrefillName, clock: ClockUse, requests: u64) -> Self {
        let mut line = Self {
            name: server.name.clone(),
            run_index: server.run_index,
            side_by: server.side_by.clone(),
            requests,
            clock: "same".to_owned(),
            clock_ahead_ns: None,
            clock_uncertainty_ns: clock.uncertainty_ns(),
            wall_clock_error_ns: None,
            clock_contradictions: 0,
            tokens_sent: None,
            verdict: None,
            severity: None,
        };
        match clock {
            ClockUse::Same => {}
            ClockUse::Drifting { .. } => "drifting".clone_into(&mut line.clock),
            ClockUse::Offset { ahead_ns, wall_error_ns, contradictions, .. } => {
                "offset".clone_into(&mut line.clock);
                line.clock_ahead_ns = Some(ahead_ns);
                line.wall_clock_error_ns = Some(wall_error_ns).filter(|error| *error > 0);
                line.clock_contradictions = contradictions;
            }
        }
        line
    }

    fn describe_clock(&self) -> String {
        let mut words = match (self.clock.as_str(), self.clock_uncertainty_ns, self.wall_clock_error_ns) {
            ("same", ..) => String::from("times exact (one host)"),
            ("drifting", ..) => String::from("times not compared: the clocks of the two hosts drift apart"),
            (_, None, _) => String::from("times of two hosts, by their wall clocks, with unknown error"),
            (_, Some(error), None) => format!("times of two hosts, exact to {}", duration(error)),
            (_, Some(error), Some(wall)) => format!(
                "times of two hosts, exact to {} (their wall clocks differ by {} or more)",
                duration(error),
                duration(wall)
            ),
        };
        if self.clock_contradictions > 0 {
            let times = plural(self.clock_contradictions, "pair");
            let _ = write!(words, ", without {times} of messages in an order that no such clock allows");
        }
        words
    }
}

impl Report {
    /// Adds the prefill servers' part of this decode server's requests. The findings of the pair join its findings.
    pub fn add_pair(&mut self, mut pair: PairReport) {
        let mut findings = std::mem::take(&mut pair.findings);
        leave_worse(&mut findings, "decode-queue", &mut self.findings, "queued");
        let window_ns = self.window_ns[1];
        for finding in &mut findings {
            // It lasts, as a finding of one server does.
            finding.ended_at_ns.take_if(|ended_at_ns| window_ns.saturating_sub(*ended_at_ns) < WINDOW_NS);
        }
        self.findings = join_findings(findings, std::mem::take(&mut self.findings));
        judge_pair(&mut self.judged, pair.unseparated_prefill().as_deref());
        self.pair = Some(Box::new(pair));
        self.update_worst_finding();
    }

    /// Adds the findings of a prefill server's own report, whose clock relates so to this server's, to a report of both servers, so that its
    /// severity is the worst of both. Called after [`Self::add_pair`].
    pub fn add_prefill_findings(&mut self, name: &str, prefill: &Self, clock: ClockUse) {
        let start_ns = self.window_mono_ns[0].cast_signed();
        let shift_ns = match clock.ahead_ns() {
            Some(ahead_ns) => prefill.window_mono_ns[0].cast_signed().wrapping_add(ahead_ns).wrapping_sub(start_ns),
            // Its findings are of its own server, so their time of day is that of its wall clock.
            None => prefill.wall_start_ns().zip(self.wall_start_ns()).map_or(0, |(own, start)| own.wrapping_sub(start)),
        };
        let mut prefill_findings = prefill.findings.clone();
        leave_worse(&mut self.findings, "prefill-queue", &mut prefill_findings, "queued");
        let added = prefill_findings.into_iter().map(|own| FindingLine {
            summary: format!("prefill server {name}: {}", own.summary),
            at_ns: own.at_ns.saturating_add_signed(shift_ns),
            last_at_ns: own.last_at_ns.saturating_add_signed(shift_ns),
            ended_at_ns: own.ended_at_ns.map(|at_ns| at_ns.saturating_add_signed(shift_ns)),
            episodes: own.episodes.iter().map(|episode| episode.shifted(shift_ns)).collect(),
            // The decode server has a hop of the same name.
            hop: own.hop.map(|hop| format!("{name}: {hop}")),
            ..own
        });
        let (pair, own): (Vec<FindingLine>, Vec<FindingLine>) =
            std::mem::take(&mut self.findings).into_iter().partition(|found| PairFinding::is_kind(&found.kind));
        self.findings = join_findings(pair, merge_findings(own, added.collect(), self.window_ns[1]));
        self.update_worst_finding();
    }

    fn wall_start_ns(&self) -> Option<i64> {
        self.window_wall_ns.map(|[start, _]| start.cast_signed())
    }

    /// Sorts the findings by severity, and those of the last ten seconds before earlier ones.
    fn update_worst_finding(&mut self) {
        let end_ns = self.window_ns[1];
        self.findings.sort_by_key(|finding| {
            let rank = finding.rank(end_ns);
            std::cmp::Reverse((rank.severity, rank.is_recent))
        });
        self.severity = self.findings.first().map(|worst| worst.severity);
        self.verdict = headline(self, &Clock::of(self, None));
    }
}

/// Findings of the pair and of its servers, in the order in which those of equal severity are listed: the pair's first, but behind a stop of a
/// process that is longer than any of their waits, which may be its consequences.
fn join_findings(mut pair: Vec<FindingLine>, of_servers: Vec<FindingLine>) -> Vec<FindingLine> {
    let wait_ns = |finding: &FindingLine| finding.evidence.get("longest_ns").and_then(serde_json::Value::as_u64);
    let Some(longest_ns) = pair.iter().filter_map(wait_ns).max() else {
        pair.extend(of_servers);
        return pair;
    };
    let (mut findings, others): (Vec<FindingLine>, Vec<FindingLine>) =
        of_servers.into_iter().partition(|finding| stop_ns(finding) > Some(longest_ns));
    findings.extend(pair);
    findings.extend(others);
    findings
}

/// Length of the stop of a process; `None` if the finding is about something else.
fn stop_ns(finding: &FindingLine) -> Option<u64> {
    let length = match finding.kind.as_str() {
        "consumer-stopped" | "consumer-frozen" => "oldest_waiting_ns",
        "engine-silent" => "silence_ns",
        _ => return None,
    };
    finding.evidence.get(length)?.as_u64()
}

/// Of a finding of the pair and one of a server that are one problem, leaves the more severe, so that no severity is lost; the pair's if they
/// are equal.
fn leave_worse(pair: &mut Vec<FindingLine>, pair_kind: &str, own: &mut Vec<FindingLine>, own_kind: &str) {
    let pair_severity = severity_of(pair, pair_kind);
    let own_severity = severity_of(own, own_kind);
    if pair_severity.is_some() && own_severity <= pair_severity {
        own.retain(|finding| finding.kind != own_kind);
    } else if own_severity.is_some() {
        pair.retain(|finding| finding.kind != pair_kind);
    }
}

/// Severity of a problem of this kind that is more than information; `None` without one.
fn severity_of(findings: &[FindingLine], kind: &str) -> Option<Severity> {
    let same = findings.iter().filter(|finding| finding.kind == kind && finding.severity > Severity::Info);
    same.map(|finding| finding.severity).max()
}

fn describe_worst_leg(pair: &Pair<'_>) -> String {
    let Some(worst) = pair.worst_leg() else {
        return describe_unknown_leg(pair);
    };
    format!(
        "most of TTFT: {}, {} of it (mean {} of {} over {})",
        worst.leg.describe(),
        percent(pair.share(worst)),
        duration(worst.mean_ns()),
        duration(pair.ttft_mean_ns().unwrap_or_default()),
        plural(pair.ttft().map_or(0, |ttft| ttft.count), "request"),
    )
}

fn describe_unknown_leg(pair: &Pair<'_>) -> String {
    if pair.ttft().is_none() {
        return String::from("no time to first token was observed on the decode server");
    }
    let error = pair
        .clock_uncertainty_ns()
        .map_or_else(|| "unknown error".to_owned(), |ns| format!("an error of {}", duration(ns)));
    format!("it is unknown what takes most of TTFT: times of the two servers are compared with {error}")
}

fn absent_moments(pair: &Pair<'_>) -> Vec<AbsentMomentLine> {
    let mut absent: BTreeMap<(PairMoment, &str), u64> = BTreeMap::new();
    for row in pair.joined() {
        for moment in PairMoment::ALL {
            if let Some(reason) = pair.absence(row, *moment) {
                *absent.entry((*moment, reason)).or_default() += 1;
            }
        }
    }
    let lines = absent.into_iter().map(|((moment, reason), requests)| AbsentMomentLine {
        moment: moment.as_str().to_owned(),
        requests,
        reason: reason.to_owned(),
    });
    lines.collect()
}

fn slowest_requests(pair: &Pair<'_>, from: MonoNs, limit: usize) -> Vec<PairRequestLine> {
    let mut rows: Vec<&PairRow<'_>> = pair.joined().filter(|row| row.ttft_ns.is_some()).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.ttft_ns), row.decode_rid));
    rows.truncate(limit);
    rows.into_iter().filter_map(|row| request_line(pair, row, from)).collect()
}

fn request_line<'a>(pair: &Pair<'a>, row: &PairRow<'a>, from: MonoNs) -> Option<PairRequestLine> {
    let moments = PairMoment::ALL.iter().map(|moment| {
        let since = row.time_of(*moment).map(|at| at.0.cast_signed().wrapping_sub(from.0.cast_signed()));
        (moment.as_str().to_owned(), since)
    });
    let absent = PairMoment::ALL.iter().filter_map(|moment| {
        let reason = pair.absence(row, *moment)?;
        Some((moment.as_str().to_owned(), reason.to_owned()))
    });
    Some(PairRequestLine {
        room: row.room.map(|room| room.to_string()),
        prefill_rid: row.prefill_rid?.to_owned(),
        decode_rid: row.decode_rid.to_owned(),
        ttft_ns: row.ttft_ns?,
        moments: moments.collect(),
        absent: absent.collect(),
        legs: row.legs().map(|(leg, ns)| RequestLegLine { name: leg.to_string(), ns }).collect(),
    })
}

fn finding_line(finding: PairFinding, from: MonoNs) -> FindingLine {
    let [began, last] = finding.span;
    FindingLine {
        kind: finding.kind.to_owned(),
        severity: finding.severity,
        rid: finding.rid,
        hop: None,
        at_ns: began.since(from),
        last_at_ns: last.since(from),
        ended_at_ns: Some(last.since(from)),
        duration_ns: last.since(began),
        episodes: vec![EpisodeLine { at_ns: began.since(from), last_at_ns: last.since(from) }],
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
            let joined = join_findings(pair, vec![gap, stop]);
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
            judge_pair(&mut judged, pair.unseparated_prefill().as_deref());
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
            report.findings = join_findings(vec![slow], vec![with_length(stop, "oldest_waiting_ns", 3)]);
            report.update_worst_finding();
            assert_eq!(report.findings[0].kind, worst);
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
            leave_worse(&mut pair, "prefill-queue", &mut own, "queued");
            let left = [pair, own].map(|findings| findings.first().map(|left| left.severity));
            assert_eq!(left, expected, "{pair_severity:?} {own_severity:?}");
        }
    }
}
