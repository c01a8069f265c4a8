//! Findings about tokens that wait, and about uneven load.

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::attribution::mean_busy_share;
use crate::detect::late::add_busiest_server_thread;
use crate::detect::{DetectContext, Findings, Severity, Verdict};
use crate::engine::{Engines, Facts};
use crate::event::{Capabilities, CpuSample, Delivery, FrontendWait, PollUse, Response, SendWait, ThreadPart, What};
use crate::id::{HopId, ThreadId};
use crate::ledger::Limits;

/// A tokenizer that writes to its clients is processing no frame, but it is busy: its time outside the poll counts.
#[test]
fn time_away_from_the_poll_is_busy_time() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[]);
    scene.receive_by(MS, 0, 7);
    let busy_of = |scene: &Scene| mean_busy_share(&scene.ledger, scene.ledger.hops().iter(), SECOND);
    assert_eq!(busy_of(&scene), Some(0.0));
    let sample = CpuSample {
        name: "python3",
        wait_ns: Some(0),
        poll: Some(PollUse { interval_ns: SECOND, polled_ns: 690 * MS, wakeups: 9 }),
        ..CpuSample::new(ThreadId { pid: 7, tid: 7 }, "tokenizer", SECOND, 300 * MS)
    };
    scene.apply(SECOND, What::Cpu(sample));
    assert_eq!(busy_of(&scene), Some(0.31));
    let of_longer_run = mean_busy_share(&scene.ledger, scene.ledger.hops().iter(), 4 * SECOND);
    assert_eq!(of_longer_run, Some(0.31 / 4.0), "of the run, although the poll was sampled for a part of it");
}

#[test]
fn gap_severity_follows_its_length_and_ongoing_waits_count() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.receive(500 * MS, 0);
    assert!(scene.check("first-token-gap", SECOND).is_empty());
    scene.send(SECOND, &[("b", 1, 1)]);
    let waiting = scene.check("first-token-gap", 3 * SECOND);
    assert_eq!((waiting[0].severity, &*waiting[0].rid), (Severity::Warning, "b"));
    scene.receive(8 * SECOND, 1);
    let late = scene.check("first-token-gap", 8 * SECOND);
    assert_eq!(late[0].severity, Severity::Critical);
    assert_eq!(late[0].evidence["requests_above_warning"], 1);
}

#[test]
fn only_a_growing_backlog_is_reported() {
    let mut scene = Scene::skip_path();
    for second in 0..5 {
        for n in 0..30 {
            scene.send(second * SECOND + n, &[]);
        }
        scene.tick(second * SECOND + 100);
    }
    let found = scene.check("backlog", 5 * SECOND);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(&*found[0].hop, "scheduler->tokenizer");
    let mut constant = Scene::skip_path();
    for n in 0..150 {
        constant.send(n, &[]);
    }
    for second in 0..70 {
        constant.tick(second * SECOND + 200);
    }
    assert!(constant.check("backlog", 70 * SECOND).is_empty(), "it did not grow while it was observed");
}

#[test]
fn a_backlog_begins_when_it_began_to_grow_and_keeps_its_peak() {
    let mut scene = Scene::skip_path();
    for tenth in 0..20 {
        scene.tick(tenth * SECOND / 10);
    }
    // The first frame is sent after two seconds, one more every 20 ms, and each tenth is received.
    let mut received = 0;
    for n in 0..250 {
        let at = 2_010 * MS + n * 20 * MS;
        scene.send(at, &[]);
        if n % 10 == 9 {
            scene.receive(at + 1, received);
            received += 1;
        }
        if n % 5 == 4 {
            scene.tick(at + 2);
        }
    }
    let now = 2_010 * MS + 249 * 20 * MS + 2;
    let growing = scene.check("backlog", now).remove(0);
    assert_eq!(growing.since, Some(MonoNs(1_900 * MS)), "the last tick without a frame");
    assert_eq!(growing.evidence["backlog_frames"], 226);
    assert!(
        growing.summary.starts_with("up to 226 frames waited on scheduler->tokenizer, grown by 226 frames in 5.090 s;")
    );
    // Most of them are received.
    for seq in received..received + 150 {
        scene.receive(now + seq, seq);
    }
    scene.tick(now + SECOND);
    let drained = scene.check("backlog", now + SECOND).remove(0);
    assert_eq!((drained.since, &drained.evidence["backlog_frames"]), (growing.since, &226.into()));
    let group = &scene.ledger.groups()[0];
    assert_eq!((group.backlog, group.backlog_max), (75, 226), "the peak is that of the hop");
}

