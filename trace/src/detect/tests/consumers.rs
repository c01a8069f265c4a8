//! Findings about the threads that receive frames.

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::attribution::ThreadState;
use crate::detect::{DetectContext, Severity, Verdict};
use crate::engine::example;
use crate::event::{
    Away, AwayState, Capabilities, CpuSample, Dispatch, DispatchKind, DispatchedRequest, Hop, LoggedState, Received,
    Stage, What,
};
use crate::id::{FrameId, HopId, ThreadId};
use crate::ledger::Limits;

#[test]
fn only_a_thread_that_computes_while_frames_wait_is_cpu_bound() {
    let mut scene = Scene::skip_path();
    for n in 0..20 {
        scene.send(n * 100 * MS, &[]);
        scene.receive_by(n * 100 * MS + MS, n, 7);
        scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
    }
    assert!(scene.check("consumer-cpu-bound", 2 * SECOND).is_empty(), "no frame is queued");
    for n in 20..60 {
        scene.send(n * 100 * MS, &[]);
        scene.cpu((n + 1) * 100 * MS, 7, [95, 3, 0]);
        scene.kernel((n + 1) * 100 * MS, 0);
    }
    let found = scene.check("consumer-cpu-bound", 6 * SECOND);
    assert_eq!(found[0].evidence["on_cpu"], 0.95);
    assert_eq!(found[0].evidence["waiting_frames"], 40);
    assert_eq!(&*found[0].hop, "scheduler->tokenizer");
    assert!(found[0].summary.contains("libzmq's own queue"), "{}", found[0].summary);
}

#[test]
fn the_share_of_http_writes_is_reported_where_stacks_show_it() {
    let late_with = |writing: u32, file| {
        let mut scene = Scene::skip_path();
        for n in 1..60 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu(n * 100 * MS, 7, [97, 3, 0]);
            if n == 40 {
                scene.receive_by(n * 100 * MS, 0, 7);
            }
            if n % 5 == 0 {
                scene.stack(n * 100 * MS, ("RequestResponseCycle.send", file), writing);
                scene.stack(
                    n * 100 * MS,
                    ("TokenizerManager._handle", "engine/managers/tokenizer_manager.py"),
                    50 - writing,
                );
            }
        }
        scene.check("consumer-cpu-bound", 6 * SECOND).remove(0)
    };
    let uvicorn = "uvicorn/protocols/http/httptools_impl.py";
    let found = late_with(30, uvicorn);
    assert_eq!(found.evidence["http_writes"], 0.6);
    assert!(found.summary.contains("60 % of its stack samples were writing HTTP responses"), "{}", found.summary);
    let advice = found.advice.expect("every verdict has advice");
    assert!(advice.contains("writing HTTP responses"), "{advice}");
    let found = late_with(10, uvicorn);
    assert_eq!(found.evidence["http_writes"], 0.2);
    assert!(!found.advice.expect("advice").contains("HTTP"));
    let found = late_with(30, "another/client.py");
    assert_eq!(found.evidence["http_writes"], 0.0);
    assert!(!found.summary.contains("HTTP"), "{}", found.summary);
}

#[test]
fn a_consumer_without_observed_receives_is_judged_only_if_unique() {
    let mut scene = Scene::skip_path();
    for n in 1..40 {
        scene.send(n * 100 * MS, &[]);
        scene.cpu(n * 100 * MS, 7, [97, 3, 0]);
        scene.cpu(n * 100 * MS, 9, [1, 0, 0]);
    }
    let found = scene.check("consumer-cpu-bound", 4 * SECOND);
    assert_eq!((found.len(), &found[0].evidence["tid"]), (1, &7.into()));
}

#[test]
fn a_sleeping_or_starved_thread_is_not_cpu_bound() {
    for shares in [[10, 5, 0], [40, 55, 0]] {
        let scene = Scene::late_consumer(shares);
        assert!(scene.check("consumer-cpu-bound", 4 * SECOND).is_empty());
    }
}

