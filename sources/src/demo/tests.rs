//! Runs every scenario briefly and compares the findings with the ground truth.

mod matrix;
mod topologies;
mod virtual_run;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use outputs::report::Report;
use serde_json::Value;
use session::{About, Flow, LiveSource};
use trace::{Analysis, Config, MonoNs, ReportInput};

use super::scenario::Script;
use super::truth::DemoTruth;
use super::{Demo, Scenario, private_folder};

/// Timeout for a demo that does not end; generous enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

fn json(report: &Report) -> Value {
    serde_json::to_value(report).expect("a report is JSON")
}

/// Runs `script` on a virtual clock for `time`, then until everything is delivered.
fn play(script: Script, time: Duration) -> (Value, DemoTruth) {
    let (report, account) = virtual_run::play(script, time);
    (json(&report), account)
}

/// Runs `script` on the real clock, through sockets and the relay.
fn play_through_sockets(script: Script, time: Duration) -> (Value, DemoTruth) {
    let folder = private_folder().expect("a folder");
    let mut demo = Demo::start_in(folder, script, 1).expect("a demo needs nothing but a folder");
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let start = Instant::now();
    loop {
        match demo.poll(&mut |event| analysis.apply(event)) {
            Flow::Ended => break,
            Flow::Busy => {}
            Flow::Idle => std::thread::sleep(Duration::from_millis(2)),
        }
        analysis.tick(MonoNs::now());
        if start.elapsed() > time {
            demo.stop();
        }
        assert!(start.elapsed() < PATIENCE, "the demo does not end: {:?}", demo.account());
    }
    let input = ReportInput { demo: demo.demo_truth_json(), ..ReportInput::for_source(demo.kind()) };
    (json(&Report::of(&analysis, &input)), demo.account())
}

/// Runs a scenario on a virtual clock and checks the report against the ground truth.
fn agree(script: Script, time: Duration) -> (Value, DemoTruth) {
    check_against_truth(play(script, time))
}

fn check_against_truth((report, account): (Value, DemoTruth)) -> (Value, DemoTruth) {
    let truth = &account.truth;
    let count = |path: &str| report.pointer(path).and_then(Value::as_u64);
    for (path, true_count) in [
        ("/requests/seen", truth.requests),
        ("/requests/finished", truth.requests),
        ("/chunks/sent", truth.chunks),
        ("/chunks/received", truth.chunks),
        ("/tokens/sent", truth.tokens),
        ("/tokens/received", truth.tokens),
        ("/tokens/delivered", truth.tokens - truth.tokens_lost - truth.tokens_discarded),
        ("/chunks/dropped_confirmed", truth.chunks_dropped),
        ("/chunks/tokens_lost", truth.tokens_lost),
        ("/chunks/merged", truth.chunks_merged),
        ("/dispatched/requests", truth.requests),
        ("/dispatched/waiting", 0),
        ("/self/events_missed", 0),
        ("/self/frames_undecoded", 0),
    ] {
        assert_eq!(count(path), Some(true_count), "{path} of {}\n{report:#}", account.scenario);
    }
    for hop in report["hops"].as_array().expect("hops") {
        assert_eq!(hop["frames_sent"], hop["frames_received"], "{hop:#}");
    }
    check_moments(&report, &account);
    assert_eq!(report["demo"], serde_json::to_value(&account).expect("JSON"));
    assert!(truth.chunks > 100, "{truth:?}");
    (report, account)
}

/// Checks that all moments of each request were observed.
fn check_moments(report: &Value, account: &DemoTruth) {
    let ttft = &report["ttft"];
    let legs = ttft["groups"][0]["legs"].as_array().expect("legs").iter();
    let legs: Vec<_> = legs.filter_map(|leg| leg["name"].as_str()).collect();
    let all = ["socket", "preparation", "dispatch", "intake", "queue", "prefill", "output", "processing", "delivery"];
    assert_eq!(legs, all, "{ttft:#}");
    let requests = ttft["groups"][0]["ns"]["count"].as_u64();
    // Requests that only warm up the prefix cache have no first token.
    if account.scenario != Scenario::Sampling.as_str() {
        assert_eq!(requests, Some(account.truth.requests), "{ttft:#}");
    }
}

/// Hops that carry tokens.
fn output_hops(report: &Value) -> impl Iterator<Item = &Value> {
    let hops = report["hops"].as_array().expect("hops");
    hops.iter().filter(|hop| hop["carries_requests"] == false)
}

fn findings(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().filter_map(|finding| finding["kind"].as_str()).collect()
}

const SHORT_RUN: Duration = Duration::from_millis(1500);

#[test]
fn race_agrees_on_every_dropped_chunk() {
    let (report, account) = check_against_truth(play_through_sockets(Scenario::Race.script(), SHORT_RUN));
    assert!(account.truth.chunks_dropped > 0, "{account:?}");
    assert_eq!(account.truth.tokens_claimed, account.truth.tokens - account.truth.tokens_lost);
    assert!(findings(&report).contains(&"dropped-chunks"), "{report:#}");
}

#[test]
fn vllm_agrees_on_every_merged_chunk_in_its_own_words() {
    let (report, account) = check_against_truth(play_through_sockets(Scenario::Vllm.script(), SHORT_RUN));
    let truth = &account.truth;
    assert!(truth.chunks_merged > 0, "{account:?}");
    assert_eq!((truth.chunks_dropped, truth.tokens_claimed), (0, truth.tokens));
    assert_eq!(report["source"]["engine"], "vllm", "{report:#}");
    let names: Vec<_> = report["hops"].as_array().expect("hops").iter().map(|hop| &hop["name"]).collect();
    assert_eq!(names, ["engine-core->api-server", "api-server->engine-core"]);
    let merging = report["findings"].as_array().expect("findings").iter();
    let advice: Vec<_> = merging
        .filter(|finding| finding["kind"] == "merged-chunks")
        .filter_map(|finding| finding["advice"].as_str())
        .collect();
    assert!(matches!(advice[..], [advice] if advice.contains("API server")), "{advice:?}");
    for kind in ["dropped-chunks", "wire-loss", "inflation", "would-drop"] {
        assert!(!findings(&report).contains(&kind), "{report:#}");
    }
}

#[test]
fn router_agrees_over_three_hops() {
    let (report, account) = check_against_truth(play_through_sockets(Scenario::Router.script(), SHORT_RUN));
    let names: Vec<_> = output_hops(&report).filter_map(|hop| hop["name"].as_str()).collect();
    assert_eq!(names, ["scheduler->detokenizer-router", "detokenizer-router->detokenizer", "detokenizer->worker"]);
    // The router and the detokenizers send one message per request.
    for hop in output_hops(&report).skip(1) {
        assert_eq!(hop["frames_sent"].as_u64(), Some(account.truth.chunks), "{hop:#}");
    }
}

#[test]
fn a_demo_dropped_early_removes_its_folder() {
    let folder = private_folder().expect("a folder");
    let path = folder.path().to_owned();
    let mode = path.metadata().expect("the folder is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let demo = Demo::start_in(folder, Scenario::Race.script(), 1).expect("a demo");
    std::thread::sleep(Duration::from_millis(100));
    drop(demo);
    assert!(!path.exists());
}
