//! Findings about requests that wait before their first token.

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::Severity;
use crate::event::{
    Arrival, ArrivalTimes, Capabilities, Chunk, ConnectionTimes, CpuSample, Dispatch, DispatchKind, DispatchedRequest,
    EngineTimes, Hop, Missed, MissedCause, Received, RequestTimes, What,
};
use crate::id::{FrameId, HopId, ThreadId};

const REQUESTS: HopId = HopId(7);

const KINDS: [&str; 7] =
    ["late-read", "late-dispatch", "late-receive", "late-intake", "queued", "slow-prefill", "slow-first-token"];

/// When a request of a scene was where.
#[derive(Clone, Copy)]
struct Moments {
    arrived: u64,
    read: u64,
    dispatched: u64,
    received: u64,
    queued: u64,
    batch_entered: u64,
    sent: u64,
}

/// Adds a request that arrives at `start`, with these moments after it and this many tokens of its prompt not in the cache.
fn add_request(scene: &mut Scene, number: u64, start: u64, moments: Moments, tokens: Option<u32>) {
    let at = |ns: u64| MonoNs(start + ns);
    let times = ArrivalTimes { arrived: at(moments.arrived), read: at(moments.read), connection: None };
    add_request_with(scene, number, start, moments, tokens, times);
}

/// The same with these times of its arrival.
fn add_request_with(
    scene: &mut Scene,
    number: u64,
    start: u64,
    moments: Moments,
    tokens: Option<u32>,
    arrival: ArrivalTimes,
) {
    let rid = number.to_string();
    let at = |ns: u64| start + ns;
    let id = FrameId::new(REQUESTS, 0, number);
    let request = Some(DispatchedRequest { prompt_tokens: tokens.map(|n| n + 64), ..DispatchedRequest::new(&rid) });
    let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
    scene.apply(at(moments.dispatched), What::Dispatched(dispatch));
    scene.apply(at(moments.received), What::Received(Received::new(id)));
    scene.send_chunk(0, at(moments.sent), Chunk { cached_tokens: Some(64), ..Chunk::counted(&rid, 1, 1) });
    let times = EngineTimes {
        queued: Some(MonoNs(at(moments.queued))),
        batch_entered: Some(MonoNs(at(moments.batch_entered))),
        prefill_finished: None,
    };
    scene.apply(at(moments.sent), What::RequestTimes(RequestTimes { rid: &rid, times, impossible: 0 }));
    scene.apply(at(moments.sent), What::Arrived(Arrival { rid: &rid, times: Ok(arrival) }));
    let last = scene.next[0] - 1;
    scene.receive(at(moments.sent) + MS, last);
    scene.deliver(at(moments.sent) + 2 * MS, &rid, 1, 1, false);
}

fn empty_scene() -> Scene {
    let mut scene = Scene::delivering();
    scene.hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    scene.tick(0);
    scene
}

/// Requests, 10 ms after the other, each with these moments after its arrival.
fn scene_of(requests: u64, moments: Moments) -> Scene {
    let mut scene = empty_scene();
    for number in 0..requests {
        add_request(&mut scene, number, 100 * MS + number * 10 * MS, moments, None);
    }
    scene.tick(100 * MS + requests * 10 * MS + moments.sent);
    scene
}

const QUICK: Moments = Moments {
    arrived: 0,
    read: MS,
    dispatched: 2 * MS,
    received: 3 * MS,
    queued: 4 * MS,
    batch_entered: 5 * MS,
    sent: 15 * MS,
};

#[test]
fn quick_requests_have_no_finding() {
    let scene = scene_of(5, QUICK);
    assert_eq!(scene.ledger.ttft().requests(), 5);
    for kind in KINDS {
        assert!(scene.check(kind, SECOND).is_empty(), "{kind}");
    }
}

