//! Time series: columns add up to the totals, stay aligned when slots are halved, and use constant memory.

use outputs::report::{Clock, FaultKind, Report, Series};
use trace::clock::Anchor;
use trace::event::{Capabilities, Chunk, CpuSample, Delivery, Event, Frame, Hop, QueueSample, Received, What};
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
    assert_eq!(series.tokens.sent, [4, 0, 0].map(Some));
    assert_eq!(series.tokens.received, Some(vec![Some(0), Some(0), Some(4)]));
    assert_eq!(series.tokens.delivered, None, "deliveries are not observed");
    assert_eq!(series.requests.begun, [4, 0, 0].map(Some));
    assert_eq!(series.requests.live, [4, 4, 4].map(Some));
    let gap = series.gap_ns.expect("gaps are observed");
    assert_eq!(gap.count, [0, 0, 4].map(Some));
    assert_eq!(gap.max, vec![None, None, Some(2_400 * MS)]);
    let hop = &series.hops[0];
    assert_eq!(hop.backlog_max_frames, Some(vec![Some(4); 3]), "frames wait until they are received");
    assert_eq!(hop.kernel_bytes_max, Some(vec![Some(77), None, None]), "a missing sample is not zero");
    assert_eq!(hop.wakeups, Some(vec![Some(0), Some(0), Some(1)]), "the last wakeup has not ended");
    let thread = &series.threads[0];
    assert_eq!(thread.role.as_str(), "tokenizer");
    assert_eq!(thread.on_cpu, vec![Some(0.8), None, Some(0.4)]);
    assert_eq!(thread.run_wait, Some(vec![Some(0.1), None, Some(0.1)]));
    assert_eq!(thread.throttled, None);
}