#[test]
fn a_backlog_that_grows_no_more_lasts_until_it_is_received() {
    let mut scene = Scene::skip_path();
    let mut findings = Findings::default();
    let mut end_at = |scene: &Scene, second: u64| {
        findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(second * SECOND)));
        findings.sorted_worst_first().iter().find(|finding| finding.kind == "backlog").map(|finding| finding.ended_at())
    };
    for second in 0..5 {
        for n in 0..30 {
            scene.send(second * SECOND + n, &[]);
        }
        scene.tick(second * SECOND + 100);
    }
    assert_eq!(end_at(&scene, 5), Some(None));
    scene.receive(5 * SECOND, 0);
    scene.tick(6 * SECOND);
    assert_eq!(end_at(&scene, 6), Some(None), "149 frames wait");
    for seq in 1..100 {
        scene.receive(7 * SECOND, seq);
    }
    scene.tick(7 * SECOND);
    assert_eq!(end_at(&scene, 7), Some(Some(MonoNs(6 * SECOND))));
    scene.tick(8 * SECOND);
    assert_eq!(end_at(&scene, 8), Some(Some(MonoNs(6 * SECOND))), "what is left does not begin it again");
}

#[test]
fn a_short_queue_spike_is_not_a_backlog() {
    let mut scene = Scene::skip_path();
    let mut seq = 0;
    for second in 0..5_u64 {
        for _ in 0..90 + second {
            scene.send(second * SECOND, &[]);
        }
        scene.tick(second * SECOND + 100);
        assert!(scene.check("backlog", second * SECOND + 100).is_empty());
        for _ in 0..90 + second {
            scene.receive(second * SECOND + MS, seq);
            seq += 1;
        }
    }
}

/// A loop that polls without sleeping never ends its wakeup, but it waits for each frame.
#[test]
fn a_receiver_that_polls_without_sleeping_receives_no_burst() {
    let mut scene = Scene::skip_path();
    for seq in 0..40 {
        scene.send(seq * 10 * MS, &[]);
        scene.receive_in_wakeup(seq * 10 * MS + MS, seq, 7);
    }
    assert!(scene.check("burst", SECOND).is_empty());
    assert_eq!(scene.ledger.hops()[0].counts.wakeup_frames_max, 1);
    assert_eq!(scene.ledger.groups()[0].wakeups.max(), Some(1));
}

/// Frames sent every 100 ms, each received 400 ms after the one before, and processed for `processed_ms`.
fn scene_with_late_frames(chunks: &[(&str, u32, u32)], processed_ms: Option<u64>) -> Scene {
    let mut scene = Scene::skip_path();
    for seq in 0..10 {
        scene.send(seq * 100 * MS, if seq == 0 { chunks } else { &[] });
    }
    for seq in 0..10 {
        let received = 700 * MS + seq * 400 * MS;
        scene.receive(received, seq);
        if let Some(ms) = processed_ms {
            scene.apply(received + ms * MS, What::Processed(Scene::id(seq)));
        }
    }
    scene
}

#[test]
fn late_frames_are_reported_with_what_their_receiver_did_as_far_as_it_is_known() {
    let summary = |processed_ms| {
        let mut found = scene_with_late_frames(&[], processed_ms).check("late-frames", 5 * SECOND);
        let verdict = found.remove(0);
        assert_eq!((verdict.severity, verdict.since), (Severity::Warning, Some(MonoNs(0))));
        assert_eq!(verdict.evidence["frames"], 10);
        verdict.summary
    };
    let begin = "10 frames waited up to 3.400 s on scheduler->tokenizer: ";
    let states = [
        (Some(390), "the tokenizer processed frames 98 % of that time; its use of a CPU is not observed"),
        (Some(40), "the tokenizer processed frames 10 % of that time; what else it did is not observed"),
    ];
    for (processed_ms, state) in states {
        assert_eq!(summary(processed_ms), format!("{begin}{state}"));
    }
    let mut few = Scene::skip_path();
    few.send(0, &[]);
    few.receive(4 * SECOND, 0);
    assert!(few.check("late-frames", 5 * SECOND).is_empty(), "one frame is no state of a hop");
}

