//! Comparisons of runs with known differences: the false-positive rate of equal runs, and detection of a real change.

use outputs::diff::{ChangeVerdict, ComparedMeasure, Diff, DiffOptions, NamedRun, ProblemState};
use outputs::report::{FindingLine, Gap, LegLine, LossList, Report, Series, SpreadSeries};
use serde_json::json;
use trace::detect::attribution::LegKind;
use trace::engine::{Mode, Waiter};
use trace::event::{Capabilities, Event, Hop, What};
use trace::stats::Spread;
use trace::{Analysis, Config, HopId, MonoNs, ReportInput};

const SECOND: u64 = 1_000_000_000;
const SLOTS: usize = 30;

/// Seeded pseudo-random numbers.
struct Noise(u64);

impl Noise {
    /// Next number in [0, 1).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1_u64 << 31) as f64
    }
}

fn known(values: Vec<u64>) -> Vec<Option<u64>> {
    values.into_iter().map(Some).collect()
}

/// A run with thousands of tokens per second and first-token gaps of tens of ms, both multiplied by `factor`, and a varying load.
fn run(seed: u64, factor: f64, mode: Mode) -> Report {
    let mut analysis = Analysis::new(Config::default());
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    analysis.apply(&Event::new(MonoNs(SECOND), What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities))));
    analysis.tick(MonoNs(2 * SECOND));
    let mut report = Report::of(&analysis, &ReportInput::for_source("attach"));
    report.source.mode = Some(mode);
    report.window_ns[1] = SLOTS as u64 * SECOND;
    let (mut noise, mut load) = (Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), 0.0);
    let mut column = |scale: f64, wander: f64| -> Vec<u64> {
        let value = |_| {
            load = 0.5 * load + noise.next() - 0.5;
            (scale * (1.0 + 0.1 * noise.next() + wander * load)).max(0.0) as u64
        };
        (0..SLOTS).map(value).collect()
    };
    let sent = column(8_000.0 * factor, 0.2);
    let gap = SpreadSeries {
        count: vec![Some(10); SLOTS],
        p50: known(column(2e7 * factor, 0.4)),
        p99: known(column(2e8 * factor, 0.4)),
        max: known(column(3e8 * factor, 0.4)),
    };
    let series = report.series.as_mut().expect("the run has slots");
    *series = Series {
        to_ns: SLOTS as u64 * SECOND,
        gap_ns: Some(gap.clone()),
        events_missed: vec![0; SLOTS],
        ..series.clone()
    };
    series.requests.begun = vec![Some(10); SLOTS];
    series.requests.live = known(column(60.0, 0.3));
    series.chunks.sent = known(sent.clone());
    series.tokens.received = Some(known(sent.clone()));
    series.tokens.sent = known(sent);
    let hop = &mut series.hops[0];
    hop.frames_sent = Some(vec![Some(100); SLOTS]);
    hop.frames_received = Some(vec![Some(100); SLOTS]);
    hop.chunks = known(column(6_000.0, 0.2));
    hop.backlog_max_frames = Some(known(column(40.0, 1.0)));
    hop.queue_wait_ns = Some(gap);
    report
}

/// The path of a run with these legs, each with the mean time of a chunk in milliseconds.
fn path_of_legs(legs: &[(&str, LegKind, u64)]) -> Vec<LegLine> {
    let whole_ms: u64 = legs.iter().map(|leg| leg.2).sum();
    let mut path = Vec::new();
    for (name, kind, ms) in legs {
        path.push(LegLine {
            name: (*name).to_owned(),
            kind: *kind,
            ns: None,
            mean_ns: ms * 1_000_000,
            share: *ms as f64 / whole_ms as f64,
            recent_share: None,
            first_token_mean_ns: None,
            first_token_share: None,
            recent_first_token_share: None,
            busy: None,
            thread: None,
            on_cpu: None,
            run_wait: None,
            worker: None,
        });
    }
    path
}

/// A run of which only the legs are known.
fn run_with_legs(legs: &[(&str, LegKind, u64)]) -> Report {
    let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach"));
    report.path = path_of_legs(legs);
    report
}

/// The measure with this name.
fn measure<'d>(diff: &'d Diff, name: &str) -> &'d ComparedMeasure {
    diff.measures.iter().find(|m| m.name == name).expect("a line")
}

