//! Which of several causes comes first.

use super::*;
use crate::detect::{DetectContext, Findings};
use crate::words::plural;

#[test]
fn one_request_does_not_outrank_a_cause_of_many() {
    let mut scene = scene();
    let requests =
        |number: u64| if number == 100 { QUICK.read_after(6 * SECOND) } else { QUICK.queued_for(4 * SECOND) };
    for number in 0..200 {
        add(&mut scene, number, number * 10 * MS, requests(number));
    }
    scene.tick(12 * SECOND);
    assert_eq!(only(scene.check("late-read", 12 * SECOND)).severity, Severity::Info);
    assert_eq!(only(scene.check("queued", 12 * SECOND)).severity, Severity::Warning);
    // Later, alone in its window, it is still not worse than them.
    add(&mut scene, 200, 60 * SECOND, QUICK.read_after(6 * SECOND));
    scene.tick(70 * SECOND);
    assert_eq!(only(scene.check("late-read", 70 * SECOND)).severity, Severity::Warning);
}

/// Adds a request whose first token waits this long for the tokenizer's thread 7.
fn add_gap(scene: &mut Scene, number: u64, start: u64, gap_ns: u64) {
    dispatch(scene, number, start, QUICK);
    let rid = number.to_string();
    let sent = start + QUICK.sent;
    scene.send_chunk(0, sent, Chunk { cached_tokens: Some(0), ..Chunk::counted(&rid, 1, 1) });
    let last = scene.next[0] - 1;
    scene.receive_by(sent + gap_ns, last, 7);
    scene.deliver(sent + gap_ns + MS, &rid, 1, 1, false);
}

/// Adds requests that are queued for four seconds, and runs the detectors every half second until `end`.
fn queue_beside(scene: &mut Scene, findings: &mut Findings, requests: u64, end: u64) {
    for number in 0..requests {
        add(scene, 1_000 + number, number * 10 * MS, QUICK.queued_for(4 * SECOND));
    }
    update_until(scene, findings, 0, end);
}

fn update_until(scene: &mut Scene, findings: &mut Findings, start: u64, end: u64) {
    for at in (start..=end).step_by(500 * MS as usize) {
        scene.tick(at);
        findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(at)));
    }
}

fn kinds_and_severities(findings: &Findings) -> Vec<(&'static str, Severity)> {
    findings.sorted_worst_first().iter().map(|finding| (finding.kind, finding.verdict.severity)).collect()
}

#[test]
fn one_gap_does_not_outrank_a_cause_of_many() {
    for (requests, severity) in [(200, Severity::Info), (0, Severity::Critical)] {
        let mut scene = scene();
        for number in 0..requests {
            add(&mut scene, 1_000 + number, number * 10 * MS, QUICK.queued_for(4 * SECOND));
        }
        add_gap(&mut scene, 1, 100 * MS, 6 * SECOND);
        scene.tick(12 * SECOND);
        let found = only(scene.check("first-token-gap", 12 * SECOND));
        assert_eq!(found.severity, severity, "{found:?}");
        let share =
            format!("between scheduler and tokenizer, 100 % of the TTFT of 1 of {}", plural(requests + 1, "request"));
        assert!(found.summary.contains(&share), "{}", found.summary);
        assert_eq!(found.evidence["ttft_share"], 0.998);
    }
}

/// A tokenizer that lacks a CPU holds up one request for six seconds.
fn starve_tokenizer(scene: &mut Scene, findings: &mut Findings, start: u64) {
    add_gap(scene, 1, start, MS);
    dispatch(scene, 2, start, QUICK);
    let sent = start + SECOND;
    scene.send_chunk(0, sent, Chunk { cached_tokens: Some(0), ..Chunk::counted("2", 1, 1) });
    let last = scene.next[0] - 1;
    for tenth in 1..=60 {
        scene.cpu(sent + tenth * 100 * MS, 7, [2, 98, 0]);
        if tenth % 5 == 0 {
            update_until(scene, findings, sent + tenth * 100 * MS, sent + tenth * 100 * MS);
        }
    }
    scene.receive_by(sent + 6 * SECOND, last, 7);
    scene.deliver(sent + 6 * SECOND + MS, "2", 1, 1, false);
}

