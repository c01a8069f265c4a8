//! Every topology: its hops, the load of its workers, and where its chunks wait.

use std::time::Duration;

use outputs::diff::{Diff, DiffOptions, NamedRun};
use outputs::report::Report;
use serde_json::Value;

use super::{SHORT_RUN, Scenario, agree, findings, output_hops, play};
use crate::demo::truth::DemoTruth;

fn names(report: &Value) -> Vec<&str> {
    output_hops(report).filter_map(|hop| hop["name"].as_str()).collect()
}

fn hop<'r>(report: &'r Value, name: &str) -> &'r Value {
    let mut hops = report["hops"].as_array().expect("hops").iter();
    hops.find(|hop| hop["name"] == name).expect("the hop")
}

/// Runs a scenario in which every request keeps its worker, and checks that no finding is about workers.
fn keeps_order(scenario: Scenario) -> (Value, DemoTruth) {
    let (report, account) = agree(scenario.script(), SHORT_RUN);
    for hop in output_hops(&report) {
        assert_eq!((&hop["rids_moved"], &hop["out_of_order"]), (&0.into(), &0.into()), "{hop:#}");
        assert_eq!(hop["chunks"], account.truth.chunks, "{hop:#}");
        assert_eq!(hop["tokens"], account.truth.tokens, "{hop:#}");
    }
    for kind in ["worker-imbalance", "rid-changed-worker", "out-of-order"] {
        assert!(!findings(&report).contains(&kind), "{report:#}");
    }
    (report, account)
}

/// Shares of all members of a hop, which add up to 1.
fn shares(members: &Value) -> Vec<f64> {
    let members = members.as_array().expect("members");
    let shares: Vec<f64> = members.iter().filter_map(|m| m["share"].as_f64()).collect();
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{members:?}");
    shares
}

#[test]
fn without_a_detokenizer_there_is_one_hop() {
    let (report, _) = keeps_order(Scenario::SkipTokenizer);
    assert_eq!(names(&report), ["scheduler->tokenizer"]);
    assert_eq!(report["path"].as_array().map(Vec::len), Some(1), "no process in between");
}

#[test]
fn time_inside_the_detokenizer_is_measured() {
    let (report, account) = keeps_order(Scenario::Healthy);
    let legs: Vec<_> = report["path"].as_array().expect("legs").iter().collect();
    let segments: Vec<_> = legs.iter().map(|leg| (leg["name"].as_str(), leg["kind"].as_str())).collect();
    assert_eq!(
        segments,
        [
            (Some("scheduler->detokenizer"), Some("wait")),
            (Some("detokenizer"), Some("inside")),
            (Some("detokenizer->tokenizer"), Some("wait"))
        ]
    );
    assert_eq!(legs[1]["ns"]["count"], account.truth.chunks, "every chunk is recognised");
    assert!(legs[1]["busy"].as_f64().is_some_and(|busy| busy > 0.0 && busy < 0.5), "{report:#}");
}

#[test]
fn tokenizer_workers_share_the_load() {
    let (report, account) = keeps_order(Scenario::TokenizerWorkers);
    assert_eq!(names(&report), ["scheduler->detokenizer", "detokenizer->worker"]);
    let line = hop(&report, "detokenizer->worker");
    assert_eq!(line["frames_sent"], account.truth.chunks, "one message a request");
    let shares = shares(&line["workers"]);
    assert!(shares.len() == 4 && shares.iter().all(|&share| share > 0.05), "{line:#}");
}

#[test]
fn data_parallel_schedulers_are_connections_of_one_hop() {
    let (report, account) = keeps_order(Scenario::DataParallel);
    let line = hop(&report, "scheduler->detokenizer");
    let requests = hop(&report, "tokenizer->scheduler");
    let schedulers = requests["workers"].as_array().map(Vec::len);
    assert_eq!((schedulers, &requests["frames_sent"]), (Some(4), &account.truth.requests.into()));
    let shares = shares(&line["lanes"]);
    assert!(shares.len() == 4 && shares.iter().all(|&share| share > 0.05), "{line:#}");
    let tokens: u64 = line["lanes"].as_array().expect("lanes").iter().filter_map(|l| l["tokens"].as_u64()).sum();
    assert_eq!(tokens, account.truth.tokens);
}

#[test]
fn a_prefill_server_sends_one_frame_a_request() {
    let (_, account) = keeps_order(Scenario::Prefill);
    let truth = &account.truth;
    assert_eq!((truth.requests, truth.tokens), (truth.chunks, truth.chunks));
    keeps_order(Scenario::Decode);
}

#[test]
fn batch_items_and_samples_are_separate_requests() {
    let (report, _) = keeps_order(Scenario::Sampling);
    let rids = report["slowest"].as_array().expect("requests").iter();
    assert!(rids.filter_map(|line| line["rid"].as_str()).any(|rid| rid.contains('_')), "{report:#}");
}

#[test]
fn idle_workers_and_requests_that_change_workers_are_found() {
    let (report, _) = agree(Scenario::Uneven.script(), SHORT_RUN);
    let line = hop(&report, "detokenizer-router->detokenizer");
    assert!(line["imbalance"].as_f64().is_some_and(|n| n > 1.5), "{line:#}");
    assert!(line["rids_moved"].as_u64() > Some(0), "{line:#}");
    let of_hop = |kind: &str| {
        let found = report["findings"].as_array().expect("findings").iter();
        found.filter(|f| f["kind"] == kind).map(|f| f["hop"].as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of_hop("worker-imbalance"), [Some("detokenizer-router->detokenizer")]);
    assert_eq!(of_hop("rid-changed-worker"), [Some("detokenizer-router->detokenizer")]);
}

/// By construction, one detokenizer processes 200 chunks per second, four 800, eight 1,600, and their router 1,100.
#[test]
fn more_detokenizers_move_the_wait_to_the_next_bottleneck() {
    let run = |workers: usize| -> Report {
        let script = Scenario::Detokenizers.script_with_worker_count(workers).expect("a number of workers");
        let (report, _) = play(script, Duration::from_secs(4));
        serde_json::from_value(report).expect("our own report")
    };
    let (one, four, eight) = (run(1), run(4), run(8));
    let moved = |a: &Report, b: &Report| {
        let diff = Diff::of_runs(
            NamedRun { name: "a", report: a },
            NamedRun { name: "b", report: b },
            &DiffOptions::default(),
        );
        let wait = diff.wait.clone().expect("both runs see where chunks wait");
        assert!(wait.summary.starts_with("the wait moved from "), "{}", diff.to_text());
        assert!(diff.to_text().contains("WHERE A CHUNK'S TIME GOES"), "{}", diff.to_text());
        (wait.from, wait.to)
    };
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(moved(&one, &four), pair("scheduler->detokenizer", "detokenizer-router->detokenizer"));
    assert_eq!(moved(&four, &eight), pair("detokenizer-router->detokenizer", "scheduler->detokenizer-router"));
    assert_eq!(moved(&one, &eight), pair("scheduler->detokenizer", "scheduler->detokenizer-router"));
    let router = eight.path.iter().find(|leg| leg.name == "detokenizer-router").expect("a leg");
    assert!(router.busy.is_some_and(|busy| busy > 0.7), "the router is the bottleneck: {router:?}");
}