#[test]
fn late_frames_that_another_finding_explains_are_no_finding() {
    let kinds = |chunks| {
        let scene = scene_with_late_frames(chunks, Some(390));
        let mut findings = Findings::default();
        findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(5 * SECOND)));
        findings.sorted_worst_first().iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&[]), ["late-frames"]);
    // Its first token is not received for 700 ms, which is no warning.
    assert_eq!(kinds(&[("a", 1, 1)]), ["late-frames"]);
    let mut scene = scene_with_late_frames(&[], Some(390));
    scene.send(4 * SECOND, &[("a", 1, 1)]);
    scene.receive(6 * SECOND, 10);
    let mut findings = Findings::default();
    findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(7 * SECOND)));
    let kinds: Vec<&str> = findings.sorted_worst_first().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, ["first-token-gap"], "it names this hop at this time");
}

#[test]
fn a_later_finding_does_not_explain_frames_that_were_late_before() {
    let mut scene = scene_with_late_frames(&[], Some(390));
    scene.send(60 * SECOND, &[("a", 1, 1)]);
    scene.receive(62 * SECOND, 10);
    let mut findings = Findings::default();
    findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(63 * SECOND)));
    let kinds: Vec<&str> = findings.sorted_worst_first().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, ["first-token-gap", "late-frames"]);
}

#[test]
fn bursts_are_reported_from_a_minimum_of_frames_per_wakeup() {
    let mut scene = Scene::skip_path();
    for n in 0..7 {
        scene.send(n, &[]);
    }
    for n in 0..7 {
        scene.receive_in_wakeup(10 + n, n, 1);
    }
    assert!(scene.check("burst", 20).is_empty());
    let mut endless = Scene::skip_path();
    for n in 0..8 {
        endless.send(n, &[]);
        endless.receive_in_wakeup(n + 10, n, 1);
    }
    let found = endless.check("burst", 20);
    assert_eq!(found[0].severity, Severity::Info);
    assert_eq!(found[0].evidence.get("frames_p50"), None);
    assert_eq!(found[0].evidence.get("frames_max"), None, "the receiver may never have returned to its poll");
    for n in 7..57 {
        scene.send(n * MS, &[]);
        scene.receive_in_wakeup(n * MS + 1, n, n);
    }
    for n in 57..77 {
        scene.send(n * MS, &[]);
    }
    for n in 57..77 {
        scene.receive_in_wakeup(80 * MS + n, n, 100);
    }
    let found = scene.check("burst", 90 * MS);
    assert_eq!(found[0].severity, Severity::Info);
    assert_eq!(found[0].evidence["frames_max"], 20);
    assert_eq!(found[0].evidence["frames_p50"], 1);
}

fn sent(scene: &mut Scene, at: u64, ns: u64) -> Vec<Verdict> {
    scene.send(at, &[]);
    scene.apply(at, What::SendWait(SendWait { hop: HopId(0), ns }));
    scene.check("late-send", at)
}

#[test]
fn a_clock_that_differs_is_not_a_wait() {
    let mut scene = Scene::skip_path();
    for second in 20..30 {
        assert!(sent(&mut scene, second * SECOND, 12 * SECOND).is_empty());
    }
}

#[test]
fn a_message_that_is_sent_long_after_its_timestamp_is_reported() {
    let mut scene = Scene::skip_path();
    assert!(sent(&mut scene, SECOND, MS).is_empty());
    let found = sent(&mut scene, 20 * SECOND, 12 * SECOND);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(found[0].evidence["send_wait_max_ns"], 12 * SECOND);
}

#[derive(Debug)]
struct Queueing;

impl Facts for Queueing {
    fn queues_after_receive(&self) -> bool {
        true
    }

    fn server_threads(&self) -> &'static [&'static str] {
        &["taker", "shard-"]
    }
}

const QUEUEING: Engines = Engines(&[&Queueing]);

/// One request with a token every 10 ms, each received at once, but the last one this many milliseconds later. They are delivered at these
/// times in milliseconds.
fn received_late(engines: Engines, late: u64, delivered_at: &[(u64, u32)]) -> Vec<Verdict> {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    let deliveries = delivered_at.iter().map(|&(at, tokens)| (at, Delivery::new("a", tokens, None)));
    delivered(engines, capabilities, late, deliveries)
}