fn stage(rid: &'static str, name: &'static str) -> What<'static> {
    What::Stage(Stage::new(rid, name, ""))
}

/// A log of 850 waiting requests, with this CPU use and this wait for a message.
fn verdicts(cpu: f64, recv_wait_ns: u64, now: u64) -> Vec<Verdict> {
    let mut scene = Scene::empty(example::ENGINES, Limits::default());
    let logged = |what| What::LoggedState(LoggedState { by: "tokenizer", ..what });
    for (at, what) in [
        (0, stage("a", "first_output_stream")),
        (0, stage("b", "first_output_stream")),
        (
            8 * SECOND,
            logged(LoggedState {
                states: Some(850),
                rids: Some(15),
                recv_wait_ns: Some(recv_wait_ns),
                more: Some(true),
                ..LoggedState::default()
            }),
        ),
        (9 * SECOND, logged(LoggedState { states: Some(1_024), cpu: Some(cpu), ..LoggedState::default() })),
        (9 * SECOND, stage("a", "tokenizer_first_token")),
    ] {
        scene.apply(at, what);
    }
    scene.check("consumer-cpu-logged", now)
}

#[test]
fn a_busy_process_with_queued_work_is_cpu_bound() {
    let found = verdicts(2.25, 200_000, 10 * SECOND);
    assert_eq!(found[0].severity, Severity::Critical);
    assert!(
        found[0].summary.contains("225 % of a core with 1,024 request states and 1 request waiting for"),
        "{}",
        found[0].summary
    );
    assert!(found[0].summary.ends_with("it was CPU-bound, not I/O-bound"));
    assert_eq!(found[0].evidence["by"], "the engine's log");
    assert_eq!(found[0].evidence["waiting_requests"], 1);
}

#[test]
fn idle_or_waiting_processes_and_stale_log_lines_are_not_reported() {
    assert!(verdicts(0.3, 200_000, 10 * SECOND).is_empty());
    assert!(verdicts(2.25, 40_000_000, 10 * SECOND).is_empty());
    assert!(verdicts(2.25, 200_000, 60 * SECOND).is_empty());
}

/// Scene in which a tokenizer thread is late for four seconds, with these CPU shares, this state and `frames` waiting frames.
fn late_with(frames: u64, shares: [u64; 3], state: AwayState, place: &'static str) -> Scene {
    let mut scene = Scene::skip_path();
    scene.send(0, &[]);
    scene.receive_by(MS, 0, 7);
    for n in 1..40 {
        if n <= frames {
            scene.send(n * 100 * MS, &[]);
        }
        scene.away(n * 100 * MS, 7, shares, (state, place));
    }
    scene
}

/// Verdicts of the four states, with their kinds.
fn away(scene: &Scene) -> Vec<(&'static str, Verdict)> {
    let kinds = ["consumer-stopped", "consumer-frozen", "consumer-blocked", "consumer-asleep"];
    kinds.into_iter().flat_map(|kind| scene.check(kind, 4 * SECOND).into_iter().map(move |v| (kind, v))).collect()
}

#[test]
fn each_off_cpu_state_has_its_own_finding_and_fix() {
    use AwayState::{Blocked, Frozen, Polling, Stopped, Traced};
    for (state, place, kind, does, fix) in [
        (Stopped, "", "stopped", "stopped by a signal", "kill -CONT"),
        (Traced, "", "stopped", "stopped by a debugger", "detach"),
        (Frozen, "", "frozen", "frozen cgroup", "cgroup.freeze"),
        (Blocked, "fsync", "blocked", "blocked in fsync", "disk"),
        (Polling, "epoll_wait", "asleep", "(epoll_wait)", "py-spy dump"),
    ] {
        let found = away(&late_with(39, [1, 1, 0], state, place));
        let [(found_kind, verdict)] = &*found else {
            panic!("{state:?}: {found:?}");
        };
        assert_eq!(found_kind.strip_prefix("consumer-"), Some(kind), "{state:?}");
        assert!(verdict.summary.contains(does), "{}", verdict.summary);
        let advice = verdict.advice.as_deref().unwrap();
        assert!(advice.contains(fix), "{advice}");
        assert_eq!(verdict.evidence["away"], state.as_str());
    }
}