#[test]
fn the_last_seconds_are_kept_one_by_one() {
    let limits = Limits { recent_seconds: 4, ..Limits::default() };
    let mut run = Run(Analysis::new(Config { limits, ..Config::default() }));
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

/// Between lanes and stages, events come a little out of order.
#[test]
fn a_frame_counts_in_the_slot_in_which_it_was_sent() {
    for slots in [600, 2] {
        let mut run = Run(Analysis::new(Config {
            limits: Limits { series_slots: slots, recent_seconds: 9, ..Limits::default() },
            ..Config::default()
        }));
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        run.apply(0, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
        run.send(100, 0, "a");
        run.cpu(1_010, 10);
        run.send(990, 1, "b");
        run.receive(1_020, 0);
        run.0.tick(MonoNs(7_500 * MS));
        let recent = run.0.time_series().recent_seconds(run.0.ledger());
        let seconds = [0, 1, 2].map(|second| recent.second(second).expect("it is kept"));
        assert_eq!(seconds.map(|slot| slot.passed.tokens_sent), [2, 0, 0]);
        assert_eq!(seconds.map(|slot| slot.passed.begun), [2, 0, 0]);
        assert_eq!(seconds.map(|slot| slot.hops[0].passed.frames_sent), [2, 0, 0]);
        assert_eq!(seconds.map(|slot| slot.hops[0].passed.frames_received), [0, 1, 0]);
        let series = run.series();
        assert_eq!(series.tokens.sent.iter().flatten().sum::<u64>(), 2);
        assert_eq!((series.tokens.sent[0], series.hops[0].frames_sent.as_ref().expect("sends")[0]), (Some(2), Some(2)));
    }
}

#[test]
fn after_the_end_of_an_observation_nothing_is_known() {
    let all = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    let announce = |run: &mut Run, ms, capabilities| {
        run.apply(ms, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
    };
    let mut run = Run::new(600);
    announce(&mut run, 10, all);
    run.send(100, 0, "a");
    run.receive(150, 0);
    run.apply(160, What::Delivered(Delivery::new("a", 1, Some(1))));
    announce(&mut run, 1_500, Capabilities::SENT);
    run.0.tick(MonoNs(8_200 * MS));
    let report = run.report();
    let series = report.series.as_ref().expect("the run has events");
    let until_then = |first| Some(vec![Some(first), Some(0), None, None]);
    assert_eq!(series.tokens.sent, [1, 0, 0, 0].map(Some), "sends are observed");
    assert_eq!((&series.tokens.received, &series.tokens.lost), (&until_then(1), &until_then(0)));
    assert_eq!((&series.chunks.merged, &series.chunks.dropped_confirmed), (&until_then(0), &until_then(0)));
    let hop = &series.hops[0];
    assert_eq!((&hop.frames_received, &hop.backlog_max_frames), (&until_then(1), &until_then(1)));
    for spread in [&series.gap_ns, &hop.queue_wait_ns] {
        assert_eq!(spread.as_ref().map(|spread| &spread.count), until_then(1).as_ref());
    }
    assert_eq!(hop.frames_sent, Some([1, 0, 0, 0].map(Some).to_vec()));
    assert!(report.own.degraded.is_empty(), "the engine may have ended with the run: {:?}", report.own.degraded);
    let reason = |report: &Report, fault| report.judged.iter().find(|line| line.fault == fault)?.reason.clone();
    assert_eq!(reason(&report, FaultKind::Queues), None, "nothing was sent since");
    run.send(3_300, 1, "b");
    let report = run.report();
    let degraded = report.own.degraded[0].as_str().expect("text");
    let end = "scheduler->tokenizer: receives and deliveries are not observed since 1.500 s into the capture: ";
    assert!(degraded.starts_with(end), "{degraded}");
    let text = "receives are not observed after 1.500 s";
    for fault in [FaultKind::Queues, FaultKind::FirstTokenGap] {
        assert_eq!(reason(&report, fault).as_deref(), Some(text));
    }
    let html = report.to_html(&Clock::of(&report, None));
    assert!(html.contains("scheduler-&gt;tokenizer: not observed any more"));
    // Another receiver on the same hop.
    announce(&mut run, 4_100, all);
    run.0.tick(MonoNs(9_900 * MS));
    let report = run.report();
    assert!(report.own.degraded.is_empty());
    let received = report.series.and_then(|series| series.tokens.received);
    assert_eq!(received, Some(vec![Some(1), Some(0), None, None, Some(0)]));
}

#[test]
fn charts_name_the_length_of_a_slot() {
    for (slots, heading) in [(600, "Tokens per second<"), (20, "Tokens per second, mean of each 2 s<")] {
        let mut run = Run::new(slots);
        for n in 0..30 {
            run.send(1_000 * n, n, &format!("r{n}"));
        }
        let report = run.report();
        let html = report.to_html(&Clock::of(&report, None));
        assert!(html.contains(heading), "{heading}");
    }
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
    assert_eq!(series.tokens.sent.iter().flatten().sum::<u64>(), report.tokens.sent);
    assert_eq!(series.hops[0].frames_received.iter().flatten().flatten().sum::<u64>(), 500);
    let gap = series.gap_ns.as_ref().expect("gaps are observed");
    assert_eq!(gap.count.iter().flatten().sum::<u64>(), 500);
    assert!(gap.max.iter().flatten().all(|&ns| (30 * MS..=36 * MS).contains(&ns)), "{gap:?}");
    let total_seconds: f64 = (0..series.len()).map(|slot| series.seconds(slot)).sum();
    assert!((total_seconds - report.window_ns[1] as f64 / 1e9).abs() < 1e-6, "the slots cover the window");
}

/// The busiest second of a long run is in the report, too.
#[test]
fn joined_slots_come_with_the_last_seconds() {
    let limits = Limits { series_slots: 4, recent_seconds: 6, ..Limits::default() };
    let mut run = Run(Analysis::new(Config { limits, ..Config::default() }));
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    run.apply(0, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
    for (seq, ms) in [500, 7_100, 7_200, 7_300, 8_100].into_iter().enumerate() {
        run.send(ms, seq as u64, &format!("r{seq}"));
        run.receive(ms + 20, seq as u64);
        let is_joined = ms > 4_000;
        assert_eq!(run.series().by_second.is_some(), is_joined, "{ms}");
    }
    run.0.tick(MonoNs((5_000 + 9_400) * MS));
    let series = run.series();
    assert_eq!((series.slot_ns, &series.tokens.sent), (4_000 * MS, &vec![Some(1), Some(3), Some(1)]));
    let seconds = series.by_second.as_deref().expect("slots are joined");
    assert_eq!((seconds.slot_ns, seconds.from_ns, seconds.to_ns), (1_000 * MS, 4_000 * MS, 9_400 * MS));
    assert_eq!(seconds.tokens.sent, [0, 0, 0, 3, 1, 0].map(Some));
    assert_eq!(seconds.hops[0].backlog_max_frames, Some([0, 0, 0, 1, 1, 0].map(Some).into()));
    assert!(series.has_equal_columns());
    let mut damaged = series.clone();
    damaged.by_second.as_mut().expect("seconds").requests.live.clear();
    assert!(!damaged.has_equal_columns());
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
