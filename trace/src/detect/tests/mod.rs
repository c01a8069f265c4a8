//! Small scenes for the detectors' tests: short calls for events.

mod consumers;
mod engine;
mod late_causes;
mod order;
mod rules;
mod silences;
mod times;
mod tokens;
mod ttft;
mod unanswered;
mod waits;

use super::{ALL, DetectContext, Severity, Verdict, Verdicts};
use crate::clock::MonoNs;
use crate::engine::{Engines, Mode, example};
use crate::event::{
    Away, AwayState, Capabilities, Chunk, CpuSample, Delivery, Engine, Event, Frame, Hop, Kind, Missed, MissedCause,
    QueueSample, Received, Response, StackSample, ThreadPart, Undecoded, What,
};
use crate::id::{FrameId, HopId, ThreadId};
use crate::ledger::{Ledger, Limits};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

struct Scene {
    ledger: Ledger,
    /// Next sequence number of each hop.
    next: Vec<u64>,
}

impl Scene {
    /// No hop and no announced engine.
    fn empty(engines: Engines, limits: Limits) -> Self {
        Self { ledger: Ledger::new(limits).with_engines(engines), next: Vec::new() }
    }

    /// A 0.5.9 engine in incremental mode, with the scheduler sending directly to the tokenizer.
    fn skip_path() -> Self {
        Self::skip_path_with(Limits::default())
    }

    fn skip_path_with(limits: Limits) -> Self {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED;
        Self::empty(example::ENGINES, limits).with_hop(capabilities)
    }

    /// A tokenizer thread with these shares of its time (see [`Self::cpu`]) that received only the first of 40 frames.
    fn late_consumer(shares: [u64; 3]) -> Self {
        let mut scene = Self::skip_path();
        scene.send(0, &[]);
        scene.receive_by(MS, 0, 7);
        for n in 1..40 {
            scene.send(n * 100 * MS, &[]);
            scene.cpu(n * 100 * MS, 7, shares);
        }
        scene
    }

    /// The same engine with deliveries observed.
    fn delivering() -> Self {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        Self::empty(example::ENGINES, Limits::default()).with_hop(capabilities)
    }

    /// Adds the hop and announces the release.
    fn with_hop(mut self, capabilities: Capabilities) -> Self {
        let name = "scheduler->tokenizer";
        self.hop(Hop { endpoint: "ipc:///tmp/t", ..Hop::only(HopId(0), name, capabilities) });
        let engine = Engine { version: Some(example::DROPS), mode: Some(Mode::Incremental), ..Engine::default() };
        self.apply(0, What::Engine(engine));
        self
    }

    /// Detokenizers behind a router, with one connection to each.
    fn workers(count: u16) -> Self {
        Self::behind_router((0..count).map(|worker| (Some(worker), "")))
    }

    /// Hops to receivers at these endpoints, without worker numbers.
    fn receivers_at(endpoints: &[&str]) -> Self {
        Self::behind_router(endpoints.iter().map(|endpoint| (None, *endpoint)))
    }