#[test]
fn a_stopped_thread_is_not_reported_as_starved() {
    let scene = late_with(39, [20, 30, 0], AwayState::Stopped, "");
    assert!(scene.check("consumer-starved", 4 * SECOND).is_empty());
    let scene = late_with(39, [20, 60, 0], AwayState::Polling, "epoll_wait");
    assert_eq!(scene.check("consumer-starved", 4 * SECOND).len(), 1);
    assert!(away(&scene).is_empty());
}

#[test]
fn an_idle_thread_is_not_blamed_for_a_frame_with_an_unobserved_receive() {
    for (state, place) in [(AwayState::Polling, "epoll_wait"), (AwayState::Blocked, "futex")] {
        assert!(away(&late_with(1, [1, 0, 0], state, place)).is_empty());
    }
    let stopped = away(&late_with(1, [1, 0, 0], AwayState::Stopped, ""));
    assert_eq!(stopped[0].0, "consumer-stopped", "a stopped thread is always reported");
}

#[test]
fn cpu_wait_is_starvation_unless_caused_by_a_quota() {
    let late_with = |shares| Scene::late_consumer(shares).check("consumer-starved", 4 * SECOND);
    assert_eq!(late_with([40, 55, 0])[0].evidence["run_wait"], 0.55);
    assert!(late_with([90, 10, 0]).is_empty());
    assert!(late_with([40, 55, 80]).is_empty(), "all of the wait was throttling");
    assert!(late_with([18, 77, 51]).is_empty(), "most of the wait was throttling");
}

#[test]
fn a_consumer_that_receives_nothing_is_held_by_the_longer_of_its_work_and_its_waits_for_a_cpu() {
    let busy = Scene::late_consumer([65, 35, 0]);
    assert!(busy.check("consumer-starved", 4 * SECOND).is_empty());
    let found = busy.check("consumer-cpu-bound", 4 * SECOND);
    assert!(found[0].summary.contains("on CPU 65 % of the time"), "{}", found[0].summary);
    assert!(found[0].summary.contains("(35 % waiting for a CPU)"), "{}", found[0].summary);

    // It received a frame meanwhile: with a CPU of its own, it may have kept up.
    let mut slow = Scene::late_consumer([65, 35, 0]);
    slow.receive_by(3_950 * MS, 1, 7);
    slow.send(3_960 * MS, &[]);
    assert_eq!(slow.check("consumer-starved", 4 * SECOND).len(), 1);
    assert!(slow.check("consumer-cpu-bound", 4 * SECOND).is_empty());
}

#[test]
fn throttling_is_reported_while_the_thread_is_runnable() {
    let late_with = |shares| Scene::late_consumer(shares).check("consumer-throttled", 4 * SECOND);
    assert_eq!(late_with([30, 65, 60])[0].evidence["throttled"], 0.6);
    assert!(late_with([2, 1, 90]).is_empty(), "other threads of its cgroup were throttled; it slept");
    assert!(late_with([95, 3, 0]).is_empty());
}

#[test]
fn a_starved_io_thread_is_reported_when_the_consumer_sleeps() {
    let late_with = |consumer, io| {
        let mut scene = Scene::skip_path();
        scene.send(0, &[]);
        scene.receive_by(MS, 0, 7);
        for n in 1..40 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu(n * 100 * MS, 7, consumer);
            scene.cpu(n * 100 * MS, 9, io);
        }
        scene.check("io-thread-starved", 4 * SECOND)
    };
    let found = late_with([10, 10, 0], [5, 90, 0]);
    assert_eq!(found[0].evidence["io_tid"], 9);
    assert_eq!(found[0].evidence["io_run_wait"], 0.9);
    assert!(late_with([95, 3, 0], [5, 90, 0]).is_empty(), "the consumer is busy itself");
    assert!(late_with([10, 10, 0], [5, 2, 0]).is_empty());
}