fn compare(a: &Report, b: &Report) -> Diff {
    Diff::of_runs(
        NamedRun { name: "before", report: a },
        NamedRun { name: "after", report: b },
        &DiffOptions::default(),
    )
}

#[test]
fn equal_runs_rarely_differ() {
    let pairs = 200;
    let alarms: Vec<Diff> = (0..pairs)
        .map(|n| compare(&run(2 * n + 1, 1.0, Mode::Cumulative), &run(2 * n + 2, 1.0, Mode::Cumulative)))
        .filter(|diff| diff.measures.iter().any(|m| m.verdict.is_change()))
        .collect();
    assert!(alarms.len() <= 6, "{} of {pairs}: {}", alarms.len(), alarms[0].to_text());
}

#[test]
fn a_change_is_detected_in_both_directions() {
    for seed in 0..20 {
        let (a, b) = (run(seed, 1.0, Mode::Cumulative), run(seed + 100, 2.0, Mode::Incremental));
        let (forward, reverse) = (compare(&a, &b), compare(&b, &a));
        assert_eq!(measure(&forward, "tokens sent").verdict, ChangeVerdict::Better, "{}", forward.to_text());
        assert_eq!(measure(&forward, "gap, p99").verdict, ChangeVerdict::Worse, "{}", forward.to_text());
        assert_eq!(measure(&reverse, "tokens sent").verdict, ChangeVerdict::Worse);
        assert!(forward.is_worse() && forward.patterns[0].title == "incremental output was enabled");
        assert_eq!(reverse.patterns[0].title, "incremental output was disabled");
    }
}

#[test]
fn a_missing_comparison_has_a_reason() {
    let a = run(1, 1.0, Mode::Cumulative);
    let mut b = run(2, 1.0, Mode::Cumulative);
    let series = b.series.as_mut().expect("the run has slots");
    series.gap_ns = None;
    series.requests.begun[6..].fill(Some(0));
    let diff = compare(&a, &b);
    let gap = measure(&diff, "gap, p99");
    assert_eq!(gap.verdict, ChangeVerdict::NotComparable);
    assert_eq!(gap.note.as_deref(), Some("the second run does not observe it"));
    let sent = &diff.measures[0];
    assert_eq!(sent.verdict, ChangeVerdict::NotEnoughData);
    assert!(
        sent.note.as_deref().is_some_and(|note| note.contains("only 4 slots under load, 15 are needed")),
        "{sent:?}"
    );
    b.series = None;
    let diff = compare(&a, &b);
    assert!(diff.measures.is_empty() && diff.verdict.starts_with("NOT ENOUGH DATA"), "{}", diff.to_text());
    assert_eq!([&diff.a.verdict, &diff.b.verdict], [&a.verdict, &b.verdict]);
    assert!(diff.to_text().contains("no time slots: no event was observed"), "{}", diff.to_text());
}

#[test]
fn new_confirmed_losses_need_no_statistics() {
    let (mut a, mut b) = (run(1, 1.0, Mode::Cumulative), run(1, 1.0, Mode::Cumulative));
    for (report, dropped) in [(&mut a, 0), (&mut b, 1)] {
        report.chunks.dropped_confirmed = Some(dropped);
        let mut column = vec![0; SLOTS];
        column[9] = dropped;
        report.series.as_mut().expect("slots").chunks.dropped_confirmed = Some(known(column));
    }
    let diff = compare(&a, &b);
    let drops = diff.measures.last().expect("a line");
    assert_eq!(drops.name.as_str(), "chunks dropped, confirmed");
    assert_eq!(drops.verdict, ChangeVerdict::Worse);
}

