//! Bottleneck detection in several topologies: the headline names the slow hop, the slow worker and its thread's state.
//! No other hop is blamed.

#[path = "common/engine.rs"]
mod engine;

use trace::clock::MonoNs;
use trace::detect::{Finding, Severity};
use trace::engine::{Mode, Waiter};
use trace::event::{
    Away, AwayState, Capabilities, Chunk, CpuSample, Engine, Event, Finish, Frame, Hop, Received, What,
};
use trace::{Analysis, FrameId, HopId, ThreadId};

const MS: u64 = 1_000_000;
/// Time between requests of one token each.
const INTERVAL: u64 = 10 * MS;
const QUICK: u64 = MS / 2;
const RUN: u64 = 6_000 * MS;

/// Receivers on the path, in order: role and number of processes.
type Path = [(&'static str, usize)];

const PATHS: [&Path; 5] = [
    &[("tokenizer", 1)],
    &[("detokenizer", 1), ("tokenizer", 1)],
    &[("detokenizer", 1), ("worker", 4)],
    &[("detokenizer-router", 1), ("detokenizer", 2), ("tokenizer", 1)],
    &[("detokenizer-router", 1), ("detokenizer", 4), ("worker", 4)],
];

/// Cause of a slow process. `shares`: percent of its thread's time on a CPU, runnable and throttled; `None` if not sampled.
#[derive(Clone, Copy)]
struct Cause {
    thread: &'static str,
    shares: Option<[u64; 3]>,
    /// Why its thread is blocked.
    away: Option<Away<'static>>,
    advice: &'static str,
}

const fn cause(
    thread: &'static str,
    shares: Option<[u64; 3]>,
    away: Option<(AwayState, &'static str)>,
    advice: &'static str,
) -> Cause {
    let away = match away {
        Some((state, place)) => Some(Away { state, place }),
        None => None,
    };
    Cause { thread, shares, away, advice }
}

const IDLE: Option<[u64; 3]> = Some([3, 1, 0]);
const CAUSES: [Cause; 11] = [
    cause("cpu-bound", Some([95, 3, 0]), None, "it is CPU-bound, not I/O-bound"),
    cause("starved", Some([40, 55, 0]), None, "dedicated CPUs"),
    cause("throttled", Some([30, 65, 60]), None, "CPU limit"),
    cause("stopped", IDLE, Some((AwayState::Stopped, "")), "kill -CONT"),
    cause("stopped", IDLE, Some((AwayState::Traced, "")), "debugger"),
    cause("stopped", Some([20, 30, 0]), Some((AwayState::Stopped, "")), "kill -CONT"),
    cause("frozen", IDLE, Some((AwayState::Frozen, "")), "cgroup.freeze"),
    cause("blocked", IDLE, Some((AwayState::Blocked, "futex")), "consumer-blocked"),
    cause("asleep", IDLE, Some((AwayState::Polling, "epoll_wait")), "py-spy dump"),
    cause("waiting", IDLE, None, "py-spy dump"),
    cause("busy", None, None, "it is CPU-bound, not I/O-bound"),
];

/// The slow process: its position on the path, one of its workers or all of them, and the cause.
#[derive(Clone, Copy)]
struct Slow {
    position: usize,
    worker: Option<usize>,
    cause: Cause,
}

/// Times of one frame on one hop.
struct ProcessingStage {
    hop: HopId,
    seq: u64,
    request: usize,
    sent: u64,
    received: u64,
    processed: u64,
    by: ThreadId,
}

fn thread(position: usize, worker: usize) -> ThreadId {
    let id = (100 * (position + 1) + worker) as u32;
    ThreadId { pid: id, tid: id }
}

fn name(path: &Path, position: usize) -> String {
    let from = if position == 0 { "scheduler" } else { path[position - 1].0 };
    format!("{from}->{}", path[position].0)
}

/// Times of every frame on every hop. Each process serves one frame at a time.
fn processing_stages(path: &Path, slow: Option<Slow>) -> Vec<ProcessingStage> {
    let mut all = Vec::new();
    let mut arrivals: Vec<(u64, usize)> = (0..RUN / INTERVAL).map(|n| (n * INTERVAL, n as usize)).collect();
    let mut first_hop = 0;
    for (position, &(_, workers)) in path.iter().enumerate() {
        let mut free = vec![0; workers];
        let mut seqs = vec![0; workers];
        let mut next = Vec::new();
        for &(sent, request) in &arrivals {
            let worker = request % workers;
            let is_slow = slow.is_some_and(|s| s.position == position && s.worker.is_none_or(|w| w == worker));
            // 2.5 times the arrival interval of its requests.
            let service = if is_slow { 5 * INTERVAL * workers as u64 / 2 } else { QUICK };
            let received = free[worker].max(sent + MS / 20);
            free[worker] = received + service;
            all.push(ProcessingStage {
                hop: HopId((first_hop + worker) as u16),
                seq: seqs[worker],
                request,
                sent,
                received,
                processed: free[worker],
                by: thread(position, worker),
            });
            seqs[worker] += 1;
            next.push((free[worker], request));
        }
        next.sort_unstable();
        arrivals = next;
        first_hop += workers;
    }
    all
}

fn simulate(path: &Path, slow: Option<Slow>) -> Vec<Finding> {
    let mut analysis = Analysis::new(engine::config());
    announce(&mut analysis, path);
    let rids: Vec<String> = (0..RUN / INTERVAL).map(|n| format!("r{n}")).collect();
    let processing_stages = processing_stages(path, slow);
    // Events in order: 0 a send, 1 a receive, 2 a frame processed.
    let mut steps: Vec<(u64, u8, usize)> = Vec::new();
    for (n, processing_stage) in processing_stages.iter().enumerate() {
        steps.extend([
            (processing_stage.sent, 0, n),
            (processing_stage.received, 1, n),
            (processing_stage.processed, 2, n),
        ]);
    }
    steps.retain(|step| step.0 <= RUN);
    steps.sort_unstable_by_key(|&(at, step, n)| (at, std::cmp::Reverse(step), n));
    let mut sampled = 0;
    for (at, step, n) in steps {
        while sampled + 100 * MS <= at {
            sampled += 100 * MS;
            sample(&mut analysis, path, slow, sampled);
            analysis.tick(MonoNs(sampled));
        }
        let processing_stage = &processing_stages[n];
        let id = FrameId::new(processing_stage.hop, 0, processing_stage.seq);
        let chunks = [chunk(&rids[processing_stage.request])];
        let what = match step {
            0 => What::Sent(Frame::token_ids(id, 300, &chunks)),
            1 => What::Received(Received { by: Some(processing_stage.by), ..Received::new(id) }),
            _ => What::Processed(id),
        };
        analysis.apply(&Event { at: MonoNs(at), what });
    }
    analysis.tick(MonoNs(RUN));
    analysis.findings().into_iter().cloned().collect()
}

fn at_start(what: What<'_>) -> Event<'_> {
    Event { at: MonoNs(0), what }
}

fn announce(analysis: &mut Analysis, path: &Path) {
    analysis.apply(&at_start(What::Engine(Engine {
        version: Some("0.5.23"),
        mode: Some(Mode::Incremental),
        waiter: Some(Waiter::Merges),
        turnaround: Some(3),
        ..Engine::default()
    })));
    let mut id = 0;
    for (position, &(_, workers)) in path.iter().enumerate() {
        for worker in 0..workers {
            let name = name(path, position);
            let endpoint = format!("ipc:///tmp/{id}");
            analysis.apply(&at_start(What::Hop(Hop {
                endpoint: &endpoint,
                worker: (workers > 1).then_some(worker as u16),
                origin: position == 0,
                last: position + 1 == path.len(),
                ..Hop::new(
                    HopId(id),
                    name.as_str(),
                    Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED,
                )
            })));
            id += 1;
        }
    }
}

fn chunk(rid: &str) -> Chunk<'_> {
    Chunk { finish: Some(Finish::Length), ..Chunk::counted(rid, 1, 1) }
}

/// Samples the last 100 ms of every thread, or of none if the slow process is not sampled.
fn sample(analysis: &mut Analysis, path: &Path, slow: Option<Slow>, at: u64) {
    for (position, &(role, workers)) in path.iter().enumerate() {
        for worker in 0..workers {
            let cause =
                slow.filter(|s| s.position == position && s.worker.is_none_or(|w| w == worker)).map(|s| s.cause);
            if slow.is_some_and(|s| s.cause.shares.is_none()) {
                return;
            }
            let [on, wait, throttled] = cause.and_then(|c| c.shares).unwrap_or([4, 1, 0]);
            let what = What::Cpu(CpuSample {
                name: "python3",
                wait_ns: Some(wait * MS),
                throttled_ns: (throttled > 0).then_some(throttled * MS),
                away: cause.and_then(|c| c.away),
                ..CpuSample::new(thread(position, worker), role, 100 * MS, on * MS)
            });
            analysis.apply(&Event { at: MonoNs(at), what });
        }
    }
}

fn check(path: &Path, position: usize, worker: Option<usize>, cause: Cause) {
    let slow = Slow { position, worker, cause };
    let hop = name(path, slow.position);
    let case = format!("{hop}, worker {:?}, {}", slow.worker, slow.cause.thread);
    let findings = simulate(path, Some(slow));
    let gap = findings.iter().find(|f| f.kind == "first-token-gap");
    let gap = gap.unwrap_or_else(|| panic!("{case}: no gap among {findings:#?}"));
    let evidence = |name: &str| gap.verdict.evidence.get(name).and_then(|value| value.as_str());
    assert_eq!(gap.verdict.hop, hop, "{case}: {gap:#?}");
    assert!(gap.verdict.severity >= Severity::Warning, "{case}");
    assert_eq!(evidence("bottleneck"), Some(&*format!("waiting on {hop}")), "{case}");
    assert_eq!(evidence("bottleneck_thread"), Some(slow.cause.thread), "{case}: {gap:#?}");
    let worker = slow.worker.map(|worker| format!("worker {worker}"));
    assert_eq!(evidence("bottleneck_worker"), worker.as_deref(), "{case}");
    let advice = gap.verdict.advice.as_deref().unwrap_or_default();
    assert!(advice.contains(slow.cause.advice), "{case}: {advice}");
    for finding in findings.iter().filter(|f| f.verdict.severity >= Severity::Warning) {
        assert_eq!(finding.verdict.hop, hop, "{case}: {finding:#?}");
        assert!(finding.verdict.advice.is_some(), "{case}: {finding:#?}");
        let expected = ["first-token-gap", "backlog-growing"].contains(&finding.kind)
            || finding.kind.strip_prefix("consumer-") == Some(slow.cause.thread);
        assert!(expected, "{case}: {finding:#?}");
    }
}

#[test]
fn every_slow_process_is_reported_with_its_cause() {
    for path in PATHS {
        for position in 0..path.len() {
            for cause in CAUSES {
                check(path, position, None, cause);
            }
        }
    }
}

#[test]
fn one_slow_worker_of_several_is_reported() {
    for path in PATHS {
        for (position, _) in path.iter().enumerate().filter(|(_, (_, workers))| *workers == 4) {
            for cause in CAUSES {
                check(path, position, Some(2), cause);
            }
        }
    }
}

#[test]
fn a_path_that_keeps_up_has_no_findings() {
    for path in PATHS {
        let findings = simulate(path, None);
        assert!(findings.is_empty(), "{findings:#?}");
    }
}
