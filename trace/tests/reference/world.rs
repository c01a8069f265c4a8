//! A naive engine: it tracks every token, knows the ground truth, and gives the ledger only the events that a tap would observe.

use std::collections::{BTreeMap, VecDeque};

use trace::clock::MonoNs;
use trace::engine::{Mode, Waiter};
use trace::event::{
    self, Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, MissedCause, Received, What,
};
use trace::report::LossList;
use trace::{Analysis, Config, FrameId, HopId};

/// Next step of the engine.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// The scheduler sends a frame on a lane: (request, new tokens, whether it finishes) each.
    Send { lane: u32, parts: Vec<(usize, u32, bool)> },
    /// The tokenizer receives the next frame of a lane.
    Receive { lane: u32 },
    /// The tokenizer returns to its poll: the next frame received belongs to another wakeup.
    Poll,
    /// The relay forwards the next frame of a lane.
    Forward { lane: u32 },
    /// A waiter wakes and serves its client.
    Serve { request: usize },
    /// The scheduler retracts a request and computes its tokens again.
    Retract { request: usize },
    /// The send of the next frame on a lane is missed.
    MissSend { lane: u32 },
    /// The next frame of a lane is lost on the wire.
    LoseFrame { lane: u32 },
    /// The next delivery is missed.
    MissDelivery,
}

/// Behaviour of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    KeepsLast,
    YieldsAll,
    Merges,
    Cumulative,
}

/// Ground truth of the world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) requests: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
    pub(crate) chunks_received: u64,
    pub(crate) tokens_received: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) merged: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) in_flight: u64,
    pub(crate) missing_on_wire: u64,
    pub(crate) backlog: u64,
    /// Frames that the relay forwarded, if their send was observed.
    pub(crate) forwarded: u64,
    /// Chunks predicted as dropped: another chunk of the request arrived before its waiter ran, and the waiter keeps the last one.
    /// A waiter runs three event-loop turns after it is woken, and a frame takes two turns.
    pub(crate) predicted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    request: usize,
    tokens: u32,
    /// Position of its last token.
    end: u32,
    /// Number of the chunk among the observed chunks of its request.
    nth: u32,
    reported_count: u32,
    finish: bool,
}

impl Part {
    fn positions(&self) -> impl Iterator<Item = u32> {
        self.end - self.tokens + 1..=self.end
    }

    fn add_to(&self, lost: &mut LostTokens) {
        lost.extend(self.positions().map(|position| (position, (self.nth, id_at(position)))));
    }
}

fn id_at(position: u32) -> i64 {
    i64::from(position) + 150_000
}

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the request, read by its name"
)]
struct LiveRequest {
    incarnation: u64,
    generated: u32,
    sent: u32,
    retracted: bool,
    retractions: u32,
    finished: bool,
    observed: bool,
    /// Tokens lost on the wire since the last chunk that crossed it.
    lost_on_wire: u64,
    queued: VecDeque<Part>,
    /// Chunks whose send was observed.
    chunks: u32,
    tokens_served: u32,
    closed: bool,
}

/// Lost tokens of a request, by position: the number of the chunk and the token's id.
pub(crate) type LostTokens = BTreeMap<u32, (u32, i64)>;

#[derive(Debug, Default)]
struct Lane {
    seq: u64,
    queue: VecDeque<(u64, Vec<Part>)>,
    /// Frames not yet forwarded, and whether their send was observed.
    relay: VecDeque<(u64, bool)>,
    miss_send: bool,
    lose: bool,
}

pub(crate) struct World {
    pub(crate) analysis: Analysis,
    pub(crate) truth: Truth,
    policy: Policy,
    requests: BTreeMap<usize, LiveRequest>,
    lanes: BTreeMap<u32, Lane>,
    now: u64,
    miss_delivery: bool,
    wakeup: u64,
    /// Frames received in this wakeup.
    received: u32,
    /// For each request, the index of the frame in this wakeup that woke its waiter.
    notified: BTreeMap<String, u32>,
    /// Losses of each request.
    pub(crate) lost: BTreeMap<String, LostTokens>,
    /// Predicted losses of each request; `previous` is its last received chunk.
    pub(crate) predicted_lost: BTreeMap<String, LostTokens>,
    previous: BTreeMap<String, Part>,
    /// Whether any observation was missed.
    pub(crate) incomplete: bool,
}