#[test]
fn late_reads_on_new_connections_say_how_long_these_waited_to_be_accepted() {
    let mut scene = empty_scene();
    for number in 0..3 {
        let start = 100 * MS + number * 10 * MS;
        let moments = Moments {
            read: 2 * SECOND,
            dispatched: 2 * SECOND + MS,
            received: 2 * SECOND + 2 * MS,
            queued: 2 * SECOND + 3 * MS,
            batch_entered: 2 * SECOND + 4 * MS,
            sent: 2 * SECOND + 5 * MS,
            ..QUICK
        };
        // The third request is on an older connection.
        let accepted = Some(MonoNs(start + 1_900 * MS));
        let connection = (number < 2).then_some(ConnectionTimes { opened: MonoNs(start), accepted });
        let times = ArrivalTimes { arrived: MonoNs(start), read: MonoNs(start + 2 * SECOND), connection };
        add_request_with(&mut scene, number, start, moments, None, times);
    }
    scene.tick(3 * SECOND);
    let found = scene.check("late-read", 4 * SECOND);
    let verdict = &found[0];
    assert!(verdict.summary.contains("2 new connections waited up to 1.900 s to be accepted"), "{}", verdict.summary);
    assert_eq!(verdict.evidence["connections_accepted_late"].as_u64(), Some(2));
    assert_eq!(scene.ledger.new_connections().accept_waits.count(), 2);
}

#[test]
fn each_leg_names_itself() {
    let later = |ns: u64| ns + 2 * SECOND;
    let read = Moments {
        read: later(QUICK.read),
        dispatched: later(QUICK.dispatched),
        received: later(QUICK.received),
        queued: later(QUICK.queued),
        batch_entered: later(QUICK.batch_entered),
        sent: later(QUICK.sent),
        ..QUICK
    };
    let dispatched = Moments { read: QUICK.read, ..read };
    let received = Moments { dispatched: QUICK.dispatched, ..dispatched };
    let intake = Moments { received: QUICK.received, ..received };
    let queued = Moments { queued: QUICK.queued, ..intake };
    let late = [
        (read, "late-read"),
        (dispatched, "late-dispatch"),
        (received, "late-receive"),
        (intake, "late-intake"),
        (queued, "queued"),
    ];
    for (moments, kind) in late {
        let scene = scene_of(3, moments);
        for other in KINDS {
            let found = scene.check(other, 4 * SECOND);
            assert_eq!(found.len(), usize::from(kind == other), "{kind}: {other}");
            if let [verdict] = &*found {
                assert_eq!((verdict.severity, &verdict.evidence["requests_late"]), (Severity::Warning, &3.into()));
                assert!(
                    verdict.summary.starts_with("99 % of the TTFT of 3 of 3 requests was spent "),
                    "{}",
                    verdict.summary
                );
                assert!(verdict.summary.contains(": 1.000 s or more, up to 2.0"), "{}", verdict.summary);
            }
        }
    }
}

/// Few clients that send their requests slowly say nothing about the tokenizer.
#[test]
fn two_late_dispatches_are_information() {
    let dispatched = Moments {
        dispatched: 7 * SECOND,
        received: 7 * SECOND + MS,
        queued: 7 * SECOND + 2 * MS,
        batch_entered: 7 * SECOND + 3 * MS,
        sent: 7 * SECOND + 13 * MS,
        ..QUICK
    };
    for (requests, severity) in [(2, Severity::Info), (3, Severity::Critical)] {
        let found = scene_of(requests, dispatched).check("late-dispatch", 9 * SECOND);
        assert_eq!(found[0].severity, severity, "{requests}");
        assert_eq!(found[0].hop, "tokenizer", "the process in which they waited");
    }
}

/// What the tokenizer's main thread did while a request waited in its socket decides the advice.
#[test]
fn a_late_read_names_the_state_of_the_tokenizer() {
    let late = Moments {
        read: 2_500 * MS,
        dispatched: 2_501 * MS,
        received: 2_502 * MS,
        queued: 2_503 * MS,
        batch_entered: 2_504 * MS,
        sent: 2_514 * MS,
        ..QUICK
    };
    for (shares, state, advice) in [
        (Some([0, 0, 0]), "not running", "it neither ran nor waited for a CPU"),
        (Some([95, 5, 0]), "CPU-bound", "it is CPU-bound"),
        (None, "not sampled", "the tokenizer's event loop is busy or held up"),
    ] {
        let mut scene = empty_scene();
        if let Some(shares) = shares {
            for n in 1..30 {
                scene.cpu(n * 100 * MS, 7, shares);
            }
        }
        add_request(&mut scene, 0, 0, late, None);
        scene.tick(3 * SECOND);
        let found = scene.check("late-read", 3 * SECOND);
        let [verdict] = &*found else { panic!("{found:?}") };
        assert_eq!(verdict.evidence["thread"], state);
        assert!(verdict.advice.as_ref().is_some_and(|found| found.starts_with(advice)), "{verdict:?}");
        assert_eq!(verdict.summary.contains(state), shares.is_some(), "{}", verdict.summary);
    }
}