/// Reports of an engine that drops chunks, and of one that merges them.
fn lossy_and_merging(slots: usize) -> (Report, Report) {
    let (mut a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
    for (report, dropped, merged) in [(&mut a, 700, 0), (&mut b, 0, 2_400)] {
        let sent = (SLOTS as u64) * 8_000;
        report.chunks.sent = sent;
        report.chunks.dropped_confirmed = Some(dropped * SLOTS as u64);
        report.chunks.tokens_lost = Some(dropped * SLOTS as u64);
        report.chunks.merged = Some(merged * SLOTS as u64);
        let series = report.series.as_mut().expect("slots");
        series.chunks.dropped_confirmed = Some(vec![Some(dropped); SLOTS]);
        series.chunks.merged = Some(vec![Some(merged); SLOTS]);
        series.requests.begun[slots + 2..].fill(Some(0));
    }
    (a, b)
}

#[test]
fn fixed_losses_outweigh_newly_merged_chunks() {
    let (a, b) = lossy_and_merging(SLOTS - 2);
    let (forward, reverse) = (compare(&a, &b), compare(&b, &a));
    assert!(
        forward.verdict.starts_with("FIXED: lost tokens 21,000 -> 0; REGRESSED: merged chunks 0.0 % -> 30.0 %"),
        "{}",
        forward.verdict
    );
    assert_eq!(measure(&forward, "chunks merged").b, Some(0.3), "the headline's share, of the whole run");
    assert!(!forward.is_worse() && reverse.is_worse());
    assert!(reverse.verdict.starts_with("REGRESSED: lost tokens 0 -> 21,000"), "{}", reverse.verdict);
}

#[test]
fn a_share_of_chunks_is_that_of_the_whole_run_in_every_comparison() {
    let (mut a, b) = lossy_and_merging(7);
    a.chunks.dropped_predicted = a.chunks.dropped_confirmed;
    let chunks = &mut a.series.as_mut().expect("slots").chunks;
    chunks.dropped_confirmed.as_mut().expect("drops")[3] = Some(5_000);
    chunks.dropped_predicted.clone_from(&chunks.dropped_confirmed);
    for diff in [compare(&a, &a), compare(&a, &b)] {
        for name in ["chunks dropped, confirmed", "chunks dropped, predicted"] {
            assert_eq!(measure(&diff, name).a, Some(700.0 / 8_000.0), "{name}: {}", diff.to_text());
        }
    }
}

fn finding(kind: &str, severity: &str, summary: &str) -> FindingLine {
    let line = json!({
        "kind": kind, "severity": severity, "rid": "", "hop": null, "at_ns": 0, "summary": summary, "evidence": {}, "advice": null,
    });
    serde_json::from_value(line).expect("a finding")
}

/// Sets the inter-token latency at clients.
fn set_latency(report: &mut Report, p99: u64) {
    report.itl_ns.delivered_by_token =
        Some(Spread { count: 5_000, p50: 40_000_000, p90: 50_000_000, p99: p99 * 1_000_000, max: p99 * 1_000_000 });
}

#[test]
fn lost_tokens_that_remain_or_are_not_observed_any_more_are_in_the_first_line() {
    let (mut a, _) = lossy_and_merging(7);
    a.findings = vec![finding("dropped-chunks", "critical", "21,000 chunks never delivered")];
    let mut b = a.clone();
    b.chunks.tokens_lost = Some(25_000);
    set_latency(&mut a, 400);
    set_latency(&mut b, 60);
    let (forward, reverse) = (compare(&a, &b), compare(&b, &a));
    let expected =
        "STILL CRITICAL: lost tokens 21,000 -> 25,000; IMPROVED: inter-token latency p99 400.0 ms -> 60.0 ms";
    assert_eq!(forward.verdict, expected);
    assert!(
        reverse.verdict.starts_with("STILL CRITICAL: lost tokens 25,000 -> 21,000; REGRESSED"),
        "{}",
        reverse.verdict
    );
    assert!(!forward.is_worse() && reverse.is_worse());
    b.findings.clear();
    b.chunks.dropped_confirmed = None;
    let unobserved = compare(&a, &b).verdict;
    let expected = "NOT COMPARABLE CRITICAL: dropped-chunks: 21,000 chunks never delivered (second run: deliveries are not \
                    observed); IMPROVED: inter-token latency";
    assert!(unobserved.starts_with(expected), "{unobserved}");
}

#[test]
fn the_first_line_has_the_size_of_a_finding_that_is_gone() {
    let (mut a, b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
    let summary = "chunks of 16 requests went to more than one receiver on a->b: b decodes them wrongly";
    a.findings = vec![finding("rid-changed-worker", "warning", summary)];
    let expected = "GONE WARNING: rid-changed-worker: chunks of 16 requests went to more than one receiver on a->b";
    assert_eq!(compare(&a, &b).verdict, expected);
}

#[test]
fn each_change_has_its_own_cause() {
    let (mut a, mut b) = lossy_and_merging(SLOTS - 2);
    (a.source.waiter, b.source.waiter) = (Some(Waiter::KeepsLast), Some(Waiter::Merges));
    (a.source.engine_version, b.source.engine_version) = (Some("0.5.9".into()), Some("0.5.13".into()));
    let only_merged = compare(&a, &b).verdict;
    assert!(only_merged.ends_with("; cause: queue handling changed: 0.5.9 to 0.5.13"), "{only_merged}");
    set_latency(&mut a, 60);
    set_latency(&mut b, 400);
    a.path = path_of_legs(&[("scheduler->tokenizer", LegKind::Wait, 5)]);
    b.path = path_of_legs(&[("router->detokenizer", LegKind::Wait, 1_400), ("detokenizer", LegKind::Inside, 5)]);
    "router->detokenizer".clone_into(&mut b.hops[0].name);
    b.hops[0].busy = Some(0.92);
    let verdict = compare(&a, &b).verdict;
    let causes = "; cause (lost tokens, merged chunks): queue handling changed: 0.5.9 to 0.5.13; cause (inter-token latency): the \
                  detokenizer, new on the path, needs 5.0 ms a chunk and is busy 92 %";
    assert!(verdict.ends_with(causes), "{verdict}");
}

#[test]
fn merging_in_every_slot_of_a_short_run_is_a_regression() {
    let (a, b) = lossy_and_merging(7);
    let diff = compare(&a, &b);
    assert_eq!(measure(&diff, "chunks merged").verdict, ChangeVerdict::Worse, "{}", diff.to_text());
}

#[test]
fn a_large_difference_in_a_short_run_is_not_within_noise() {
    let (mut a, mut b) = lossy_and_merging(7);
    for (report, merged) in [(&mut a, 0), (&mut b, 4_000)] {
        let mut column = vec![merged; SLOTS];
        (column[2], column[4]) = (0, 0);
        report.series.as_mut().expect("slots").chunks.merged = Some(known(column));
    }
    let diff = compare(&a, &b);
    assert_ne!(measure(&diff, "chunks merged").verdict, ChangeVerdict::WithinNoise, "{}", diff.to_text());
}

#[test]
fn a_growing_wait_in_a_short_run_is_not_called_unchanged() {
    let (mut a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
    for (report, growth) in [(&mut a, 0), (&mut b, SECOND)] {
        let series = report.series.as_mut().expect("slots");
        series.requests.begun[10..].fill(Some(0));
        let p99 = (0..SLOTS as u64).map(|slot| Some(5_000_000 + slot * growth)).collect();
        series.gap_ns.as_mut().expect("gaps").p99 = p99;
    }
    let diff = compare(&a, &b);
    assert_eq!(measure(&diff, "gap, p99").verdict, ChangeVerdict::NotEnoughData, "{}", diff.to_text());
    assert!(diff.verdict.starts_with("NOT ENOUGH DATA: "), "{}", diff.verdict);
    // All requests and frames decide where they are known, and no row beside them lacks data.
    for (report, p99) in [(&mut a, 2_000_000), (&mut b, 3 * SECOND)] {
        report.gap_ns = Some(Gap {
            count: 5_000,
            p50: Some(1_000_000),
            p90: Some(p99),
            p99: Some(p99),
            max: Some(p99),
            max_rid: String::new(),
            classes: Vec::new(),
        });
        report.hops[0].queue_wait_ns = Some(Spread { count: 5_000, p50: 1_000_000, p90: p99, p99, max: p99 });
    }
    let diff = compare(&a, &b);
    for name in ["gap of all requests, p99", "queue wait of all frames, p99 on scheduler->tokenizer"] {
        assert_eq!(measure(&diff, name).verdict, ChangeVerdict::Worse, "{}", diff.to_text());
    }
    let undecided = diff.measures.iter().filter(|measure| measure.verdict == ChangeVerdict::NotEnoughData);
    assert!(undecided.clone().all(|measure| !measure.name.contains("gap") && !measure.name.contains("wait")));
    assert!(diff.verdict.starts_with("REGRESSED: first-token gap p99 2.0 ms -> 3.000 s"), "{}", diff.verdict);
}

#[test]
fn traffic_that_follows_the_load_is_neither_better_nor_worse() {
    let (a, mut b) = (run(1, 1.0, Mode::Cumulative), run(2, 2.0, Mode::Cumulative));
    b.series.as_mut().expect("slots").gap_ns.clone_from(&a.series.as_ref().expect("slots").gap_ns);
    assert_eq!(measure(&compare(&a, &b), "tokens sent").verdict, ChangeVerdict::Better, "as many live requests");
    for live in b.series.as_mut().expect("slots").requests.live.iter_mut().flatten() {
        *live *= 2;
    }
    for (before, after) in [(&a, &b), (&b, &a)] {
        assert_eq!(measure(&compare(before, after), "tokens sent").verdict, ChangeVerdict::Changed);
    }
}

/// A finding that the other run could not show is named first, and proves no regression.
#[test]
fn findings_come_first_and_the_sentence_is_short() {
    let (a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
    let summary = "the scheduler continued 28 requests whose client had disconnected: for up to 9.000 s, 23,759 tokens generated \
                   for nobody; 5b92f00d for 9.000 s, 800 tokens; 5b92f00e for 8.000 s, 700 tokens";
    b.findings = vec![finding("abandoned-requests", "warning", summary)];
    let [forward, reverse] = [compare(&a, &b), compare(&b, &a)];
    let expected = "NEW WARNING: abandoned-requests: the scheduler continued 28 requests whose client had disconnected: for up to \
                    9.000 s, 23,759 tokens generated for nobody (first run: ";
    assert!(forward.verdict.starts_with(expected), "{}", forward.verdict);
    assert!(reverse.verdict.starts_with("NOT COMPARABLE WARNING: abandoned-requests: "), "{}", reverse.verdict);
    assert!(!forward.is_worse() && !reverse.is_worse());
    let kinds = ["undecoded", "limit-reached", "wire-arithmetic", "mode-mix"];
    b.findings = kinds.map(|kind| finding(kind, "warning", "3 of 4")).to_vec();
    let diff = compare(&a, &b);
    assert_eq!(diff.verdict, "NEW WARNING: undecoded: 3 of 4, limit-reached: 3 of 4; and 2 more");
    let others = "NEW WARNING: wire-arithmetic: 3 of 4, mode-mix: 3 of 4";
    assert!(diff.to_text().contains(&format!("more: {others}")), "{}", diff.to_text());
    assert!(diff.to_markdown().contains("- more: NEW WARNING: wire"), "{}", diff.to_markdown());
    let long_name = "queue wait, p99 on detokenizer-router->detokenizer of another one";
    let mut named = diff.clone();
    long_name.clone_into(&mut named.measures[0].name);
    assert!(named.to_text().contains(&format!("{long_name}\n")), "{}", named.to_text());
}

#[test]
fn losses_of_runs_of_other_lengths_are_compared_as_shares() {
    let (mut a, mut b) = lossy_and_merging(7);
    (a.tokens.sent, b.tokens.sent) = (100_000, 50_000);
    b.chunks.tokens_lost = Some(5_000);
    b.chunks.dropped_confirmed = Some(5_000);
    let lost = &compare(&a, &b).outcomes[0];
    assert_eq!(lost.numbers, "21.0 % -> 10.0 % (21,000 -> 5,000)");
    a.findings = vec![finding("dropped-chunks", "critical", "21,000 chunks never delivered")];
    let same = compare(&a, &a).verdict;
    assert!(same.starts_with("STILL CRITICAL: lost tokens 21,000 -> 21,000"), "{same}");
}

#[test]
fn all_tokens_decide_on_losses_where_slots_are_too_few() {
    let (mut a, _) = lossy_and_merging(3);
    a.tokens.sent = 240_000;
    a.losses.confirmed = Some(LossList { requests: 9, lines: Vec::new() });
    let mut b = a.clone();
    b.chunks.tokens_lost = Some(42_000);
    let lost = "tokens lost, of all sent";
    let undecided = compare(&a, &b);
    assert_eq!(undecided.outcomes[0].state, ProblemState::NotEnoughData, "nine requests: {}", undecided.to_text());
    assert_eq!(measure(&undecided, lost).verdict, ChangeVerdict::NotEnoughData);
    b.losses.confirmed = Some(LossList { requests: 10, lines: Vec::new() });
    let (forward, reverse) = (compare(&a, &b), compare(&b, &a));
    assert!(forward.verdict.starts_with("REGRESSED: lost tokens 21,000 -> 42,000"), "{}", forward.verdict);
    assert!(reverse.verdict.starts_with("IMPROVED: lost tokens 42,000 -> 21,000"), "{}", reverse.verdict);
    assert_eq!(measure(&forward, lost).note.as_deref(), Some("of all 240,000 and 240,000 tokens: at least twofold"));
    a.losses.confirmed.clone_from(&b.losses.confirmed);
    let equal = compare(&a, &a);
    assert_eq!(equal.outcomes[0].state, ProblemState::Unchanged, "{}", equal.to_text());
    // None of both runs was merged.
    let merged = equal.outcomes.iter().find(|outcome| outcome.name == "merged chunks").expect("an outcome");
    assert_eq!(merged.state, ProblemState::Unchanged);
}

#[test]
fn measures_of_slots_have_a_dash_in_short_runs() {
    let (a, b) = lossy_and_merging(3);
    let diff = compare(&a, &b);
    assert_eq!(measure(&diff, "tokens sent").verdict, ChangeVerdict::NotEnoughData, "the JSON still says it");
    let text = diff.to_text();
    assert!(text.lines().any(|line| line.starts_with("tokens sent ") && line.ends_with("  -")), "{text}");
    assert!(text.lines().all(|line| !line.ends_with("  not enough data")), "{text}");
    let markdown = diff.to_markdown();
    assert!(markdown.contains("| - |\n") && !markdown.contains("| not enough data |"), "{markdown}");
}

#[test]
fn a_single_slot_does_not_make_a_small_shift_large() {
    let (mut a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
    for (report, tokens) in [(&mut a, 8_000), (&mut b, 8_200)] {
        let sent = &mut report.series.as_mut().expect("slots").tokens.sent;
        *sent = (0..SLOTS as u64).map(|slot| Some(tokens + slot * 7 % 10)).collect();
    }
    b.series.as_mut().expect("slots").tokens.sent[9] = Some(80_000);
    let diff = compare(&a, &b);
    let sent = &diff.measures[0];
    assert!(sent.p.is_some_and(|p| p < 1e-6) && sent.change.is_some_and(|change| change > 0.2), "{sent:?}");
    assert_eq!(sent.verdict, ChangeVerdict::WithinNoise);
}

#[test]
fn inter_token_latency_is_compared_above_a_thousand_tokens() {
    let spread = |count, p99| Some(Spread { count, p50: 40_000_000, p90: 50_000_000, p99, max: p99 });
    for (tokens, verdict) in [(999, ChangeVerdict::NotEnoughData), (1_000, ChangeVerdict::Worse)] {
        let (mut a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
        a.itl_ns.delivered_by_token = spread(5_000, 60_000_000);
        b.itl_ns.delivered_by_token = spread(tokens, 400_000_000);
        (a.itl_ns.sent_by_token, b.itl_ns.sent_by_token) = (spread(5_000, 60_000_000), spread(5_000, 60_000_000));
        let diff = compare(&a, &b);
        let itl = ["ITL at clients, p99", "ITL of the engine, p99"].map(|name| measure(&diff, name).verdict);
        assert_eq!(itl, [verdict, ChangeVerdict::WithinNoise], "{}", diff.to_text());
    }
}

#[test]
fn gaps_of_all_requests_decide_where_slots_are_too_few() {
    let gap = |count, p50, p90, p99| {
        let [p50, p90, p99] = [p50, p90, p99].map(|ms: u64| Some(ms * 1_000_000));
        Gap { count, p50, p90, p99, max: p99, max_rid: String::new(), classes: Vec::new() }
    };
    for (count, verdict) in [
        (99, "FIXED: first-token gap median 1.500 s -> 1.0 ms"),
        (100, "FIXED: first-token gap p90 2.200 s -> 3.0 ms"),
        (1_000, "FIXED: first-token gap p99 2.800 s -> 4.0 ms"),
    ] {
        let (mut a, mut b) = (run(1, 1.0, Mode::Incremental), run(2, 1.0, Mode::Incremental));
        for report in [&mut a, &mut b] {
            report.series.as_mut().expect("slots").requests.begun[10..].fill(Some(0));
        }
        (a.gap_ns, b.gap_ns) = (Some(gap(1_000, 1_500, 2_200, 2_800)), Some(gap(count, 1, 3, 4)));
        let diff = compare(&a, &b);
        assert_eq!(diff.verdict, verdict, "{}", diff.to_text());
        assert!(!diff.is_worse() && compare(&b, &a).is_worse());
        // Twofold but below 20 ms is no change.
        b.gap_ns = Some(gap(1_000, 3, 9, 19));
        a.gap_ns = Some(gap(1_000, 1, 3, 4));
        let small = compare(&a, &b);
        assert_eq!(measure(&small, "gap of all requests, p99").verdict, ChangeVerdict::WithinNoise);
        let below = "UNCHANGED: first-token gap far below the limit of 1.000 s in both runs (p99 4.0 ms -> 19.0 ms)";
        assert_eq!(small.verdict, below);
        let text = diff.to_text();
        assert_eq!(text.matches("short runs: only 8 slots under load, 15 are needed").count(), 1, "{text}");
    }
}

#[test]
fn a_comparison_round_trips_and_fits_a_terminal() {
    let diff = compare(&run(1, 1.0, Mode::Cumulative), &run(2, 2.0, Mode::Incremental));
    let parsed: Diff = serde_json::from_str(&diff.to_json()).expect("its own JSON parses");
    assert_eq!(parsed.to_text(), diff.to_text());
    let text = diff.to_text();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(diff.to_markdown().contains("| gap, p99 |"));
}

#[test]
fn a_wait_moves_stays_shrinks_or_grows() {
    use LegKind::{Inside, Wait};
    let one = run_with_legs(&[
        ("scheduler->detokenizer", Wait, 900),
        ("detokenizer", Inside, 20),
        ("detokenizer->worker", Wait, 1),
    ]);
    let four = run_with_legs(&[
        ("scheduler->detokenizer-router", Wait, 300),
        ("detokenizer-router", Inside, 15),
        ("detokenizer-router->detokenizer", Wait, 2),
        ("detokenizer", Inside, 4),
        ("detokenizer->worker", Wait, 1),
    ]);
    let moved = compare(&one, &four).wait.expect("both have legs");
    assert_eq!(moved.from.as_str(), "scheduler->detokenizer");
    assert_eq!(moved.to.as_str(), "scheduler->detokenizer-router");
    assert_eq!(
        moved.summary,
        "the wait moved from scheduler->detokenizer (98 % of 921.0 ms a chunk) to scheduler->detokenizer-router (93 % of 322.0 ms a chunk)"
    );
    let names: Vec<&str> = moved.legs.iter().map(|leg| leg.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "scheduler->detokenizer",
            "scheduler->detokenizer-router",
            "detokenizer-router",
            "detokenizer-router->detokenizer",
            "detokenizer",
            "detokenizer->worker"
        ]
    );
    let unchanged = compare(&four, &four).wait.expect("legs");
    assert!(
        unchanged.summary.starts_with("the wait stays: scheduler->detokenizer-router had"),
        "{}",
        unchanged.summary
    );
    let quick = run_with_legs(&[("scheduler->detokenizer", Wait, 1), ("detokenizer", Inside, 20)]);
    let vanished = compare(&one, &quick).wait.expect("legs");
    assert!(vanished.summary.ends_with("21.0 ms is left, most of it inside the detokenizer"), "{}", vanished.summary);
    let grown = compare(&quick, &one).wait.expect("legs");
    assert_eq!(
        grown.summary,
        "the wait grew from 21.0 ms to 921.0 ms a chunk: most of it was inside the detokenizer (95 %), and is \
         scheduler->detokenizer (98 %)"
    );
    assert!(compare(&one, &run_with_legs(&[])).wait.is_none());
}

/// Between two tests, no request is live.
#[test]
fn slots_without_live_requests_are_not_under_load() {
    let before = run(1, 1.0, Mode::Incremental);
    let mut after = run(2, 1.0, Mode::Incremental);
    let series = after.series.as_mut().expect("slots");
    for slot in 8..24 {
        series.tokens.sent[slot] = Some(0);
        series.requests.live[slot] = Some(0);
        series.requests.begun[slot] = Some(0);
    }
    let diff = compare(&before, &after);
    assert_eq!((diff.a.slots, diff.b.slots), (SLOTS - 2, SLOTS - 2 - 16));
    let sent = measure(&diff, "tokens sent");
    assert!(sent.change.is_some_and(|change| change > -0.2), "{sent:?}");
}