const HOP: HopId = HopId(3);
const MS: u64 = 1_000_000;

impl World {
    pub(crate) fn new(policy: Policy, config: Config) -> Self {
        let mut world = Self {
            analysis: Analysis::new(config),
            truth: Truth::default(),
            policy,
            requests: BTreeMap::new(),
            lanes: BTreeMap::new(),
            now: 1_000 * MS,
            miss_delivery: false,
            wakeup: 0,
            received: 0,
            notified: BTreeMap::new(),
            lost: BTreeMap::new(),
            predicted_lost: BTreeMap::new(),
            previous: BTreeMap::new(),
            incomplete: false,
        };
        let capabilities =
            Capabilities::SENT | Capabilities::FORWARDED | Capabilities::RECEIVED | Capabilities::DELIVERED;
        let name = "scheduler->tokenizer";
        world.emit(What::Hop(Hop::only(HOP, name, capabilities)));
        let (mode, waiter) = match policy {
            Policy::KeepsLast => (Mode::Incremental, Waiter::KeepsLast),
            Policy::YieldsAll => (Mode::Incremental, Waiter::YieldsAll),
            Policy::Merges => (Mode::Incremental, Waiter::Merges),
            Policy::Cumulative => (Mode::Cumulative, Waiter::KeepsLast),
        };
        world.emit(What::Engine(Engine {
            mode: Some(mode),
            waiter: Some(waiter),
            turnaround: Some(3),
            ..Engine::default()
        }));
        world
    }

    fn emit(&mut self, what: What<'_>) {
        self.analysis.apply(&Event::new(MonoNs(self.now), what));
    }

    fn rid(&self, request: usize) -> String {
        format!(
            "r{request}-{}",
            self.requests.get(&request).map_or(0, |r| r.incarnation)
        )
    }

    pub(crate) fn step(&mut self, op: &Op) {
        self.now += MS;
        match op {
            Op::Send { lane, parts } => self.send(*lane, parts),
            Op::Receive { lane } => self.receive(*lane),
            Op::Poll => {
                self.wakeup += 1;
                self.received = 0;
                self.notified.clear();
            }
            Op::Forward { lane } => {
                let Some((seq, observed)) = self.lanes.entry(*lane).or_default().relay.pop_front() else {
                    return;
                };
                self.truth.forwarded += u64::from(observed);
                self.emit(What::Forwarded(FrameId::new(HOP, *lane, seq)));
            }
            Op::Serve { request } => self.serve(*request),
            Op::Retract { request } => {
                // At most once per request: a chunk does not show whether counts run behind a second time. In cumulative mode a delivery
                // covers every lower count, so it does not show that either.
                let cumulative = self.policy == Policy::Cumulative;
                let eligible = |r: &&mut LiveRequest| !cumulative && !r.retracted && r.sent > 0 && !r.finished;
                if let Some(r) = self.requests.get_mut(request).filter(eligible) {
                    r.generated = 0;
                    r.retracted = true;
                    r.retractions += 1;
                }
            }
            Op::MissSend { lane } => self.lanes.entry(*lane).or_default().miss_send = true,
            Op::LoseFrame { lane } => self.lanes.entry(*lane).or_default().lose = true,
            Op::MissDelivery => self.miss_delivery = true,
        }
        self.analysis.tick(MonoNs(self.now));
    }

