//! Every scenario on every topology: hop, cause and severity of the headline, and no other warning.

use std::time::Duration;

use serde_json::Value;

use super::super::Scenario;
use super::super::scenario::{ProcessCounts, Script, TokenizerPhase};
use super::agree;
use crate::demo::truth::DemoTruth;

/// Long enough for every threshold, since a backlog has to grow for three seconds. One frame per request is much more expensive to
/// simulate.
fn duration(script: &Script) -> Duration {
    // The process is frozen for three seconds, and a request counts as abandoned only after some.
    let is_slow = ["scheduler-stopped", "abandoned"].contains(&&*script.name);
    Duration::from_millis(match script.route.workers {
        1 if is_slow => 6000,
        1 => 5000,
        _ if is_slow => 4200,
        _ => 4000,
    })
}

/// Topology of a test case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Topology of the scenario.
    Own,
    /// Topology of the scenario with this number of workers.
    Number(usize),
    /// Scheduler to tokenizer.
    Direct,
    /// With a detokenizer in between.
    Detokenizer,
    /// With a detokenizer and four tokenizer workers.
    Workers,
    /// With two detokenizers behind a router and two tokenizer workers.
    Router,
}

/// The shortest and the longest path.
const ENDS: [At; 2] = [At::Direct, At::Router];

fn script(scenario: Scenario, at: At) -> Script {
    let (schedulers, detokenizers, workers) = match at {
        At::Own => return scenario.script(),
        At::Number(number) => return scenario.script_with_worker_count(number).expect("a scenario about workers"),
        At::Direct => (1, 0, 1),
        At::Detokenizer => (1, 1, 1),
        At::Workers => (1, 1, 4),
        At::Router => (1, 2, 2),
    };
    let route = ProcessCounts { schedulers, detokenizers, workers };
    Script { route, ..scenario.script() }
}

/// Runs the scenario and checks that its report has exactly these warnings, headline first. Each contains severity, kind and hop, and for
/// the wait of a first token the state of the bottleneck thread. Without warnings, `--fail-on warning` exits 0.
fn check(script: Script, at: At, expected: &[&str]) -> (Value, DemoTruth) {
    let name = script.name.clone();
    let duration = duration(&script);
    let (report, account) = agree(script, duration);
    let mut warnings = Vec::new();
    for finding in report["findings"].as_array().expect("findings") {
        if finding["severity"] == "info" {
            continue;
        }
        assert!(finding["advice"].is_string(), "{name} {at:?}: {finding:#}");
        let fields = ["/severity", "/kind", "/hop", "/evidence/bottleneck_thread"];
        let words = fields.iter().filter_map(|path| finding.pointer(path)?.as_str());
        warnings.push(words.collect::<Vec<_>>().join(" "));
    }
    assert_eq!(warnings, expected, "{name} {at:?}\n{:#}", report["findings"]);
    (report, account)
}

fn check_all(scenario: Scenario, places: &[At], expected: &[&str]) {
    for &at in places {
        check(script(scenario, at), at, expected);
    }
}

#[test]
fn no_findings_while_every_receiver_keeps_up() {
    check_all(Scenario::Healthy, &[At::Detokenizer, At::Workers, At::Router], &[]);
}

#[test]
fn a_missing_detokenizer_causes_no_findings() {
    check_all(Scenario::SkipTokenizer, &[At::Direct], &[]);
}

#[test]
fn batches_and_samples_cause_no_findings() {
    check_all(Scenario::Sampling, &ENDS, &[]);
    check_all(Scenario::Prefill, &ENDS, &[]);
}

#[test]
fn a_router_causes_no_findings() {
    check_all(Scenario::Router, &[At::Own, At::Number(8)], &[]);
}

#[test]
fn tokenizer_workers_and_data_parallel_schedulers_cause_no_findings() {
    check_all(Scenario::TokenizerWorkers, &[2, 16].map(At::Number), &[]);
    check_all(Scenario::DataParallel, &[At::Own, At::Number(8)], &[]);
}

#[test]
fn a_slow_tokenizer_is_the_headline() {
    for (at, hop) in [(At::Direct, "scheduler->tokenizer"), (At::Detokenizer, "detokenizer->tokenizer")] {
        let gap = format!("warning first-token-gap {hop} busy");
        let backlog = format!("warning backlog {hop}");
        check(script(Scenario::Backlog, at), at, &[&gap, &backlog]);
    }
    // With one message per request, each message costs as much as a frame.
    let expected = ["critical first-token-gap detokenizer->worker busy", "critical backlog detokenizer->worker"];
    check_all(Scenario::Backlog, &[At::Workers, At::Router], &expected);
}

#[test]
fn lost_tokens_are_the_headline() {
    let expected = ["critical dropped-chunks tokenizer->client"];
    check_all(Scenario::Race, &[At::Direct, At::Detokenizer], &expected);
    // A worker receives a request's chunks too far apart to lose one.
    check_all(Scenario::Race, &[At::Workers, At::Router], &[]);
}

#[test]
fn merged_deliveries_are_not_reported_as_lost() {
    check_all(Scenario::Merge, &[At::Direct, At::Detokenizer], &["warning merged-chunks tokenizer->client"]);
    check_all(Scenario::Merge, &[At::Workers, At::Router], &[]);
}