/// The state of the scheduler while a request waited for it decides the advice.
#[test]
fn a_late_receive_names_the_state_of_the_scheduler() {
    let mut scene = empty_scene();
    let late =
        Moments { received: 2_500 * MS, queued: 2_501 * MS, batch_entered: 2_502 * MS, sent: 2_512 * MS, ..QUICK };
    add_request(&mut scene, 0, 0, QUICK, None);
    let by = Some(ThreadId { pid: 7, tid: 7 });
    for seq in [1, 2] {
        let id = FrameId::new(REQUESTS, 0, seq);
        let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Control, index: 0, request: None };
        scene.apply(seq * 20 * MS, What::Dispatched(dispatch));
        if seq == 1 {
            scene.apply(30 * MS, What::Received(Received { by, ..Received::new(id) }));
        }
    }
    for n in 2..25 {
        scene.cpu(n * 100 * MS, 7, [10, 90, 0]);
    }
    add_request(&mut scene, 3, 0, late, None);
    scene.tick(3 * SECOND);
    let found = scene.check("late-receive", 3 * SECOND);
    assert_eq!(found[0].evidence["thread"], "waiting for a CPU", "{found:?}");
    let state = "; the scheduler's thread that receives them was waiting for a CPU then";
    assert!(found[0].summary.ends_with(state), "{found:?}");
    assert!(found[0].advice.as_ref().is_some_and(|advice| advice.contains("dedicated CPUs")), "{found:?}");
}

/// Adds requests of 200 tokens, 100 ms after the other, and then a last one with these moments and tokens.
fn add_prefills(scene: &mut Scene, usual: u64, last: Moments, tokens: Option<u32>) {
    for number in 0..usual {
        add_request(scene, number, number * 100 * MS, QUICK, Some(200));
    }
    add_request(scene, usual, usual * 100 * MS, last, tokens);
    scene.tick(60 * SECOND);
}

fn scene_of_prefills(usual: u64, last: Moments, tokens: Option<u32>) -> Scene {
    let mut scene = empty_scene();
    add_prefills(&mut scene, usual, last, tokens);
    scene
}

const SLOW_PREFILL: Moments = Moments { sent: QUICK.batch_entered + 3 * SECOND, ..QUICK };

#[test]
fn a_prefill_that_takes_long_beside_others_is_slow() {
    let found = scene_of_prefills(30, SLOW_PREFILL, Some(220)).check("slow-prefill", 60 * SECOND);
    assert_eq!((found[0].severity, &*found[0].rid), (Severity::Warning, "30"));
    let summary = "100 % of the TTFT of 1 of 31 requests was spent in slow prefills: 1.000 s or more, up to 3.000 s; usual: 10.0 ms for 220 tokens";
    assert_eq!(found[0].summary, summary);
}

#[test]
fn a_prefill_without_comparable_others_is_not_slow() {
    for (usual, tokens) in [(10, Some(220)), (30, Some(10_000)), (30, None)] {
        let scene = scene_of_prefills(usual, SLOW_PREFILL, tokens);
        assert!(scene.check("slow-prefill", 60 * SECOND).is_empty(), "{usual} {tokens:?}");
    }
}

/// Adds samples of the scheduler's thread, which receives a request first, every 100 ms: it runs half of the time, and not at all from
/// `stopped_at` on for three seconds.
fn add_scheduler_samples(scene: &mut Scene, stopped_at: u64) {
    let scheduler = ThreadId { pid: 7, tid: 7 };
    let id = FrameId::new(REQUESTS, 0, 900);
    let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Control, index: 0, request: None };
    scene.apply(0, What::Dispatched(dispatch));
    scene.apply(MS, What::Received(Received { by: Some(scheduler), ..Received::new(id) }));
    for number in 1..=90 {
        let at = number * 100 * MS;
        let is_stopped = (stopped_at..stopped_at + 3 * SECOND).contains(&(at - 50 * MS));
        let sample = CpuSample::new(scheduler, "scheduler", 100 * MS, if is_stopped { 0 } else { 50 * MS });
        scene.apply(at, What::Cpu(CpuSample { wait_ns: Some(0), ..sample }));
    }
}

