//! Time series: columns add up to the totals, stay aligned when slots are halved, and use constant memory.

use outputs::report::{Report, Series};
use trace::clock::Anchor;
use trace::event::{Capabilities, Chunk, CpuSample, Event, Frame, Hop, QueueSample, Received, What};
use trace::ledger::Limits;
use trace::{Analysis, Config, FrameId, HopId, MonoNs, ReportInput, ThreadId};

const MS: u64 = 1_000_000;
const RECEIVER: ThreadId = ThreadId { pid: 41, tid: 41 };

struct Run(Analysis);

impl Run {
    fn new(slots: usize) -> Self {
        let limits = Limits { series_slots: slots, ..Limits::default() };
        let mut run = Self(Analysis::new(Config { limits, ..Config::default() }));
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        run.apply(0, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
        run
    }

    fn apply(&mut self, ms: u64, what: What<'_>) {
        self.0.apply(&Event::new(MonoNs((5_000 + ms) * MS), what));
    }

    /// Sends a frame with the first token of `rid`.
    fn send(&mut self, ms: u64, seq: u64, rid: &str) {
        let chunk = Chunk::counted(rid, 1, 1);
        self.apply(ms, What::Sent(Frame::token_ids(id(seq), 100, &[chunk])));
    }

    fn receive(&mut self, ms: u64, seq: u64) {
        self.apply(ms, What::Received(Received { by: Some(RECEIVER), ..Received::in_wakeup(id(seq), seq / 2) }));
    }

    fn cpu(&mut self, ms: u64, on_ms: u64) {
        self.apply(
            ms,
            What::Cpu(CpuSample {
                name: "python3",
                wait_ns: Some(10 * MS),
                ..CpuSample::new(RECEIVER, "tokenizer", 100 * MS, on_ms * MS)
            }),
        );
    }

    fn report(&self) -> Report {
        Report::of(&self.0, &ReportInput::for_source("attach"))
    }

    fn series(&self) -> Series {
        self.report().series.expect("the run has events")
    }
}

fn id(seq: u64) -> FrameId {
    FrameId::new(HopId(0), 0, seq)
}

#[test]
fn a_slot_contains_only_its_own_events() {
    let mut run = Run::new(600);
    for n in 0..4 {
        run.send(100 + 10 * n, n, &format!("r{n}"));
    }
    run.cpu(200, 80);
    run.apply(900, What::Queue(QueueSample { hop: "scheduler->tokenizer", receive_bytes: Some(77), send_bytes: None }));
    for n in 0..4 {
        run.receive(2_500 + n, n);
    }
    run.cpu(2_600, 40);
    run.0.tick(MonoNs(7_750 * MS));
    let series = run.series();
    assert_eq!((series.slot_ns, series.from_ns, series.to_ns, series.len()), (1_000 * MS, 0, 2_750 * MS, 3));
    assert_eq!(series.tokens.sent, vec![4, 0, 0]);
    assert_eq!(series.tokens.received, Some(vec![0, 0, 4]));
    assert_eq!(series.tokens.delivered, None, "deliveries are not observed");
    assert_eq!(series.requests.begun, vec![4, 0, 0]);
    assert_eq!(series.requests.live, vec![4, 4, 4]);
    let gap = series.gap_ns.expect("gaps are observed");
    assert_eq!(gap.count, vec![0, 0, 4]);
    assert_eq!(gap.max, vec![None, None, Some(2_400 * MS)]);
    let hop = &series.hops[0];
    assert_eq!(hop.backlog_max_frames, Some(vec![4, 4, 4]), "frames wait until they are received");
    assert_eq!(hop.kernel_bytes_max, Some(vec![Some(77), None, None]), "a missing sample is not zero");
    assert_eq!(hop.wakeups, Some(vec![0, 0, 1]), "the last wakeup has not ended");
    let thread = &series.threads[0];
    assert_eq!(thread.role.as_str(), "tokenizer");
    assert_eq!(thread.on_cpu, vec![Some(0.8), None, Some(0.4)]);
    assert_eq!(thread.run_wait, Some(vec![Some(0.1), None, Some(0.1)]));
    assert_eq!(thread.throttled, None);
}

#[test]
fn the_last_seconds_are_kept_one_by_one() {
    let mut run = Run(Analysis::new(Config { recent_seconds: 4, ..Config::default() }));
    run.apply(0, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", Capabilities::SENT | Capabilities::RECEIVED)));
    for n in 0..20 {
        run.send(1_100 + 20 * n, n, &format!("r{n}"));
    }
    for n in 0..20 {
        run.receive(2_500 + n, n);
    }
    run.cpu(2_600, 40);
    run.0.tick(MonoNs(9_500 * MS));
    let recent = run.0.time_series().recent_seconds(run.0.ledger());
    assert_eq!((recent.newest(), recent.len()), (4, 4));
    assert!(recent.second(0).is_none() && recent.second(5).is_none(), "evicted, and not begun");
    assert_eq!([3, 4].map(|second| recent.is_current(second)), [false, true], "the last one is not over");
    let [second, third, fourth] = [1, 2, 3].map(|at| recent.second(at).expect("it is kept"));
    assert_eq!([second, third, fourth].map(|slot| slot.passed.tokens_sent), [20, 0, 0]);
    assert_eq!([second, third, fourth].map(|slot| slot.hops[0].backlog_max), [20, 20, 0], "frames wait until 2.5 s");
    assert_eq!([second, third, fourth].map(|slot| slot.gap.count()), [0, 20, 0]);
    let index = recent.thread_index(RECEIVER).expect("it receives");
    assert_eq!(third.threads[index].map(|spent| spent.on_ns), Some(40 * MS));
}

#[test]
fn halved_slots_add_up_to_the_totals() {
    let mut run = Run::new(20);
    for n in 0..500 {
        run.send(200 * n, n, &format!("r{n}"));
        run.receive(200 * n + 30 + n % 7, n);
    }
    let report = run.report();
    let series = report.series.expect("the run has events");
    assert!(series.len() <= 20 && series.slot_ns == 8_000 * MS, "{}", series.slot_ns);
    assert_eq!(series.tokens.sent.iter().sum::<u64>(), report.tokens.sent);
    assert_eq!(series.hops[0].frames_received.iter().flatten().sum::<u64>(), 500);
    let gap = series.gap_ns.as_ref().expect("gaps are observed");
    assert_eq!(gap.count.iter().sum::<u64>(), 500);
    assert!(gap.max.iter().flatten().all(|&ns| (30 * MS..=36 * MS).contains(&ns)), "{gap:?}");
    let total_seconds: f64 = (0..series.len()).map(|slot| series.seconds(slot)).sum();
    assert!((total_seconds - report.window_ns[1] as f64 / 1e9).abs() < 1e-6, "the slots cover the window");
}

#[test]
fn every_value_is_in_exactly_one_class() {
    let mut run = Run::new(600);
    for n in 0..200 {
        run.send(10 * n, n, &format!("r{n}"));
        run.receive(10 * n + 1 + n % 5, n);
    }
    let report = run.report();
    let gap = report.gap_ns.expect("gaps are observed");
    for classes in [&gap.classes, &report.hops[0].queue_wait_classes] {
        assert_eq!(classes.iter().map(|c| c[2]).sum::<u64>(), 200);
        assert!(classes.iter().all(|c| c[0] < c[1]) && classes[0][0] <= MS, "{classes:?}");
    }
}

#[test]
fn wall_time_requires_an_anchor() {
    let run = Run::new(600);
    assert_eq!(run.report().window_wall_ns, None);
    let report = Report::of(
        &run.0,
        &ReportInput {
            wall: Some(Anchor { mono: MonoNs(6_000 * MS), wall_ns: 1_763_712_000_000_000_000 }),
            ..ReportInput::for_source("attach")
        },
    );
    assert_eq!(report.window_wall_ns.map(|w| w[0]), Some(1_763_711_999_000_000_000));
}
