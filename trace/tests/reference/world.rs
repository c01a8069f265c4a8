//! A naive engine: it tracks every token, knows the ground truth, and gives the ledger only the events that a tap would observe.

use std::collections::{BTreeMap, VecDeque};

use trace::clock::MonoNs;
use trace::engine::{Mode, Waiter};
use trace::event::{
    self, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, IdColumn, Kind, LostCause, Response, Sees, Taken, What,
};
use trace::report::LossList;
use trace::{Analysis, Config, FrameId, HopId};

/// Next step of the engine.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// The scheduler sends a frame on a lane: (request, new tokens, whether it finishes) each.
    Send { lane: u32, parts: Vec<(usize, u32, bool)> },
    /// The tokenizer receives the next frame of a lane.
    Take { lane: u32 },
    /// The tokenizer returns to its poll: the next frame received belongs to another wakeup.
    Poll,
    /// The relay forwards the next frame of a lane.
    Forward { lane: u32 },
    /// A waiter wakes and serves its client.
    Serve { request: usize },
    /// The scheduler retracts a request and computes its tokens again.
    Retract { request: usize },
    /// The send of the next frame on a lane is missed.
    Blind { lane: u32 },
    /// The next frame of a lane is lost on the wire.
    Cut { lane: u32 },
    /// The next delivery is missed.
    Deaf,
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
    pub(crate) chunks_taken: u64,
    pub(crate) tokens_taken: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) coalesced: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) outstanding: u64,
    pub(crate) missing_on_wire: u64,
    pub(crate) backlog: u64,
    /// Frames that the relay forwarded, if their send was observed.
    pub(crate) forwarded: u64,
    /// Chunks predicted as dropped: another chunk of the request arrived before its waiter ran, and the waiter keeps the last one.
    /// A waiter runs three event-loop turns after it is called, and a frame takes two turns.
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
    said: u32,
    finish: bool,
}

impl Part {
    fn places(&self) -> impl Iterator<Item = u32> {
        self.end - self.tokens + 1..=self.end
    }

    fn add_to(&self, lost: &mut Lost) {
        lost.extend(self.places().map(|place| (place, (self.nth, id_at(place)))));
    }
}

/// Id of the token at a position.
fn id_at(place: u32) -> i64 {
    i64::from(place) + 150_000
}

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the request, read by its name"
)]
struct Living {
    born: u64,
    made: u32,
    sent: u32,
    retracted: bool,
    retractions: u32,
    finished: bool,
    seen: bool,
    /// Tokens lost on the wire since the last chunk that crossed it.
    cut: u64,
    out: VecDeque<Part>,
    /// Chunks whose send was observed.
    chunks: u32,
    served_to: u32,
    closed: bool,
}

/// Lost tokens of a request, by position: the number of the chunk and the token's id.
pub(crate) type Lost = BTreeMap<u32, (u32, i64)>;

#[derive(Debug, Default)]
struct Lane {
    seq: u64,
    queue: VecDeque<(u64, Vec<Part>)>,
    /// Frames not yet forwarded, and whether their send was observed.
    relay: VecDeque<(u64, bool)>,
    blind: bool,
    cut: bool,
}