    fn behind_router<'a>(receivers: impl Iterator<Item = (Option<u16>, &'a str)>) -> Self {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        let mut scene = Self::empty(Engines::default(), Limits::default());
        for (id, (worker, endpoint)) in receivers.enumerate() {
            scene.hop(Hop { endpoint, worker, ..Hop::new(HopId(id as u16), "router->detokenizer", capabilities) });
        }
        scene
    }

    fn hop(&mut self, hop: Hop<'_>) {
        self.next.push(0);
        self.apply(0, What::Hop(hop));
    }

    fn apply(&mut self, at: u64, what: What<'_>) {
        self.ledger.apply(&Event { at: MonoNs(at), what });
    }

    fn id(seq: u64) -> FrameId {
        FrameId::new(HopId(0), 0, seq)
    }

    fn next(&mut self, hop: u16) -> FrameId {
        let next = &mut self.next[usize::from(hop)];
        *next += 1;
        FrameId::new(HopId(hop), 0, *next - 1)
    }

    fn fail(&mut self, at: u64) {
        let frame = Frame::token_ids(self.next(0), 16, &[]);
        self.apply(at, What::Sent(Frame { kind: Kind::Failed, ..frame }));
    }

    /// Sends the next frame; each chunk is (rid, listed, `completion_tokens`).
    fn send(&mut self, at: u64, chunks: &[(&str, u32, u32)]) {
        let chunks: Vec<Chunk<'_>> =
            chunks.iter().map(|&(rid, listed, completion)| Chunk::counted(rid, listed, completion)).collect();
        let id = self.next(0);
        self.apply(at, What::Sent(Frame::token_ids(id, 900, &chunks)));
    }

    /// Sends a worker a frame with one new token of a request.
    fn send_to(&mut self, worker: u16, at: u64, rid: &str, completion: u32) {
        self.send_chunk(worker, at, Chunk::counted(rid, 1, completion));
    }

    /// Sends a worker one frame for each of these counts of a request.
    fn stream(&mut self, worker: u16, rid: &str, counts: std::ops::RangeInclusive<u32>) {
        for count in counts {
            self.send_to(worker, count.into(), rid, count);
        }
    }

    fn send_chunk(&mut self, worker: u16, at: u64, chunk: Chunk<'_>) {
        let id = self.next(worker);
        self.apply(at, What::Sent(Frame::token_ids(id, 900, &[chunk])));
    }

    /// A tokenizer thread receives the frame.
    fn receive_by(&mut self, at: u64, seq: u64, tid: u32) {
        let by = Some(ThreadId { pid: 7, tid });
        let id = Self::id(seq);
        self.apply(at, What::Received(Received { by, ..Received::new(id) }));
        self.apply(at, What::Processed(id));
    }

    /// CPU sample of a tokenizer thread over the last 100 ms: on a CPU, waiting for a CPU, cgroup throttled, in milliseconds.
    fn cpu(&mut self, at: u64, tid: u32, shares: [u64; 3]) {
        self.sample(at, tid, shares, None);
    }

    /// The same sample of a thread that is not running at its end.
    fn away(&mut self, at: u64, tid: u32, shares: [u64; 3], (state, place): (AwayState, &str)) {
        self.sample(at, tid, shares, Some(Away { state, place }));
    }

    fn sample(&mut self, at: u64, tid: u32, [on, wait, throttled]: [u64; 3], away: Option<Away<'_>>) {
        let sample = CpuSample {
            name: "ZMQbg/IO/0",
            part: if tid == 7 { ThreadPart::Main } else { ThreadPart::Io },
            wait_ns: Some(wait * MS),
            throttled_ns: (throttled > 0).then_some(throttled * MS),
            away,
            ..CpuSample::new(ThreadId { pid: 7, tid }, "tokenizer", 100 * MS, on * MS)
        };
        self.apply(at, What::Cpu(sample));
    }

    /// Fifty stack samples of thread 7 over half a second, `within` of them in this function.
    fn stack(&mut self, at: u64, (function, file): (&str, &str), within: u32) {
        let sample = StackSample {
            thread: ThreadId { pid: 7, tid: 7 },
            role: "tokenizer",
            function,
            file,
            interval_ns: 500 * MS,
            samples: 50,
            total: within,
            own: within,
            gil: None,
        };
        self.apply(at, What::Stack(sample));
    }

    /// Sets the bytes in the kernel queue.
    fn kernel(&mut self, at: u64, bytes: u64) {
        let sample = QueueSample { hop: "scheduler->tokenizer", receive_bytes: Some(bytes), send_bytes: None };
        self.apply(at, What::Queue(sample));
    }

    fn receive(&mut self, at: u64, seq: u64) {
        self.apply(at, What::Received(Received::new(Self::id(seq))));
    }

    fn receive_in_wakeup(&mut self, at: u64, seq: u64, wakeup: u64) {
        self.apply(at, What::Received(Received::in_wakeup(Self::id(seq), wakeup)));
        self.apply(at, What::Processed(Self::id(seq)));
    }

    fn deliver(&mut self, at: u64, rid: &str, tokens: u32, completion: u32, finished: bool) {
        self.deliver_as(at, Mode::Incremental, rid, tokens, completion, finished);
    }

    fn deliver_as(&mut self, at: u64, mode: Mode, rid: &str, tokens: u32, completion: u32, finished: bool) {
        self.apply(at, What::Delivered(Delivery { mode, finished, ..Delivery::new(rid, tokens, Some(completion)) }));
    }

    /// A response of this kind delivers all its `tokens` at once.
    fn respond(&mut self, at: u64, response: Response, rid: &str, tokens: u32) {
        let delivery = Delivery::new(rid, tokens, (tokens > 0).then_some(tokens));
        self.apply(at, What::Delivered(Delivery { finished: tokens > 0, response, ..delivery }));
    }

    /// Skips the next `count` frames and reports them as missed.
    fn lose(&mut self, count: u64) {
        self.next[0] += count;
        self.apply(0, What::Missed(Missed::new(Some(HopId(0)), count, MissedCause::QueueFull)));
    }

    fn send_undecodable(&mut self, worker: u16, at: u64, reason: &str) {
        let id = self.next(worker);
        self.apply(at, What::Undecoded(Undecoded::new(id, 10, reason)));
    }

    fn tick(&mut self, now: u64) {
        self.ledger.tick(MonoNs(now));
    }

    fn check(&self, kind: &str, now: u64) -> Vec<Verdict> {
        let detector = ALL.iter().find(|detector| detector.kind == kind).expect("a detector");
        let mut found = Verdicts::default();
        (detector.check)(&DetectContext::new(&self.ledger, MonoNs(now)), &mut found);
        for verdict in &found.list {
            let harmless = verdict.severity == Severity::Info;
            assert!(harmless || verdict.advice.is_some(), "no action for {verdict:?}");
            assert!(rules::is_documented(kind, verdict.severity), "{kind} {:?} is not documented", verdict.severity);
        }
        found.list
    }
}