/// The slow prefill begins 3 s after the first request. Only a stop at that time explains it.
#[test]
fn a_stopped_scheduler_is_no_slow_prefill() {
    for (stopped_at, findings) in [(3 * SECOND, 0), (6 * SECOND, 1)] {
        let mut scene = empty_scene();
        add_scheduler_samples(&mut scene, stopped_at);
        add_prefills(&mut scene, 30, SLOW_PREFILL, Some(220));
        assert_eq!(scene.check("slow-prefill", 60 * SECOND).len(), findings, "stopped at {stopped_at}");
    }
}

/// A short request waits for the chunks of a long prompt that is in a prefill at the same time.
#[test]
fn a_long_prompt_in_the_batch_explains_a_long_prefill() {
    let mut scene = empty_scene();
    for number in 0..30 {
        add_request(&mut scene, number, number * 100 * MS, QUICK, Some(200));
    }
    let long = Moments { sent: SLOW_PREFILL.sent + SECOND, ..SLOW_PREFILL };
    // The scheduler dispatches the long one first, and its first token comes after that of the short one.
    let id = FrameId::new(REQUESTS, 0, 31);
    let request = Some(DispatchedRequest { prompt_tokens: Some(50_000), ..DispatchedRequest::new("31") });
    let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
    scene.apply(4 * SECOND, What::Dispatched(dispatch));
    add_request(&mut scene, 30, 4 * SECOND + MS, SLOW_PREFILL, Some(200));
    scene.tick(8 * SECOND);
    assert!(scene.check("slow-prefill", 8 * SECOND).is_empty(), "the long one is not known yet");
    add_request(&mut scene, 31, 4 * SECOND, long, Some(50_000));
    scene.tick(60 * SECOND);
    assert!(scene.check("slow-prefill", 60 * SECOND).is_empty());
}

/// Short requests that enter with the last chunk of a long prompt are quick although all of its work counts as beside them.
#[test]
fn short_requests_beside_long_prompts_do_not_make_a_long_prompt_slow() {
    let mut scene = empty_scene();
    let long = Moments { sent: QUICK.batch_entered + 2 * SECOND, ..QUICK };
    let short = Moments { sent: QUICK.batch_entered + 200 * MS, ..QUICK };
    for number in 0..30 {
        let start = number * 3 * SECOND;
        add_request(&mut scene, 2 * number, start, long, Some(40_000));
        let end = start + long.sent;
        add_request(&mut scene, 2 * number + 1, end - short.sent, short, Some(200));
    }
    scene.tick(200 * SECOND);
    let found = scene.check("slow-prefill", 200 * SECOND);
    assert!(found.is_empty(), "{found:?}");
}

/// A second engine with the name may be slower by design.
#[test]
fn prefills_are_not_compared_with_those_of_the_engine_before() {
    let mut scene = scene_of_prefills(30, QUICK, Some(200));
    scene.apply(61 * SECOND, What::Missed(Missed::new(None, 0, MissedCause::Ended)));
    add_request(&mut scene, 31, 62 * SECOND, SLOW_PREFILL, Some(200));
    scene.tick(130 * SECOND);
    assert!(scene.check("slow-prefill", 130 * SECOND).is_empty());
}

#[test]
fn a_missed_message_makes_prefills_incomparable() {
    let mut scene = scene_of_prefills(30, QUICK, Some(200));
    add_request(&mut scene, 31, 61 * SECOND, SLOW_PREFILL, Some(200));
    scene.lose(1);
    scene.tick(70 * SECOND);
    assert!(scene.check("slow-prefill", 70 * SECOND).is_empty());
}

/// A queue of a second before a prefill of nine is not what makes the request late.
#[test]
fn a_minor_leg_is_information() {
    let moments = Moments { batch_entered: QUICK.queued + SECOND, sent: 10 * SECOND, ..QUICK };
    let found = scene_of(3, moments).check("queued", 12 * SECOND);
    assert_eq!(found[0].severity, Severity::Info);
}