#[test]
fn inflated_counts_rank_above_waits() {
    for (at, hop) in [(At::Direct, "scheduler->tokenizer"), (At::Detokenizer, "detokenizer->tokenizer")] {
        // It is slow in only one of its two phases.
        let gap = format!("warning first-token-gap {hop} unknown");
        let backlog = format!("warning backlog {hop}");
        // At the end, the backlog has been over for less than ten seconds.
        let expected = ["critical inflation tokenizer", &gap, &backlog, "warning merged-chunks tokenizer->client"];
        check(script(Scenario::Regression, at), at, &expected);
    }
    check_all(Scenario::Regression, &[At::Workers], &["critical inflation worker"]);
    let expected = [
        "critical inflation worker",
        "critical backlog detokenizer->worker",
        "warning first-token-gap detokenizer->worker busy",
    ];
    check_all(Scenario::Regression, &[At::Router], &expected);
}

#[test]
fn each_phase_of_the_regression_has_its_own_headline() {
    let phase = |n: usize| -> Script {
        let script = Scenario::Regression.script();
        let phases: &'static [TokenizerPhase] = &script.phases[n..=n];
        Script { phases, ..script }
    };
    check(phase(0), At::Direct, &["critical inflation tokenizer"]);
    let expected = [
        "warning first-token-gap scheduler->tokenizer busy",
        "warning backlog scheduler->tokenizer",
        "warning merged-chunks tokenizer->client",
    ];
    check(phase(1), At::Direct, &expected);
}

#[test]
fn the_slow_stage_is_found_for_any_number_of_detokenizers() {
    let one = ["critical first-token-gap scheduler->detokenizer busy", "warning backlog scheduler->detokenizer"];
    let two = [
        "critical backlog detokenizer-router->detokenizer",
        "warning first-token-gap detokenizer-router->detokenizer busy",
    ];
    // The router holds all frames until it is through with those of the start.
    let four = [two[0], two[1], "warning late-frames scheduler->detokenizer-router"];
    let router = ["warning first-token-gap scheduler->detokenizer-router busy"];
    check_all(Scenario::Detokenizers, &[At::Direct], &[]);
    check_all(Scenario::Detokenizers, &[At::Number(1), At::Detokenizer], &one);
    check_all(Scenario::Detokenizers, &[At::Number(2)], &two);
    check_all(Scenario::Detokenizers, &[At::Number(4)], &four);
    check_all(Scenario::Detokenizers, &[At::Number(8)], &router);
}

#[test]
fn requests_that_change_detokenizers_are_found() {
    check_all(Scenario::Uneven, &[At::Workers], &[]);
    let expected = ["warning rid-changed-worker detokenizer-router->detokenizer"];
    check_all(Scenario::Uneven, &[At::Own], &expected);
}

#[test]
fn requests_that_are_slow_to_prepare_are_the_headline() {
    for at in ENDS {
        let script = script(Scenario::SlowTokenisation, at);
        let process = if matches!(at, At::Router) { "worker" } else { "tokenizer" };
        let (report, account) = check(script, at, &[&format!("warning late-dispatch {process}")]);
        let late = &report["findings"][0]["evidence"];
        assert_eq!(late["requests_late"], account.truth.requests_dispatched_late, "{late:#}");
        assert!(late["ttft_share"].as_f64() > Some(0.9), "{late:#}");
    }
}

#[test]
fn a_frozen_scheduler_is_the_headline() {
    for at in [At::Direct, At::Detokenizer] {
        let script = script(Scenario::SchedulerStopped, at);
        let hop = if at == At::Direct { "scheduler->tokenizer" } else { "scheduler->detokenizer" };
        let (report, account) = check(script, at, &[&format!("warning engine-silent {hop}")]);
        assert_eq!(report["findings"][0]["evidence"]["silences"], account.truth.scheduler_freezes);
        let hops = report["hops"].as_array().expect("hops");
        let requests = hops.iter().find(|hop| hop["carries_requests"] == true).expect("a hop");
        let wait = &requests["queue_wait_ns"]["max"];
        assert!((2_500_000_000..3_050_000_000).contains(&wait.as_u64().expect("a wait")), "{requests:#}");
    }
}

#[test]
fn requests_whose_client_left_are_abandoned() {
    for at in [At::Direct, At::Detokenizer] {
        let script = script(Scenario::Abandoned, at);
        let (report, DemoTruth { truth, .. }) = check(script, at, &["warning abandoned-requests scheduler"]);
        let evidence = &report["findings"][0]["evidence"];
        assert!(truth.requests_abandoned > 2 && truth.clients_left >= truth.requests_abandoned, "{truth:?}");
        assert_eq!(
            (&evidence["requests"], &evidence["tokens"]),
            (&truth.requests_abandoned.into(), &truth.tokens_abandoned.into()),
            "{evidence:#}"
        );
    }
}

#[test]
fn a_seed_gives_an_identical_report() {
    let run = || agree(Scenario::Race.script(), Duration::from_secs(2)).0;
    assert_eq!(run(), run());
}