/// A scheduler in this state for four seconds, for which a request waits.
fn late_scheduler(on_cpu_ms: u64, state: AwayState) -> Scene {
    let scheduler = ThreadId { pid: 9, tid: 9 };
    let mut scene = Scene::skip_path();
    scene.hop(Hop::with_requests(HopId(1), "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    for seq in 0..2 {
        let id = FrameId::new(HopId(1), 0, seq);
        let rid = ["a", "b"][seq as usize];
        let request = Some(DispatchedRequest::new(rid));
        scene
            .apply(seq, What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request }));
        if seq == 0 {
            scene.apply(MS, What::Received(Received { by: Some(scheduler), ..Received::new(id) }));
        }
    }
    for n in 1..40 {
        let away = Some(Away { state, place: "" });
        let sample = CpuSample::new(scheduler, "scheduler", 100 * MS, on_cpu_ms * MS);
        scene.apply(n * 100 * MS, What::Cpu(CpuSample { away, wait_ns: Some(0), ..sample }));
    }
    scene
}

#[test]
fn a_stopped_scheduler_is_named_while_requests_wait_for_it() {
    let scene = late_scheduler(0, AwayState::Stopped);
    let found = scene.check("consumer-stopped", 4 * SECOND);
    assert_eq!((found.len(), &*found[0].hop), (1, "tokenizer->scheduler"));
    assert!(found[0].summary.starts_with("the scheduler thread (9/9) was stopped by a signal"), "{}", found[0].summary);
    assert!(scene.check("consumer-stopped", SECOND / 2).is_empty(), "a step may take as long");
}

/// All its requests were received before it was stopped, and none has a chunk.
#[test]
fn a_stopped_scheduler_is_named_while_it_has_requests_that_it_received() {
    let scene_with = |received: bool| {
        let mut scene = late_scheduler(0, AwayState::Stopped);
        if received {
            scene.apply(2 * MS, What::Received(Received::new(FrameId::new(HopId(1), 0, 1))));
        }
        scene
    };
    let found = scene_with(true).check("consumer-stopped", 4 * SECOND);
    assert_eq!((found.len(), &*found[0].hop), (1, "tokenizer->scheduler"), "{found:?}");
    let expected = "the scheduler thread (9/9) was stopped by a signal for 3.900 s while it had 2 requests";
    assert!(found[0].summary.starts_with(expected), "{}", found[0].summary);
    let found = scene_with(false).check("consumer-stopped", 4 * SECOND);
    assert_eq!(found.len(), 1, "frames that wait are named, and nothing twice: {found:?}");
}

#[test]
fn a_scheduler_that_works_is_not_accused_of_requests_that_wait() {
    for on_cpu in [99, 1] {
        let scene = late_scheduler(on_cpu, AwayState::Blocked);
        for kind in ["consumer-cpu-bound", "consumer-blocked", "consumer-asleep", "io-thread-starved"] {
            assert!(scene.check(kind, 4 * SECOND).is_empty(), "{kind}");
        }
    }
}

/// A path and a finding about one receiver must not contradict each other: a thread that runs for most of the time is not "not running".
#[test]
fn a_receiver_that_runs_for_a_part_of_the_time_is_not_called_not_running() {
    let state_of = |shares: [u64; 3]| {
        let scene = Scene::late_consumer(shares);
        let attribution = DetectContext::new(&scene.ledger, MonoNs(4 * SECOND)).attribution;
        attribution.legs[0].thread
    };
    assert_eq!(state_of([75, 20, 0]), ThreadState::PartlyRunning);
    assert_eq!(state_of([75, 25, 0]), ThreadState::Starved);
    assert_eq!(state_of([40, 15, 0]), ThreadState::PartlyRunning);
    assert_eq!(state_of([10, 5, 0]), ThreadState::Waiting);
}
