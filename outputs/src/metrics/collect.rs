//! Converts the state of a run to metrics.

mod hops;

use std::collections::BTreeMap;

use trace::detect::attribution::Attribution;
use trace::detect::{ALL as DETECTORS, Findings};
use trace::engine::{Mode, Waiter};
use trace::event::ThreadPart;
use trace::ledger::{Ledger, Thread, TimeUse};
use trace::stats::RecentWindow;
use trace::{Analysis, ReportInput};

use self::hops::{add_hop_groups, ns_by_cpu_state};
use super::definition as metric;
use super::family::Families;
use super::{Family, Histogram, MAX_HOPS, MAX_ROLES, Value};
use crate::report::{Chunks, FindingLine, Requests, Tokens, judgements};

/// Input of the metrics, except the ledger and the findings.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Input of a report at this time.
    pub report: &'a ReportInput,
    /// The version of tokengap.
    pub version: &'a str,
    /// Results of pushing by OTLP; `None` without a push target.
    pub pushed: Option<Pushed>,
    /// Use of the endpoint; `None` without one.
    pub endpoint: Option<EndpointUse>,
    /// Findings of the pair whose decode server this is, as of its last join.
    pub pair_findings: &'a [FindingLine],
}

/// Use of the endpoint that serves the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointUse {
    /// Current clients of each stream, by path.
    pub clients: [(&'static str, u64); 2],
    /// Clients dropped because they read too slowly, by path.
    pub dropped: [(&'static str, u64); 2],
    /// Refused requests and connections, by reason.
    pub refused: [(&'static str, u64); 4],
}

/// Results of pushing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Spans.
    pub spans: PushedItems,
    /// Metric points.
    pub points: PushedItems,
}

/// Numbers of pushed items of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushedItems {
    /// Accepted by the collector.
    pub accepted: u64,
    /// Given up: refused, or not accepted in time.
    pub dropped: u64,
}

/// Collects all observable metrics of the run so far. The findings are those of a run of the detectors at this moment.
pub fn collect(analysis: &Analysis, input: &Input<'_>) -> Vec<Family> {
    let ledger = analysis.ledger();
    let mut families = Families::new();
    add_run_facts(&mut families, ledger, input);
    add_request_counts(&mut families, ledger);
    add_token_and_chunk_counts(&mut families, ledger);
    add_latency_histograms(&mut families, ledger);
    add_response_counts_by_end(&mut families, ledger);
    add_path_shares(&mut families, &analysis.attribution());
    add_hop_groups(&mut families, ledger);
    add_cpu_time_by_role(&mut families, ledger);
    add_finding_counts(&mut families, &analysis.findings_now(), input.pair_findings);
    add_judged_faults(&mut families, analysis.ledger());
    add_own_metrics(&mut families, ledger, input);
    families.into_non_empty()
}

/// Adds the facts about the run and its engine.
fn add_run_facts(families: &mut Families, ledger: &Ledger, input: &Input<'_>) {
    let engine = ledger.engine();
    // Metrics whose labels carry the information have the value 1.
    families.put_int(&metric::BUILD, [input.version], 1);
    families.put_int(&metric::SOURCE, [&input.report.kind], 1);
    // Prefill or decode, if the engine is one of a pair.
    let side = input.report.wire.as_ref().and_then(|wire| wire.pointer("/disaggregation/mode"));
    let labels = [
        engine.facts().name(),
        engine.version.as_deref().unwrap_or_default(),
        engine.mode.map(Mode::as_str).unwrap_or_default(),
        // How the engine processes several chunks that are queued for one request.
        engine.waiter.map(Waiter::as_str).unwrap_or_default(),
        side.and_then(serde_json::Value::as_str).unwrap_or_default(),
    ];
    families.put_int(&metric::ENGINE, labels, 1);
    families.put_int(&metric::ENGINE_ENDED, [], ledger.totals().engine_ends);
    let window_ns = ledger.started().map(|from| ledger.now().since(from));
    families.put_ns_as_seconds(&metric::WINDOW, [], window_ns);
}

/// Adds the counts of requests.
fn add_request_counts(families: &mut Families, ledger: &Ledger) {
    let requests = Requests::of_ledger(ledger);
    families.put_int(&metric::REQUESTS_SEEN, [], requests.seen);
    families.put_int(&metric::REQUESTS_FINISHED, [], requests.finished);
    families.put_int(&metric::REQUESTS_ABORTED, [], requests.aborted);
    families.put_int(&metric::REQUESTS_JOINED_LATE, [], requests.joined_late);
    families.put_int(&metric::REQUESTS_OVERWRITTEN, [], requests.overwritten);
    families.put_int(&metric::REQUESTS_ORPHANED, [], requests.orphaned);
    // 0 would be a false claim if neither messages to the scheduler nor deliveries are observed.
    let observes_requests = ledger.groups().iter().any(|group| group.carries_requests);
    if observes_requests {
        families.put_int(&metric::REQUESTS_UNANSWERED, [], ledger.unanswered_requests().count() as u64);
    }
    if observes_requests || ledger.observes_deliveries() {
        add_abandoned_requests(families, ledger);
    }
    families.put_int(&metric::REQUESTS_LIVE, [], requests.live);
    families.put_int(&metric::HEALTH_CHECKS, [], requests.health_checks);
}

/// Adds the requests that continued after their client left, and the tokens that the engine made for nobody.
fn add_abandoned_requests(families: &mut Families, ledger: &Ledger) {
    let abandoned = ledger.abandoned_requests();
    families.put_int(&metric::REQUESTS_ABANDONED, [], abandoned.requests);
    // Requests known only from the engine's log have no token count.
    let are_tokens_known = abandoned.requests == 0 || !abandoned.is_logged();
    if are_tokens_known {
        families.put_int(&metric::TOKENS_ABANDONED, [], abandoned.tokens.unwrap_or(0));
    }
}

/// Adds histograms of the times to first token: one for each pair of moments between which such times were observed. Also adds one for each
/// leg, which is a part of such a time. The ledger keeps both by groups of requests, which are added up here.
fn add_ttft_histograms(families: &mut Families, ledger: &Ledger) {
    let mut whole_times: BTreeMap<(&str, &str), Histogram> = BTreeMap::new();
    let mut leg_times: BTreeMap<String, Histogram> = BTreeMap::new();
    for group in ledger.ttft().groups() {
        let ends = (group.whole().from.as_str(), group.whole().to.as_str());
        whole_times.entry(ends).or_default().add_histogram(&Histogram::of_durations(group.times()));
        for lengths in group.legs() {
            leg_times.entry(lengths.leg.to_string()).or_default().add_histogram(&Histogram::of_leg(lengths));
        }
    }
    for ((from, to), times) in whole_times {
        families.put_histogram(&metric::TTFT, [from, to], times);
    }
    for (leg, lengths) in leg_times {
        families.put_histogram(&metric::TTFT_LEG, [&leg], lengths);
    }
}

/// Adds the numbers of tokens and chunks, by the stage that they reached or by what became of them.
fn add_token_and_chunk_counts(families: &mut Families, ledger: &Ledger) {
    let tokens = Tokens::of_ledger(ledger);
    let chunks = Chunks::of_ledger(ledger);
    families.put_int(&metric::TOKENS_SENT, [], tokens.sent);
    families.put_int(&metric::TOKENS_RECEIVED, [], tokens.received);
    families.put_int(&metric::TOKENS_DELIVERED, [], tokens.delivered);
    families.put_int(&metric::TOKENS_LOST, [], chunks.tokens_lost);
    families.put_int(&metric::TOKENS_MISSING_ON_WIRE, [], tokens.missing_on_wire);
    families.put_int(&metric::CHUNKS_SENT, [], chunks.sent);
    families.put_int(&metric::CHUNKS_RECEIVED, [], chunks.received);
    families.put_int(&metric::CHUNKS_DELIVERED, [], chunks.delivered);
    families.put_int(&metric::CHUNKS_MERGED, [], chunks.merged);
    families.put_int(&metric::CHUNKS_PREDICTED_DROPPED, [], chunks.dropped_predicted);
    families.put_int(&metric::CHUNKS_DROPPED, [], chunks.dropped_confirmed);
    families.put_int(&metric::CHUNKS_UNJUDGED, [], chunks.unjudged);
    families.put_int(&metric::CHUNKS_IN_FLIGHT, [], chunks.in_flight);
}

/// Adds the distributions of waits and latencies: until the first token, between tokens, and in a frontend.
fn add_latency_histograms(families: &mut Families, ledger: &Ledger) {
    if ledger.observes_gaps() {
        families.put_histogram(&metric::GAP, [], Histogram::of_durations(ledger.gap()));
    }
    add_ttft_histograms(families, ledger);
    // Distributions without values are left out, because 0 would be a latency.
    let accept_waits = &ledger.new_connections().accept_waits;
    if accept_waits.count() > 0 {
        families.put_histogram(&metric::ACCEPT_WAIT, [], Histogram::of_durations(accept_waits));
    }
    add_inter_token_histograms(families, ledger);
    let frontend = ledger.frontend();
    for (token, waits) in [("first_token", &frontend.first_token), ("last_token", &frontend.last_token)] {
        if waits.count() > 0 {
            families.put_histogram(&metric::FRONTEND_WAIT, [token], Histogram::of_durations(waits));
        }
    }
}

/// Adds the inter-token latency, the time between tokens of one request, as the engine sent them and as clients received them.
fn add_inter_token_histograms(families: &mut Families, ledger: &Ledger) {
    if ledger.itl_sent().count() > 0 {
        families.put_histogram(&metric::ITL_SENT, [], Histogram::of_durations(ledger.itl_sent()));
        families.put_histogram(&metric::ITL_SENT_BY_TOKEN, [], Histogram::of_durations(ledger.itl_sent_by_token()));
    }
    if ledger.observes_deliveries() {
        families.put_histogram(&metric::ITL_DELIVERED, [], Histogram::of_durations(ledger.itl_delivered()));
        let by_token = Histogram::of_durations(ledger.itl_delivered_by_token());
        families.put_histogram(&metric::ITL_DELIVERED_BY_TOKEN, [], by_token);
    }
}

/// Adds the numbers of responses by the way in which they ended. Until one ends, adds only rejections.
fn add_response_counts_by_end(families: &mut Families, ledger: &Ledger) {
    let answers = &ledger.totals().answers;
    for (status, responses) in &answers.rejected {
        families.put_int(&metric::ANSWERS_REJECTED, [status.to_string().as_str()], *responses);
    }
    // Until a response ends, it is unknown whether responses are observed.
    if answers.seen == 0 {
        return;
    }
    let ended_early = answers.client_left + answers.server_left + answers.failed;
    families.put_int(&metric::ANSWERS, ["whole"], answers.seen.saturating_sub(ended_early));
    families.put_int(&metric::ANSWERS, ["client_left"], answers.client_left);
    families.put_int(&metric::ANSWERS, ["server_left"], answers.server_left);
    families.put_int(&metric::ANSWERS, ["failed"], answers.failed);
    families.put_int(&metric::ANSWERS_SHORT_WRITES, [], answers.short_writes);
    families.put_int(&metric::ANSWERS_UNCOUNTED, [], answers.uncounted);
    // Of responses whose chunks were not observed: fewer tokens than their last events claim.
    families.put_int(&metric::ANSWERS_TOKENS_LOST, [], answers.judged_alone_tokens_lost);
}

/// Adds the share of each leg (one part of the path) in the time of first tokens and of chunks, over the run. A leg that none of them
/// passed has no share.
fn add_path_shares(families: &mut Families, attribution: &Attribution<'_>) {
    // Index of the time over the run. The other one is that of the last ten seconds.
    const OVER_RUN: usize = 0;
    for leg in attribution.legs.iter().take(MAX_HOPS) {
        for (item, time) in [("first_token", leg.first_token[OVER_RUN]), ("chunk", leg.chunk[OVER_RUN])] {
            if time.sum.count > 0 {
                families.put_value(&metric::PATH_SHARE, [leg.name, leg.kind.as_str(), item], Value::Float(time.share));
            }
        }
    }
}

/// Adds the CPU time of threads by role, up to the limit of roles.
fn add_cpu_time_by_role(families: &mut Families, ledger: &Ledger) {
    let mut roles: BTreeMap<&str, Vec<&Thread>> = BTreeMap::new();
    let mut left_out = 0;
    let sampled = ledger.threads().iter().filter(|thread| thread.total().is_some());
    for thread in sampled {
        if roles.len() < MAX_ROLES || roles.contains_key(&*thread.role) {
            roles.entry(&thread.role).or_default().push(thread);
        } else {
            // A role is a label value, whose number must be bounded.
            left_out += 1;
        }
    }
    families.put_left_out("role", left_out);
    for (role, threads) in roles {
        add_cpu_time_by_part(families, role, &threads);
        let receivers: Vec<&Thread> = threads.into_iter().filter(|thread| thread.is_receiver()).collect();
        add_cpu_shares_of_busiest_receiver(families, role, &receivers, ledger.recent_window());
        add_time_outside_polls(families, role, &receivers);
    }
}

/// Adds how the threads of a role spent their time, by the part of the process that they belong to.
fn add_cpu_time_by_part(families: &mut Families, role: &str, threads: &[&Thread]) {
    for part in [ThreadPart::Main, ThreadPart::Io, ThreadPart::Other] {
        let threads_of_part = threads.iter().filter(|thread| thread.part == Some(part));
        // A part without threads has no series.
        let Some(spent) = threads_of_part.filter_map(|thread| thread.total()).reduce(TimeUse::plus) else {
            continue;
        };
        families.put_ns_as_seconds(&metric::CPU_OBSERVED, [role, part.as_str()], spent.interval_ns);
        for (state, ns) in ns_by_cpu_state(&spent) {
            families.put_ns_as_seconds(&metric::CPU_STATE, [role, part.as_str(), state], ns);
        }
    }
}

/// Adds the time that the receivers of a role were outside their event loops' polls, if any poll was observed.
fn add_time_outside_polls(families: &mut Families, role: &str, receivers: &[&Thread]) {
    let polls: Vec<_> = receivers.iter().filter_map(|thread| thread.poll).collect();
    if polls.is_empty() {
        return;
    }
    let observed_ns: u64 = polls.iter().map(|poll| poll.interval_ns).sum();
    let polled_ns: u64 = polls.iter().map(|poll| poll.polled_ns).sum();
    families.put_ns_as_seconds(&metric::POLL_OBSERVED, [role], observed_ns);
    families.put_ns_as_seconds(&metric::POLL_AWAY, [role], observed_ns.saturating_sub(polled_ns));
}

/// Adds how the busiest receiver of a role spent the `window`, the last seconds that current figures cover.
fn add_cpu_shares_of_busiest_receiver(
    families: &mut Families,
    role: &str,
    receivers: &[&Thread],
    window: RecentWindow,
) {
    // A thread without a sample in the window has no share.
    let known_use = receivers.iter().filter_map(|thread| thread.use_between(window.from, window.to));
    let recent_use = known_use.filter(|spent| spent.interval_ns > 0);
    let busiest = recent_use.max_by(|left, right| left.share(left.on_ns).total_cmp(&right.share(right.on_ns)));
    if let Some(spent) = busiest {
        for (state, ns) in ns_by_cpu_state(&spent) {
            if let Some(ns) = ns {
                families.put_value(&metric::CONSUMER_CPU, [role, state], Value::Float(spent.share(ns)));
            }
        }
    }
}

/// Adds two metrics: the number of findings of each kind, and the number of active findings of each kind and severity. `pair_findings` are
/// those of a pair of servers, one for prefill and one for decode.
fn add_finding_counts(families: &mut Families, findings: &Findings, pair_findings: &[FindingLine]) {
    let all = findings.sorted_worst_first();
    for detector in DETECTORS {
        let kind = detector.kind;
        let of_kind = all.iter().filter(|finding| finding.kind == kind);
        families.put_int(&metric::FINDINGS, [kind], of_kind.count() as u64);
    }
    let mut active: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for finding in all {
        // Adds 0 or 1. An ended finding keeps its series, with 0.
        *active.entry((finding.kind, finding.verdict.severity.as_str())).or_default() += u64::from(finding.active);
    }
    // Pair findings are about the newest requests, so their number may fall. The first metric is a counter, which must not fall.
    for finding in pair_findings {
        let is_active = finding.ended_at_ns.is_none();
        *active.entry((&finding.kind, finding.severity.as_str())).or_default() += u64::from(is_active);
    }
    for ((kind, severity), count) in active {
        families.put_int(&metric::FINDINGS_ACTIVE, [kind, severity], count);
    }
}

/// Adds the metric of each kind of fault: 1 if the run could have shown such a fault, and else 0.
fn add_judged_faults(families: &mut Families, ledger: &Ledger) {
    for judgement in judgements(ledger) {
        families.put_int(&metric::FAULTS_JUDGED, [judgement.fault.label()], u64::from(judgement.judged));
    }
}

/// Adds tokengap's own missed observations, dropped data and costs.
fn add_own_metrics(families: &mut Families, ledger: &Ledger, input: &Input<'_>) {
    let totals = ledger.totals();
    families.put_int(&metric::SELF_EVENTS, [], totals.events);
    for (cause, lost) in totals.missed.by_cause() {
        families.put_int(&metric::SELF_EVENTS_LOST, [cause], lost);
    }
    families.put_int(&metric::SELF_FRAMES_UNANNOUNCED, [], totals.missed.unannounced);
    families.put_int(&metric::SELF_FRAMES_UNDECODED, [], totals.undecoded);
    for limit in ledger.limits() {
        families.put_int(&metric::SELF_LIMIT_REACHED, [limit.name], limit.times);
    }
    families.put_int(&metric::SELF_DEGRADED, [], input.report.degraded.len() as u64);
    families.put_ns_as_seconds(&metric::SELF_CPU, [], input.report.cpu_ns);
    families.put_int(&metric::SELF_MEMORY, [], input.report.rss_bytes);
    if let Some(pushed) = input.pushed {
        add_push_results(families, pushed);
    }
    if let Some(endpoint) = input.endpoint {
        add_endpoint_use(families, endpoint);
    }
}

/// Adds the results of pushing spans and metric points to a collector.
fn add_push_results(families: &mut Families, pushed: Pushed) {
    for (signal, items) in [("spans", pushed.spans), ("points", pushed.points)] {
        families.put_int(&metric::SELF_PUSHED, [signal], items.accepted);
        families.put_int(&metric::SELF_PUSH_DROPPED, [signal], items.dropped);
    }
}

/// Adds the use of the endpoint: current and dropped clients of its streams, by path, and refused requests, by reason.
fn add_endpoint_use(families: &mut Families, endpoint: EndpointUse) {
    for (path, clients) in endpoint.clients {
        families.put_int(&metric::SELF_STREAM_CLIENTS, [path], clients);
    }
    for (path, dropped) in endpoint.dropped {
        families.put_int(&metric::SELF_STREAM_DROPPED, [path], dropped);
    }
    for (reason, refused) in endpoint.refused {
        families.put_int(&metric::SELF_REFUSED, [reason], refused);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trace::detect::Severity;
    use trace::event::{Capabilities, Chunk, CpuSample, Event, Frame, Received, What};
    use trace::id::{FrameId, HopId, ThreadId};
    use trace::{Config, MonoNs};

    use super::*;

    const MS: u64 = 1_000_000;

    fn metrics(analysis: &Analysis) -> Vec<Family> {
        metrics_with(analysis, &[])
    }

    fn metrics_with(analysis: &Analysis, pair_findings: &[FindingLine]) -> Vec<Family> {
        let report = &ReportInput::for_source("tap");
        collect(analysis, &Input { report, version: "1", pushed: None, endpoint: None, pair_findings })
    }

    fn value<'a>(families: &'a [Family], name: &str, labels: &[&str]) -> Option<&'a Value> {
        let family = families.iter().find(|f| f.definition.name == name)?;
        let point = family.points.iter().find(|p| p.labels == labels)?;
        Some(&point.value)
    }

    fn hop(analysis: &mut Analysis, id: u16, name: &str, received: bool) {
        let capabilities = Capabilities { sent: true, received, ..Capabilities::default() };
        let announced = trace::event::Hop {
            origin: id == 0,
            last: id == 0,
            ..trace::event::Hop::new(HopId(id), name, capabilities)
        };
        analysis.apply(&Event::new(MonoNs(0), What::Hop(announced)));
    }

    fn send(analysis: &mut Analysis, id: FrameId, rid: &str) {
        let chunk = Chunk::counted(rid, 1, 1);
        analysis.apply(&Event::new(MonoNs(MS * (1 + id.seq)), What::Sent(Frame::token_ids(id, 700, &[chunk]))));
    }

    fn frame(hop: u16, seq: u64) -> FrameId {
        FrameId::new(HopId(hop), 0, seq)
    }

    #[test]
    fn backlog_is_exported_in_frames_chunks_and_bytes_and_unobserved_values_are_absent() {
        let (mut seen, mut unobserved) = (Analysis::new(Config::default()), Analysis::new(Config::default()));
        for (analysis, received) in [(&mut seen, true), (&mut unobserved, false)] {
            hop(analysis, 0, "scheduler->tokenizer", received);
            for seq in 0..3 {
                send(analysis, frame(0, seq), &format!("rid-{seq}"));
            }
        }
        let received = Received::in_wakeup(frame(0, 0), 1);
        seen.apply(&Event::new(MonoNs(42 * MS), What::Received(received)));
        let (exported, name) = (metrics(&seen), ["scheduler->tokenizer"]);
        assert_eq!(value(&exported, "tokengap.hop.backlog.frames", &name), Some(&Value::Int(2)));
        assert_eq!(value(&exported, "tokengap.hop.backlog.chunks", &name), Some(&Value::Int(2)));
        assert_eq!(value(&exported, "tokengap.hop.backlog.size", &name), Some(&Value::Int(1_400)));
        assert_eq!(value(&exported, "tokengap.hop.oldest_waiting", &name), Some(&Value::Float(0.04)));
        let Some(Value::Histogram(gap)) = value(&exported, "tokengap.gap", &[]) else {
            panic!("a gap was seen");
        };
        assert_eq!((gap.count, (gap.sum * 1e3).round()), (1, 41.0));
        let exported = metrics(&unobserved);
        for name in ["tokengap.gap", "tokengap.tokens.received", "tokengap.hop.backlog.frames", "tokengap.cpu.time"] {
            assert!(exported.iter().all(|f| f.definition.name != name), "{name}");
        }
        assert_eq!(value(&exported, "tokengap.tokens.sent", &[]), Some(&Value::Int(3)));
        assert_eq!(value(&exported, "tokengap.chunks.dropped", &[]), None);
    }

    #[test]
    fn findings_of_a_pair_are_among_the_active_ones_and_in_no_total() {
        let lasting = FindingLine::of_kind("decode-queue", Severity::Warning);
        let ended = FindingLine { ended_at_ns: Some(1), ..FindingLine::of_kind("transfer-slow", Severity::Critical) };
        let exported = metrics_with(&Analysis::new(Config::default()), &[lasting, ended]);
        let active = |labels: [&str; 2]| value(&exported, "tokengap.active_findings", &labels);
        assert_eq!(active(["decode-queue", "warning"]), Some(&Value::Int(1)));
        assert_eq!(active(["transfer-slow", "critical"]), Some(&Value::Int(0)));
        assert_eq!(value(&exported, "tokengap.findings", &["decode-queue"]), None);
    }

    #[test]
    fn a_run_without_an_observation_judges_no_kind_of_fault() {
        let exported = metrics(&Analysis::new(Config::default()));
        for fault in crate::report::FaultKind::ALL {
            assert_eq!(value(&exported, "tokengap.faults.judged", &[fault.label()]), Some(&Value::Int(0)), "{fault:?}");
        }
    }

    #[test]
    fn labels_over_the_limit_create_no_series_and_are_counted() {
        let mut analysis = Analysis::new(Config::default());
        for n in 0..200_u16 {
            hop(&mut analysis, n, &format!("a->b{n}"), true);
            send(&mut analysis, frame(n, 0), &format!("cmpl-7f3a-{n}"));
        }
        for n in 0..40 {
            let role = format!("role-{n}");
            let sample = CpuSample::new(ThreadId { pid: 1, tid: n }, &role, 100 * MS, 40 * MS);
            analysis.apply(&Event::new(MonoNs(300 * MS), What::Cpu(sample)));
        }
        let exported = metrics(&analysis);
        let labels = |place: &str| -> BTreeSet<&str> {
            let families = exported.iter().filter_map(|f| {
                let at = f.definition.labels.iter().position(|l| *l == place)?;
                Some((f, at))
            });
            families.flat_map(|(f, at)| f.points.iter().map(move |p| p.labels[at].as_str())).collect()
        };
        assert_eq!((labels("hop").len(), labels("role").len()), (MAX_HOPS, MAX_ROLES));
        let left_out = |label| value(&exported, "tokengap.self.labels_left_out", &[label]);
        assert_eq!(left_out("hop"), Some(&Value::Int(200 - MAX_HOPS as u64)));
        assert_eq!(left_out("role"), Some(&Value::Int(40 - MAX_ROLES as u64)));
        let state = |state| value(&exported, "tokengap.cpu.time", &["role-0", "main", state]);
        assert_eq!((state("on_cpu"), state("run_wait")), (Some(&Value::Float(0.04)), None));
        let exported = exported.iter().flat_map(|f| f.points.iter().flat_map(|p| &p.labels));
        assert!(exported.into_iter().all(|label| !label.starts_with("cmpl-7f3a")), "no label contains a rid");
    }
}