#[test]
fn a_starved_tokenizer_does_not_outrank_a_cause_of_many() {
    let mut scene = scene();
    let mut findings = Findings::default();
    queue_beside(&mut scene, &mut findings, 200, 7 * SECOND);
    starve_tokenizer(&mut scene, &mut findings, 10 * SECOND);
    // While it lasts, the requests that it holds up are not known yet.
    assert_eq!(kinds_and_severities(&findings)[1], ("consumer-starved", Severity::Critical), "{findings:?}");
    for number in 0..20 {
        add(&mut scene, 2_000 + number, 14 * SECOND + number * 10 * MS, QUICK.queued_for(4 * SECOND));
    }
    update_until(&mut scene, &mut findings, 19 * SECOND, 21 * SECOND);
    let found = kinds_and_severities(&findings);
    assert_eq!(found[0], ("queued", Severity::Warning));
    assert!(found.contains(&("consumer-starved", Severity::Warning)), "{found:?}");
}

#[test]
fn a_starved_tokenizer_says_its_share_of_the_requests_that_it_held_up() {
    let mut scene = scene();
    let mut findings = Findings::default();
    starve_tokenizer(&mut scene, &mut findings, 10 * SECOND);
    update_until(&mut scene, &mut findings, 17_500 * MS, 18 * SECOND);
    // Another one waits long after it.
    add_gap(&mut scene, 3, 40 * SECOND, 2 * SECOND);
    for _ in 0..2 {
        update_until(&mut scene, &mut findings, 43 * SECOND, 44 * SECOND);
    }
    let list = findings.sorted_worst_first();
    let starved = list.iter().find(|finding| finding.kind == "consumer-starved").expect("found");
    assert_eq!(starved.verdict.severity, Severity::Critical);
    let summary = &starved.verdict.summary;
    let share = "; 86 % of the TTFT of 1 of 3 requests was spent on the way to the tokenizer";
    assert!(summary.ends_with(share) && summary.matches("TTFT").count() == 1, "{summary}");
    assert_eq!(starved.verdict.evidence["ttft_share_requests"], 1);
}

#[test]
fn a_late_leg_keeps_its_severity_in_a_long_run() {
    let mut scene = scene();
    for number in 0..4_000 {
        add(&mut scene, number, number * 100 * MS, Request { sent: 100 * MS, ..QUICK });
    }
    for number in 4_000..4_010 {
        add(&mut scene, number, number * 100 * MS, QUICK.read_after(2 * SECOND));
    }
    for number in 4_100..8_000 {
        add(&mut scene, number, number * 100 * MS, Request { sent: 100 * MS, ..QUICK });
    }
    scene.tick(900 * SECOND);
    let found = only(scene.check("late-read", 900 * SECOND));
    assert!(found.evidence["ttft_share_of_all"].as_f64() < Some(0.05), "{found:?}");
    assert_eq!(found.severity, Severity::Warning);
}

#[test]
fn findings_of_one_severity_are_ordered_by_the_ttft_that_they_explain() {
    let order = |reads: u64, queued: u64| {
        let mut scene = scene();
        for number in 0..reads + queued {
            let request = if number < reads { QUICK.read_after(2 * SECOND) } else { QUICK.queued_for(2 * SECOND) };
            add(&mut scene, number, number * 10 * MS, request);
        }
        scene.tick(6 * SECOND);
        let mut findings = Findings::default();
        findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(6 * SECOND)));
        let sorted = findings.sorted_worst_first();
        let late = sorted.iter().filter(|finding| ["late-read", "queued"].contains(&finding.kind));
        late.map(|finding| (finding.kind, finding.verdict.severity)).collect::<Vec<_>>()
    };
    let [read, queued] = [("late-read", Severity::Warning), ("queued", Severity::Warning)];
    assert_eq!(order(5, 20), [queued, read]);
    assert_eq!(order(20, 5), [read, queued]);
}