fn delivered<'d>(
    engines: Engines,
    capabilities: Capabilities,
    late: u64,
    deliveries: impl IntoIterator<Item = (u64, Delivery<'d>)>,
) -> Vec<Verdict> {
    let mut scene = Scene::empty(engines, Limits::default()).with_hop(capabilities);
    for seq in 0..10 {
        let at = (1 + seq) * 10 * MS;
        scene.send(at, &[("a", 1, seq as u32 + 1)]);
        if capabilities.received {
            scene.receive(at + 1 + if seq == 9 { late * MS } else { 0 }, seq);
        }
    }
    for (at, delivery) in deliveries {
        scene.apply(at * MS, What::Delivered(delivery));
    }
    scene.check("late-delivery", 60 * SECOND)
}

#[test]
fn a_late_first_token_and_a_stall_are_reported() {
    let late = received_late(QUEUEING, 0, &[(20_000, 10)]);
    assert_eq!((late.len(), &*late[0].rid), (1, "a"));
    let summary = &late[0].summary;
    assert!(summary.starts_with("first tokens waited up to 19.990 s in the receiver"), "{summary}");
    let stalled = received_late(QUEUEING, 0, &[(20, 1), (15_020, 9)]);
    let summary = &stalled[0].summary;
    assert!(summary.starts_with("responses stalled for up to 15.000 s"), "{summary}");
}

#[test]
fn a_wait_from_the_send_is_reported_where_receives_are_not_observed() {
    let capabilities = Capabilities::SENT | Capabilities::DELIVERED;
    let late = [(20_000, Delivery::new("a", 10, None))];
    let found = delivered(Engines::default(), capabilities, 0, late);
    let summary = &found[0].summary;
    let expected = "first tokens waited up to 19.990 s between the sender and the client's connection";
    assert!(summary.starts_with(expected), "{summary}");
}

#[test]
fn a_response_with_one_body_waits_for_no_reader() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    let whole = Delivery { finished: true, response: Response::Whole, ..Delivery::new("a", 10, Some(10)) };
    for capabilities in [capabilities, Capabilities::SENT | Capabilities::DELIVERED] {
        assert!(delivered(QUEUEING, capabilities, 0, [(20_000, whole)]).is_empty());
    }
}

#[test]
fn a_stall_that_a_wait_on_the_hop_explains_is_not_reported() {
    assert!(received_late(QUEUEING, 8_000, &[(20, 1), (8_020, 1), (15_020, 8)]).is_empty());
}

#[test]
fn prompt_deliveries_and_engines_without_such_a_queue_are_not_reported() {
    assert!(received_late(QUEUEING, 0, &[(20, 1), (50, 9)]).is_empty());
    assert!(received_late(Engines::default(), 0, &[(20_000, 10)]).is_empty());
}

fn frontend(first_token_ns: Option<u64>, last_token_ns: Option<u64>) -> Vec<Verdict> {
    let mut scene = Scene::skip_path();
    let wait = FrontendWait { rid: "a", first_token_ns, last_token_ns };
    scene.apply(20 * SECOND, What::FrontendWait(wait));
    scene.check("late-frontend", 21 * SECOND)
}

#[test]
fn a_long_wait_is_reported_with_its_request() {
    let found = frontend(Some(110 * SECOND), Some(2 * MS));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(&*found[0].rid, "a");
    assert_eq!(
        found[0].summary,
        "in the frontend, first tokens waited up to 1m50s (median 1m50s, 1 response) after the worker wrote them"
    );
}

#[test]
fn short_and_unknown_waits_are_not_reported() {
    assert!(frontend(Some(900 * MS), None).is_empty());
    assert!(frontend(None, None).is_empty());
}

/// The finding about a wait of 3 s, with these shares of it on a CPU and waiting for one, in percent.
fn busiest(threads: &[(&str, u64, u64)]) -> Verdict {
    let mut scene = Scene::empty(QUEUEING, Limits::default());
    for second in 1..=3 {
        for (tid, &(name, on, wait)) in (1..).zip(threads) {
            let sample = CpuSample {
                name,
                part: ThreadPart::Other,
                wait_ns: Some(wait * SECOND / 100),
                ..CpuSample::new(ThreadId { pid: 1, tid }, "sender", SECOND, on * SECOND / 100)
            };
            scene.apply(second * SECOND, What::Cpu(sample));
        }
    }
    let mut verdict = Verdict { summary: "late".to_owned(), ..Verdict::default() };
    add_busiest_server_thread(&mut verdict, &DetectContext::new(&scene.ledger, MonoNs(3 * SECOND)), 3 * SECOND);
    verdict
}

