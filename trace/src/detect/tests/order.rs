//! Which of several findings is the headline.

use std::collections::BTreeMap;

use super::super::finding::HopTarget;
use super::super::order::FindingRank;
use super::super::{Finding, Findings};
use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::{Severity, Verdict};
use crate::engine::example;
use crate::event::{Capabilities, Hop, Received, What};
use crate::id::{FrameId, HopId};
use crate::ledger::{Limits, OccurrenceTimes};

const REQUESTS: &str = "tokenizer->scheduler";
const MIDDLE: &str = "scheduler->detokenizer";
const LAST: &str = "detokenizer->tokenizer";

/// A warning of this kind on a hop, from and until these seconds. It lasts if that is second 20.
fn finding(kind: &'static str, hop: &str, [began, last]: [u64; 2]) -> Finding {
    let verdict = Verdict { severity: Severity::Warning, hop: hop.to_owned(), ..Verdict::default() };
    let times = OccurrenceTimes::default();
    let [began, last_at] = [began, last].map(|second| MonoNs(second * SECOND));
    Finding { kind, began, last_at, active: last == 20, changed_at: None, verdict, occurrences: 0, times }
}

/// Findings at second 20, of which those of late receives explain 24 s of time to first token.
fn findings(list: &[Finding]) -> Findings {
    let targets = [(REQUESTS, HopTarget::Scheduler), (MIDDLE, HopTarget::Other), (LAST, HopTarget::Tokenizer)];
    Findings {
        list: list.to_vec(),
        ttft_ns: BTreeMap::from([("late-receive", u128::from(24 * SECOND))]),
        targets: targets.map(|(hop, target)| (hop.to_owned(), target)).into(),
        updated_at: MonoNs(20 * SECOND),
        ..Findings::default()
    }
}

fn order(list: &[Finding]) -> Vec<&'static str> {
    kinds_in_order(&findings(list))
}

fn kinds_in_order(findings: &Findings) -> Vec<&'static str> {
    findings.sorted_worst_first().iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_stopped_scheduler_comes_before_the_requests_that_it_receives_late() {
    let late = finding("late-receive", "", [13, 20]);
    let stopped = finding("consumer-stopped", REQUESTS, [13, 16]);
    assert_eq!(order(&[late.clone(), stopped.clone()]), ["consumer-stopped", "late-receive"]);
    assert_eq!(order(&[late.clone(), finding("engine-silent", "", [13, 16])]), ["engine-silent", "late-receive"]);
    for other in [
        finding("consumer-stopped", MIDDLE, [13, 16]),
        finding("consumer-stopped", REQUESTS, [11, 12]),
        finding("consumer-stopped", REQUESTS, [2, 8]),
    ] {
        assert_eq!(order(&[other.clone(), late.clone()]), ["late-receive", "consumer-stopped"], "{other:?}");
    }
    // It is as important as what it causes.
    let both = findings(&[late, stopped.clone()]);
    let expected = FindingRank { severity: Severity::Warning, is_recent: true, explained_ns: 24 * SECOND };
    assert_eq!(both.rank(&stopped), expected);
}

#[test]
fn a_stopped_tokenizer_comes_before_the_requests_that_it_dispatches_late() {
    let late = finding("late-dispatch", "", [13, 20]);
    let mut both = findings(&[late, finding("consumer-stopped", LAST, [13, 16])]);
    both.ttft_ns.insert("late-dispatch", u128::from(9 * SECOND));
    assert_eq!(kinds_in_order(&both), ["consumer-stopped", "late-dispatch"]);
    // A tokenizer that briefly lacks a CPU is not the reason why requests are slow to prepare.
    both.list[1].kind = "consumer-starved";
    assert_eq!(kinds_in_order(&both), ["late-dispatch", "consumer-starved"]);
    // One that lacked a CPU while they were prepared is.
    both.list[0].verdict.evidence.insert("thread".to_owned(), "waiting for a CPU".into());
    assert_eq!(kinds_in_order(&both), ["consumer-starved", "late-dispatch"]);
    both.list[1].kind = "consumer-throttled";
    assert_eq!(kinds_in_order(&both), ["late-dispatch", "consumer-throttled"]);
}

/// Merged chunks count for ten seconds after the last one.
#[test]
fn a_busy_receiver_that_has_ended_comes_before_the_chunks_that_it_merged() {
    let merged = finding("merged-chunks", "", [12, 20]);
    let busy = |times| finding("consumer-cpu-bound", LAST, times);
    assert_eq!(order(&[merged.clone(), busy([12, 16])]), ["consumer-cpu-bound", "merged-chunks"]);
    // It has ended, and chunks are still merged.
    assert_eq!(order(&[busy([2, 5]), merged]), ["merged-chunks", "consumer-cpu-bound"]);
    let backlog = finding("backlog", LAST, [12, 20]);
    assert_eq!(order(&[backlog, busy([12, 16])]), ["consumer-cpu-bound", "backlog"]);
}

/// A scene with 31 requests, of which the first token waits on both hops. `waits_of` has the waits of a request by its number.
fn scene_of_two_hops(waits_of: impl Fn(u64) -> [u64; 2]) -> Scene {
    let observed = Capabilities::SENT | Capabilities::RECEIVED;
    let mut scene = Scene::empty(example::ENGINES, Limits::default());
    scene.hop(Hop { origin: true, ..Hop::new(HopId(0), MIDDLE, observed) });
    scene.hop(Hop { last: true, ..Hop::new(HopId(1), LAST, observed) });
    for number in 0..31 {
        let start = number * 5 * SECOND;
        let rid = number.to_string();
        let [first_ns, last_ns] = waits_of(number);
        scene.send_to(0, start, &rid, 1);
        scene.receive(start + first_ns, number);
        scene.send_to(1, start + first_ns + MS, &rid, 1);
        let received = Received::new(FrameId::new(HopId(1), 0, number));
        scene.apply(start + first_ns + MS + last_ns, What::Received(received));
    }
    scene
}

/// Thirty first tokens wait 400 ms for the tokenizer, and one 3 s for the detokenizer.
#[test]
fn a_first_token_gap_names_what_holds_up_the_late_requests() {
    let scene = scene_of_two_hops(|number| if number == 15 { [3 * SECOND, MS] } else { [MS, 400 * MS] });
    let found = scene.check("first-token-gap", 200 * SECOND);
    assert_eq!((found.len(), &*found[0].hop), (1, MIDDLE), "{found:?}");
    let whole = "1 of 31 requests above 1.000 s; 100 % of that time was spent waiting on scheduler->detokenizer";
    assert!(found[0].summary.contains(whole), "{}", found[0].summary);
}

/// Two requests are late: one waits a second on the first hop, the other 0.6 s and 1.4 s on both.
#[test]
fn a_first_token_gap_counts_the_short_waits_of_late_requests() {
    let scene = scene_of_two_hops(|number| match number {
        10 => [SECOND, MS],
        20 => [600 * MS, 1_400 * MS],
        _ => [MS, 100 * MS],
    });
    let found = scene.check("first-token-gap", 200 * SECOND);
    let whole = "2 of 31 requests above 1.000 s; 53 % of that time was spent waiting on scheduler->detokenizer";
    assert!(found[0].summary.contains(whole), "{}", found[0].summary);
}