    /// Requests stay on their lane, as data-parallel ranks do.
    fn send(&mut self, lane: u32, parts: &[(usize, u32, bool)]) {
        let mut frame: Vec<Part> = Vec::new();
        for &(request, new, finish) in parts {
            let request = request * 2 + lane as usize;
            if frame.iter().any(|p| p.request == request) {
                continue;
            }
            let live = self.requests.entry(request).or_default();
            if live.finished {
                if !live.closed {
                    continue;
                }
                *live = LiveRequest {
                    incarnation: live.incarnation + 1,
                    ..LiveRequest::default()
                };
            }
            // Only the last chunk of a request may be empty, unless its counts run behind.
            let new = if new == 0 && (!finish || live.sent == 0) {
                1
            } else {
                new
            };
            live.generated += new;
            let tokens = live.generated.saturating_sub(live.sent);
            live.sent = live.sent.max(live.generated);
            live.finished = finish;
            frame.push(Part {
                request,
                tokens,
                end: live.sent,
                nth: 0,
                reported_count: live.generated,
                finish,
            });
        }
        if frame.is_empty() {
            return;
        }
        let state = self.lanes.entry(lane).or_default();
        if std::mem::take(&mut state.lose) {
            for part in &frame {
                let live = self.requests.entry(part.request).or_default();
                live.lost_on_wire += u64::from(part.tokens);
                // Its last chunk is lost too, so the tokenizer never answers.
                live.closed |= part.finish;
            }
            return;
        }
        let (seq, miss_send) = (state.seq, std::mem::take(&mut state.miss_send));
        for part in &mut frame {
            let live = self.requests.entry(part.request).or_default();
            live.chunks += u32::from(!miss_send);
            part.nth = live.chunks;
        }
        let state = self.lanes.entry(lane).or_default();
        state.seq += 1;
        state.relay.push_back((seq, !miss_send));
        state.queue.push_back((seq, frame.clone()));
        self.truth.backlog += 1;
        let id = FrameId { hop: HOP, lane, seq };
        if miss_send {
            self.incomplete = true;
            self.emit(What::Missed(event::Missed::new(Some(HOP), 1, MissedCause::QueueFull)));
            return;
        }
        self.count_sent(&frame);
        let rids: Vec<String> = frame.iter().map(|p| self.rid(p.request)).collect();
        let ids: Vec<Vec<i64>> = frame.iter().map(|part| part.positions().map(id_at).collect()).collect();
        let chunks: Vec<Chunk<'_>> = (frame.iter().zip(&rids))
            .zip(&ids)
            .map(|((part, rid), ids)| Chunk {
                listed: Some(part.tokens),
                completion_tokens: Some(part.reported_count),
                prompt_tokens: Some(10),
                finish: part
                    .finish
                    .then_some(if part.tokens == 0 { Finish::Abort } else { Finish::Stop }),
                retractions: self.requests.get(&part.request).map(|r| r.retractions),
                ids,
                ..Chunk::new(rid)
            })
            .collect();
        let event = Event::new(MonoNs(self.now), What::Sent(Frame::token_ids(id, 1_000, &chunks)));
        self.analysis.apply(&event);
    }

    fn count_sent(&mut self, frame: &[Part]) {
        for part in frame {
            let live = self.requests.entry(part.request).or_default();
            let truth = &mut self.truth;
            truth.requests += u64::from(!live.observed);
            truth.chunks += 1;
            truth.tokens += u64::from(part.tokens);
            truth.finished += u64::from(part.finish);
            truth.aborted += u64::from(part.finish && part.tokens == 0);
            // Tokens missing before an abort's frame may have been trimmed, so they are not judged.
            if live.observed && !(part.finish && part.tokens == 0) {
                truth.missing_on_wire += live.lost_on_wire;
            }
            live.lost_on_wire = 0;
            live.observed = true;
        }
    }

    fn receive(&mut self, lane: u32) {
        let Some((seq, frame)) = self.lanes.entry(lane).or_default().queue.pop_front() else {
            return;
        };
        self.truth.backlog -= 1;
        for part in frame {
            self.truth.chunks_received += 1;
            self.truth.tokens_received += u64::from(part.tokens);
            let rid = self.rid(part.request);
            let frame = self.received;
            let previous = self.previous.insert(rid.clone(), part);
            if self.notified.get(&rid).is_some_and(|notified| frame - notified <= 1) {
                if self.policy == Policy::KeepsLast {
                    self.truth.predicted += 1;
                    let predicted_lost = self.predicted_lost.entry(rid).or_default();
                    if let Some(part) = previous {
                        part.add_to(predicted_lost);
                    }
                }
            } else {
                self.notified.insert(rid, frame);
            }
            if let Some(live) = self.requests.get_mut(&part.request) {
                live.queued.push_back(part);
            }
        }
        self.received += 1;
        self.emit(What::Received(Received::in_wakeup(
            FrameId { hop: HOP, lane, seq },
            self.wakeup,
        )));
    }