#[test]
fn the_busiest_thread_of_the_server_is_named() {
    let verdict = busiest(&[("taker", 2, 0), ("shard-0", 10, 1), ("shard-1", 20, 70), ("main", 99, 0)]);
    assert_eq!(
        verdict.summary,
        "late; the server's busiest thread, shard-1, ran 20 % of that time and waited for a CPU 70 %"
    );
    assert_eq!(verdict.evidence["busiest_thread"], serde_json::Value::from("shard-1"));
    let held = busiest(&[("taker", 2, 0), ("shard-0", 1, 1)]);
    assert_eq!(held.summary, "late; no thread of the server ran more than 5 % of that time");
    assert_eq!(busiest(&[("main", 99, 0)]).summary, "late");
}

#[test]
fn an_overloaded_worker_is_reported_and_an_even_pair_is_not() {
    let mut even = Scene::workers(2);
    for n in 0..600 {
        even.send_to((n % 2) as u16, n, &format!("{n}"), 1);
    }
    assert!(even.check("worker-imbalance", SECOND).is_empty());
    let mut uneven = Scene::workers(4);
    for n in 0..1_200 {
        uneven.send_to(u16::from(n % 4 == 0) * (n / 4 % 3 + 1) as u16, n, &format!("{n}"), 1);
    }
    let found = uneven.check("worker-imbalance", SECOND);
    let evidence = &found[0].evidence;
    assert_eq!((found.len(), &evidence["busiest_worker"]), (1, &0.into()));
    assert_eq!(evidence["imbalance"], 3.0);
    assert_eq!(evidence["workers_idle"], 0);
    assert_eq!(found[0].severity, Severity::Warning, "900 frames wait for it");
}

#[test]
fn sockets_with_one_endpoint_count_as_one_receiver() {
    let mut one = Scene::receivers_at(&["ipc:///tmp/tokenizer", "ipc:///tmp/tokenizer"]);
    let mut two = Scene::receivers_at(&["ipc:///tmp/tokenizer", "ipc:///tmp/other"]);
    let mut unknown = Scene::receivers_at(&["", ""]);
    for n in 0..1_200 {
        for scene in [&mut one, &mut two, &mut unknown] {
            scene.send_to(0, n, &format!("{n}"), 1);
        }
    }
    assert!(one.check("worker-imbalance", SECOND).is_empty(), "both sockets send to one receiver");
    for scene in [&mut two, &mut unknown] {
        let found = scene.check("worker-imbalance", SECOND);
        assert_eq!(found[0].evidence["workers"], 2);
        assert_eq!(found[0].evidence["workers_idle"], 1);
    }
    two.send_undecodable(1, 2_000, "truncated");
    assert!(two.check("worker-imbalance", SECOND).is_empty(), "its one frame held no chunk");
    let nameless = &unknown.check("worker-imbalance", SECOND)[0].summary;
    assert!(nameless.starts_with("of the 2 receivers on "), "{nameless}");
}

#[test]
fn a_backlog_names_the_requests_whose_frames_waited() {
    let mut scene = Scene::skip_path();
    for tenth in 0..50 {
        scene.tick(tenth * 100 * MS);
        // Twenty requests take turns, and each tenth of a second has two frames.
        for part in 0..2 {
            let number = tenth * 2 + part;
            let rid = (number % 20).to_string();
            scene.send(tenth * 100 * MS + part, &[(&rid, 1, 1 + (number / 20) as u32)]);
        }
    }
    let now = 4_950 * MS;
    let requests = |scene: &Scene| scene.check("backlog", now).remove(0).evidence["requests_late"].clone();
    assert_eq!(requests(&scene), 20, "those with waiting frames");
    for seq in 0..20 {
        scene.receive(now, seq);
    }
    assert_eq!(requests(&scene), 20, "and those with received ones, each once");
    let summary = scene.check("backlog", now).remove(0).summary;
    assert!(summary.ends_with("; 20 requests waited 250.0 ms or more"), "{summary}");
}