pub(crate) struct World {
    pub(crate) analysis: Analysis,
    pub(crate) truth: Truth,
    policy: Policy,
    requests: BTreeMap<usize, Living>,
    lanes: BTreeMap<u32, Lane>,
    now: u64,
    deaf: bool,
    wakeup: u64,
    /// Frames received in this wakeup.
    taken: u32,
    /// For each request, the index of the frame in this wakeup that called its waiter.
    called: BTreeMap<String, u32>,
    /// Losses of each request.
    pub(crate) lost: BTreeMap<String, Lost>,
    /// Predicted losses of each request; `before` has its last received chunk.
    pub(crate) bound: BTreeMap<String, Lost>,
    before: BTreeMap<String, Part>,
    /// Whether any observation was missed.
    pub(crate) hidden: bool,
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
            deaf: false,
            wakeup: 0,
            taken: 0,
            called: BTreeMap::new(),
            lost: BTreeMap::new(),
            bound: BTreeMap::new(),
            before: BTreeMap::new(),
            hidden: false,
        };
        let sees = Sees {
            sent: true,
            forwarded: true,
            taken: true,
            handled: false,
            delivered: true,
        };
        let name = "scheduler->tokenizer";
        world.say(What::Hop(Hop {
            id: HOP,
            name,
            endpoint: "",
            worker: None,
            origin: true,
            last: true,
            sees,
        }));
        let (mode, waiter) = match policy {
            Policy::KeepsLast => (Mode::Incremental, Waiter::KeepsLast),
            Policy::YieldsAll => (Mode::Incremental, Waiter::YieldsAll),
            Policy::Merges => (Mode::Incremental, Waiter::Merges),
            Policy::Cumulative => (Mode::Cumulative, Waiter::KeepsLast),
        };
        world.say(What::Engine(Engine {
            version: None,
            mode: Some(mode),
            waiter: Some(waiter),
            turnaround: Some(3),
        }));
        world
    }

    fn say(&mut self, what: What<'_>) {
        self.analysis.apply(&Event {
            at: MonoNs(self.now),
            what,
        });
    }

    fn rid(&self, request: usize) -> String {
        format!("r{request}-{}", self.requests.get(&request).map_or(0, |r| r.born))
    }

    pub(crate) fn step(&mut self, op: &Op) {
        self.now += MS;
        match op {
            Op::Send { lane, parts } => self.send(*lane, parts),
            Op::Take { lane } => self.take(*lane),
            Op::Poll => {
                self.wakeup += 1;
                self.taken = 0;
                self.called.clear();
            }
            Op::Forward { lane } => {
                let Some((seq, seen)) = self.lanes.entry(*lane).or_default().relay.pop_front() else {
                    return;
                };
                self.truth.forwarded += u64::from(seen);
                self.say(What::Forwarded(FrameId {
                    hop: HOP,
                    lane: *lane,
                    seq,
                }));
            }
            Op::Serve { request } => self.serve(*request),
            Op::Retract { request } => {
                // At most once per request: a chunk does not show whether counts run behind a second time. In cumulative mode a delivery
                // covers every lower count, so it does not show that either.
                let cumulative = self.policy == Policy::Cumulative;
                let fit = |r: &&mut Living| !cumulative && !r.retracted && r.sent > 0 && !r.finished;
                if let Some(r) = self.requests.get_mut(request).filter(fit) {
                    r.made = 0;
                    r.retracted = true;
                    r.retractions += 1;
                }
            }
            Op::Blind { lane } => self.lanes.entry(*lane).or_default().blind = true,
            Op::Cut { lane } => self.lanes.entry(*lane).or_default().cut = true,
            Op::Deaf => self.deaf = true,
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
            let living = self.requests.entry(request).or_default();
            if living.finished {
                if !living.closed {
                    continue;
                }
                *living = Living {
                    born: living.born + 1,
                    ..Living::default()
                };
            }
            // Only the last chunk of a request may be empty, unless its counts run behind.
            let new = if new == 0 && (!finish || living.sent == 0) {
                1
            } else {
                new
            };
            living.made += new;
            let tokens = living.made.saturating_sub(living.sent);
            living.sent = living.sent.max(living.made);
            living.finished = finish;
            frame.push(Part {
                request,
                tokens,
                end: living.sent,
                nth: 0,
                said: living.made,
                finish,
            });
        }
        if frame.is_empty() {
            return;
        }
        let state = self.lanes.entry(lane).or_default();
        if std::mem::take(&mut state.cut) {
            for part in &frame {
                let living = self.requests.entry(part.request).or_default();
                living.cut += u64::from(part.tokens);
                // Its end is lost too: the tokenizer will never answer.
                living.closed |= part.finish;
            }
            return;
        }
        let (seq, blind) = (state.seq, std::mem::take(&mut state.blind));
        for part in &mut frame {
            let living = self.requests.entry(part.request).or_default();
            living.chunks += u32::from(!blind);
            part.nth = living.chunks;
        }
        let state = self.lanes.entry(lane).or_default();
        state.seq += 1;
        state.relay.push_back((seq, !blind));
        state.queue.push_back((seq, frame.clone()));
        self.truth.backlog += 1;
        let id = FrameId { hop: HOP, lane, seq };
        if blind {
            self.hidden = true;
            self.say(What::Lost(event::Lost {
                hop: Some(HOP),
                count: 1,
                cause: LostCause::QueueFull,
            }));
            return;
        }
        self.count_sent(&frame);
        let rids: Vec<String> = frame.iter().map(|p| self.rid(p.request)).collect();
        let ids: Vec<Vec<i64>> = frame.iter().map(|part| part.places().map(id_at).collect()).collect();
        let chunks: Vec<Chunk<'_>> = (frame.iter().zip(&rids))
            .zip(&ids)
            .map(|((part, rid), ids)| Chunk {
                rid,
                listed: Some(part.tokens),
                completion_tokens: Some(part.said),
                prompt_tokens: Some(10),
                cached_tokens: None,
                finish: part
                    .finish
                    .then_some(if part.tokens == 0 { Finish::Abort } else { Finish::Stop }),
                retractions: self.requests.get(&part.request).map(|r| r.retractions),
                worker: None,
                ids,
            })
            .collect();
        let event = Event {
            at: MonoNs(self.now),
            what: What::Sent(Frame {
                id,
                bytes: 1_000,
                kind: Kind::TokenIds,
                ids: IdColumn::Delta,
                chunks: &chunks,
            }),
        };
        self.analysis.apply(&event);
    }

    fn count_sent(&mut self, frame: &[Part]) {
        for part in frame {
            let living = self.requests.entry(part.request).or_default();
            let truth = &mut self.truth;
            truth.requests += u64::from(!living.seen);
            truth.chunks += 1;
            truth.tokens += u64::from(part.tokens);
            truth.finished += u64::from(part.finish);
            truth.aborted += u64::from(part.finish && part.tokens == 0);
            // Tokens missing before an abort's frame may have been trimmed, so they are not judged.
            if living.seen && !(part.finish && part.tokens == 0) {
                truth.missing_on_wire += living.cut;
            }
            living.cut = 0;
            living.seen = true;
        }
    }

    fn take(&mut self, lane: u32) {
        let Some((seq, frame)) = self.lanes.entry(lane).or_default().queue.pop_front() else {
            return;
        };
        self.truth.backlog -= 1;
        for part in frame {
            self.truth.chunks_taken += 1;
            self.truth.tokens_taken += u64::from(part.tokens);
            let rid = self.rid(part.request);
            let frame = self.taken;
            let before = self.before.insert(rid.clone(), part);
            if self.called.get(&rid).is_some_and(|called| frame - called <= 1) {
                if self.policy == Policy::KeepsLast {
                    self.truth.predicted += 1;
                    let bound = self.bound.entry(rid).or_default();
                    if let Some(part) = before {
                        part.add_to(bound);
                    }
                }
            } else {
                self.called.insert(rid, frame);
            }
            if let Some(living) = self.requests.get_mut(&part.request) {
                living.out.push_back(part);
            }
        }
        self.taken += 1;
        self.say(What::Taken(Taken {
            id: FrameId { hop: HOP, lane, seq },
            wakeup: Some(self.wakeup),
            by: None,
            frame: None,
        }));
    }

    fn serve(&mut self, request: usize) {
        let policy = self.policy;
        let rid = self.rid(request);
        let Some(living) = self.requests.get_mut(&request).filter(|r| !r.out.is_empty()) else {
            return;
        };
        let served: Vec<Part> = match policy {
            Policy::YieldsAll => living.out.pop_front().into_iter().collect(),
            _ => living.out.drain(..).collect(),
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
                Policy::KeepsLast => truth.coalesced += 1,
                _ => {
                    truth.coalesced += 1;
                    tokens += part.tokens;
                }
            }
        }
        truth.tokens_delivered += u64::from(tokens);
        living.served_to += tokens;
        living.closed = last.finish;
        let mode = if policy == Policy::Cumulative {
            Mode::Cumulative
        } else {
            Mode::Incremental
        };
        let tokens = if mode == Mode::Cumulative { last.said } else { tokens };
        if std::mem::take(&mut self.deaf) {
            self.hidden = true;
            self.say(What::Lost(event::Lost {
                hop: None,
                count: 1,
                cause: LostCause::QueueFull,
            }));
            return;
        }
        let completion_tokens = Some(last.said);
        self.say(What::Delivered(Delivery {
            rid: &rid,
            tokens,
            mode,
            completion_tokens,
            finished: last.finish,
            response: Response::Streamed,
        }));
    }

    /// Ground truth, with the chunks currently in flight.
    pub(crate) fn truth(&self) -> Truth {
        let t = self.truth;
        let gone = t.chunks_delivered + t.coalesced + t.dropped;
        Truth {
            outstanding: t.chunks.saturating_sub(gone),
            ..t
        }
    }

    /// The report's numbers in the same form.
    pub(crate) fn told(&self) -> Truth {
        let report = self.analysis.report(&trace::report::ReportInput::of("model"));
        let (c, t, r) = (&report.chunks, &report.tokens, &report.requests);
        Truth {
            requests: r.seen,
            finished: r.finished,
            aborted: r.aborted,
            chunks: c.sent,
            tokens: t.sent,
            chunks_taken: c.taken.unwrap_or(0),
            tokens_taken: t.taken.unwrap_or(0),
            tokens_delivered: t.delivered.unwrap_or(0),
            chunks_delivered: c.delivered.unwrap_or(0),
            coalesced: c.coalesced.unwrap_or(0),
            dropped: c.dropped_confirmed.unwrap_or(0),
            tokens_lost: c.tokens_lost.unwrap_or(0),
            outstanding: c.outstanding.unwrap_or(0),
            missing_on_wire: t.missing_on_wire,
            backlog: report.hops.iter().filter_map(|h| h.backlog_frames).sum(),
            forwarded: report.hops.iter().filter_map(|h| h.relay_ns).map(|r| r.count).sum(),
            predicted: c.dropped_predicted.unwrap_or(0),
        }
    }

    /// Lost tokens in the report with their ids; no ids unless `with_ids`.
    pub(crate) fn listed(list: Option<LossList>, with_ids: bool) -> BTreeMap<String, Lost> {
        let mut all = BTreeMap::new();
        for line in list.map(|list| list.lines).unwrap_or_default() {
            let mut lost = Lost::new();
            let mut chunks = std::collections::BTreeSet::new();
            for range in &line.ranges {
                let [first, last] = range.tokens;
                let [from, to] = range.chunks.expect("no chunks were kept as one");
                chunks.extend(from..=to);
                for place in first..=last {
                    let id = range.ids.get((place - first) as usize).copied();
                    let id = id
                        .filter(|_| with_ids)
                        .unwrap_or_else(|| id_at(place) * i64::from(!with_ids));
                    // The range does not show which of its chunks held the token.
                    lost.insert(place, (if from == to { from } else { 0 }, id));
                }
            }
            assert_eq!(line.tokens, lost.len() as u64 + line.tokens_unlisted);
            assert!(chunks.len() as u64 <= line.chunks);
            all.insert(line.rid, lost);
        }
        all
    }
}
