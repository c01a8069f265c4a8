//! Bottleneck detection in several topologies: the headline names the slow hop, the slow worker and its thread's state.
//! No other hop is blamed.

use crate::engine;
use outputs::report::{FindingLine, Report};
use trace::clock::MonoNs;
use trace::detect::Severity;
use trace::engine::{Mode, Waiter};
use trace::event::{
    Away, AwayState, Capabilities, Chunk, CpuSample, Engine, Event, Finish, Frame, Hop, PollUse, QueueSample, Received,
    ThreadPart, What,
};
use trace::{Analysis, FrameId, HopId, ReportInput, ThreadId};

const MS: u64 = 1_000_000;
/// Time between requests of one token each.
const INTERVAL: u64 = 10 * MS;
const QUICK: u64 = MS / 2;
const TRANSIT: u64 = MS / 20;
/// Send time of the first request: a slow receiver of the first hop receives a frame just at the end of the run.
const FIRST: u64 = 5 * INTERVAL / 2 - TRANSIT;
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
const CPU_BOUND: Cause = cause("cpu-bound", Some([97, 2, 0]), None, "it is CPU-bound, not I/O-bound");
const CAUSES: [Cause; 12] = [
    CPU_BOUND,
    cause("starved", Some([40, 55, 0]), None, "dedicated CPUs"),
    cause("throttled", Some([30, 65, 60]), None, "CPU limit"),
    cause("stopped", IDLE, Some((AwayState::Stopped, "")), "kill -CONT"),
    cause("stopped", IDLE, Some((AwayState::Traced, "")), "debugger"),
    cause("stopped", Some([20, 30, 0]), Some((AwayState::Stopped, "")), "kill -CONT"),
    cause("frozen", IDLE, Some((AwayState::Frozen, "")), "cgroup.freeze"),
    cause("blocked", IDLE, Some((AwayState::Blocked, "futex")), "consumer-blocked"),
    cause("asleep", IDLE, Some((AwayState::Polling, "epoll_wait")), "py-spy dump"),
    cause("waiting", IDLE, None, "py-spy dump"),
    cause("waiting", Some([10, 2, 0]), None, "py-spy dump"),
    cause("busy", None, None, "its use of a CPU is not observed"),
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
    let mut arrivals: Vec<(u64, usize)> = (0..RUN / INTERVAL).map(|n| (FIRST + n * INTERVAL, n as usize)).collect();
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
            let received = free[worker].max(sent + TRANSIT);
            free[worker] = received + service;
            all.push(ProcessingStage {
                hop: HopId((first_hop + worker) as u16),
                seq: seqs[worker],
                request,
                sent,
                received,
                // The next frame is received 0.2 ms later at the earliest.
                processed: free[worker] - MS / 5,
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

fn simulate(path: &Path, slow: Option<Slow>) -> Analysis {
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
        while sampled + 100 * MS < at {
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
    sample(&mut analysis, path, slow, RUN);
    analysis.tick(MonoNs(RUN));
    analysis
}

fn announce(analysis: &mut Analysis, path: &Path) {
    let mut apply = |what: What<'_>| analysis.apply(&Event { at: MonoNs(0), what });
    apply(What::Engine(Engine {
        version: Some("0.5.23"),
        mode: Some(Mode::Incremental),
        waiter: Some(Waiter::Merges),
        turnaround: Some(3),
        ..Engine::default()
    }));
    let mut id = 0;
    for (position, &(_, workers)) in path.iter().enumerate() {
        for worker in 0..workers {
            let name = name(path, position);
            let endpoint = format!("ipc:///tmp/{id}");
            let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED;
            apply(What::Hop(Hop {
                endpoint: &endpoint,
                worker: (workers > 1).then_some(worker as u16),
                origin: position == 0,
                last: position + 1 == path.len(),
                ..Hop::new(HopId(id), name.as_str(), capabilities)
            }));
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
            let mut apply = |what| analysis.apply(&Event { at: MonoNs(at), what });
            let busy = cause.is_some_and(|cause| cause.thread == CPU_BOUND.thread);
            let sample = CpuSample {
                name: "python3",
                wait_ns: Some(wait * MS),
                throttled_ns: (throttled > 0).then_some(throttled * MS),
                poll: busy.then_some(PollUse { interval_ns: 100 * MS, polled_ns: MS, wakeups: 0 }),
                away: cause.and_then(|c| c.away),
                ..CpuSample::new(thread(position, worker), role, 100 * MS, on * MS)
            };
            apply(What::Cpu(sample));
            if busy {
                let thread = ThreadId { tid: 9_000, ..sample.thread };
                let part = ThreadPart::Other;
                apply(What::Cpu(CpuSample { thread, part, poll: None, on_ns: 50 * MS, wait_ns: Some(0), ..sample }));
                let queue = QueueSample { hop: &name(path, position), receive_bytes: Some(0), send_bytes: Some(0) };
                apply(What::Queue(queue));
            }
        }
    }
}

fn check(path: &Path, position: usize, worker: Option<usize>, cause: Cause) {
    let slow = Slow { position, worker, cause };
    let hop = name(path, slow.position);
    let case = format!("{hop}, worker {:?}, {}", slow.worker, slow.cause.thread);
    let analysis = simulate(path, Some(slow));
    let findings = analysis.findings();
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
        let expected = ["first-token-gap", "backlog"].contains(&finding.kind)
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
        let analysis = simulate(path, None);
        assert!(analysis.findings().is_empty(), "{:#?}", analysis.findings());
    }
}

/// The report blames the tokenizer's own computation, not its sockets: its receive wait is tiny.
#[test]
fn a_cpu_bound_consumer_is_reported_as_the_bottleneck() {
    let slow = Slow { position: 0, worker: None, cause: CPU_BOUND };
    let report = Report::of(&simulate(PATHS[0], Some(slow)), &ReportInput::for_source("attach"));
    let hop = &report.hops[0];
    assert_eq!(hop.recv_wait_ns.map(|w| w.max), Some(MS / 5), "the thread never waits for a frame");
    assert_eq!(hop.kernel_bytes_max, Some(0));
    // The inbox maximum is over samples; the backlog may peak between two samples.
    assert!(hop.inbox_max_frames.zip(hop.backlog_max_frames).is_some_and(|(inbox, backlog)| inbox + 10 > backlog));
    assert!(hop.backlog_max_frames > Some(300), "{hop:?}");

    let finding = |kind: &str| -> Option<&FindingLine> { report.findings.iter().find(|f| f.kind == kind) };
    let bound = finding("consumer-cpu-bound").expect("the verdict");
    assert_eq!(bound.evidence["on_cpu"].as_f64(), Some(0.97));
    assert_eq!(bound.evidence["process_cpus"].as_f64(), Some(1.47));
    assert!(bound.summary.contains("all waited in libzmq's own queue"), "{}", bound.summary);
    for other in ["consumer-starved", "consumer-throttled", "io-thread-starved"] {
        assert_eq!(finding(other), None);
    }

    let gap = finding("first-token-gap").expect("the symptom");
    let number = |name: &str| gap.evidence[name].as_u64().expect("a number");
    assert!(number("max_ns") > RUN / 2);
    let on_cpu = number("judged_on_cpu_ns") as f64 / number("judged_observed_ns") as f64;
    assert!((on_cpu - 0.97).abs() < 0.001, "{on_cpu}");
    // All of the wait is on the last hop, behind frames being processed.
    assert_eq!(number("worst_upstream_ns"), 0);
    assert!(number("worst_processing_ns") as f64 > 0.98 * number("worst_gap_ns") as f64);

    let tokenizer = &report.cpu.as_ref().expect("sampled")[0];
    assert!(tokenizer.receives && tokenizer.on_cpu.is_some_and(|share| (share - 0.97).abs() < 0.001));
    assert!(tokenizer.away_from_poll.is_some_and(|share| (share - 0.99).abs() < 0.001));
}