    fn serve(&mut self, request: usize) {
        let policy = self.policy;
        let rid = self.rid(request);
        let Some(live) = self.requests.get_mut(&request).filter(|r| !r.queued.is_empty()) else {
            return;
        };
        let served: Vec<Part> = match policy {
            Policy::YieldsAll => live.queued.pop_front().into_iter().collect(),
            _ => live.queued.drain(..).collect(),
        };
        let Some(&last) = served.last() else { return };
        let truth = &mut self.truth;
        truth.chunks_delivered += 1;
        let mut tokens = last.tokens;
        for part in &served[..served.len() - 1] {
            match policy {
                Policy::KeepsLast if part.tokens > 0 => {
                    truth.dropped += 1;
                    truth.tokens_lost += u64::from(part.tokens);
                    part.add_to(self.lost.entry(rid.clone()).or_default());
                }
                Policy::KeepsLast => truth.merged += 1,
                _ => {
                    truth.merged += 1;
                    tokens += part.tokens;
                }
            }
        }
        truth.tokens_delivered += u64::from(tokens);
        live.tokens_served += tokens;
        live.closed = last.finish;
        let mode = if policy == Policy::Cumulative {
            Mode::Cumulative
        } else {
            Mode::Incremental
        };
        let tokens = if mode == Mode::Cumulative {
            last.reported_count
        } else {
            tokens
        };
        if std::mem::take(&mut self.miss_delivery) {
            self.incomplete = true;
            self.emit(What::Missed(event::Missed::new(None, 1, MissedCause::QueueFull)));
            return;
        }
        let completion_tokens = Some(last.reported_count);
        self.emit(What::Delivered(Delivery {
            mode,
            finished: last.finish,
            ..Delivery::new(&rid, tokens, completion_tokens)
        }));
    }

    /// Ground truth, with the chunks currently in flight.
    pub(crate) fn truth(&self) -> Truth {
        let t = self.truth;
        let settled = t.chunks_delivered + t.merged + t.dropped;
        Truth {
            in_flight: t.chunks.saturating_sub(settled),
            ..t
        }
    }

    /// The report's numbers in the same form.
    pub(crate) fn reported(&self) -> Truth {
        let report = self.analysis.report(&trace::report::ReportInput::of("model"));
        let (c, t, r) = (&report.chunks, &report.tokens, &report.requests);
        Truth {
            requests: r.seen,
            finished: r.finished,
            aborted: r.aborted,
            chunks: c.sent,
            tokens: t.sent,
            chunks_received: c.received.unwrap_or(0),
            tokens_received: t.received.unwrap_or(0),
            tokens_delivered: t.delivered.unwrap_or(0),
            chunks_delivered: c.delivered.unwrap_or(0),
            merged: c.merged.unwrap_or(0),
            dropped: c.dropped_confirmed.unwrap_or(0),
            tokens_lost: c.tokens_lost.unwrap_or(0),
            in_flight: c.in_flight.unwrap_or(0),
            missing_on_wire: t.missing_on_wire,
            backlog: report.hops.iter().filter_map(|h| h.backlog_frames).sum(),
            forwarded: report.hops.iter().filter_map(|h| h.relay_ns).map(|r| r.count).sum(),
            predicted: c.dropped_predicted.unwrap_or(0),
        }
    }

    /// Lost tokens in the report with their ids; no ids unless `with_ids`.
    pub(crate) fn listed(list: Option<LossList>, with_ids: bool) -> BTreeMap<String, LostTokens> {
        let mut all = BTreeMap::new();
        for line in list.map(|list| list.lines).unwrap_or_default() {
            let mut lost = LostTokens::new();
            let mut chunks = std::collections::BTreeSet::new();
            for range in &line.ranges {
                let [first, last] = range.tokens;
                let [from, to] = range.chunks.expect("every range lists its chunks");
                chunks.extend(from..=to);
                for position in first..=last {
                    let id = range.ids.get((position - first) as usize).copied();
                    let id = id
                        .filter(|_| with_ids)
                        .unwrap_or_else(|| id_at(position) * i64::from(!with_ids));
                    // The range does not show which of its chunks held the token.
                    lost.insert(position, (if from == to { from } else { 0 }, id));
                }
            }
            assert_eq!(line.tokens, lost.len() as u64 + line.tokens_unlisted);
            assert!(chunks.len() as u64 <= line.chunks);
            all.insert(line.rid, lost);
        }
        all
    }
}
