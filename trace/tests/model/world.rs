//! A server as simple as can be: it knows where each token is, and what became of it. What of it we saw, it writes down in the words
//! of a source.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use trace::engine::Mode;
use trace::event::{Finish, Kind, LostCause, Sees};
use trace::{FrameId, HopId};

use crate::schedule::{Path, Policy, Shape, Sight, Step};
use crate::told::{Part, Told};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// One request, from its first token to its end: the truth about it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) rid: Rc<str>,
    /// Tokens that the scheduler made and meant to send.
    pub(crate) made: u32,
    /// When its first frame left the scheduler, and when that was taken by the tokenizer.
    pub(crate) first_sent: Option<u64>,
    pub(crate) first_taken: Option<u64>,
    /// Places whose frame never left the scheduler.
    pub(crate) cut: BTreeSet<u32>,
    /// Places that the tokenizer took and gave to nobody, though it went on serving.
    pub(crate) dropped: BTreeSet<u32>,
    pub(crate) chunks_dropped: u64,
    /// Its last word has been sent.
    pub(crate) over: bool,
    /// When anything was last heard of it.
    pub(crate) last_at: u64,
}

/// A request that runs.
#[derive(Debug)]
struct Running {
    life: usize,
    made: u32,
    sent: u32,
    retractions: u32,
    left: bool,
    finished: bool,
    /// Its answer is complete, or nobody waits for it: the rid may come again.
    closed: bool,
    out: VecDeque<Part>,
    /// Tokens that its waiter has been given.
    received: u32,
}

#[derive(Clone, Debug)]
struct Flight {
    /// The source's number for it; `None` when it was sent before we looked.
    id: Option<FrameId>,
    /// Its take will not be observed either.
    unseen: bool,
    kind: Kind,
    parts: Rc<[Part]>,
}

#[derive(Debug, Default)]
struct Lane {
    /// The source's number of the next frame.
    seq: u64,
    queue: VecDeque<Flight>,
}

/// Counts over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) chunks_sent: u64,
    pub(crate) tokens_sent: u64,
    pub(crate) chunks_taken: u64,
    pub(crate) tokens_taken: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) coalesced: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) tokens_cut: u64,
    /// Chunks that have entered the tokenizer's hop and are neither delivered nor lost.
    pub(crate) outstanding: u64,
}

/// What crossed the hops of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HopTruth {
    pub(crate) frames_sent: u64,
    pub(crate) frames_taken: u64,
    pub(crate) backlog_max: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
}

pub(crate) struct World {
    shape: Shape,
    now: u64,
    requests: BTreeMap<usize, Running>,
    born: BTreeMap<usize, u32>,
    queued_aborts: u32,
    cut: BTreeSet<u32>,
    lanes: BTreeMap<(HopId, u32), Lane>,
    /// Grows with each restart: connections are new then.
    incarnation: u32,
    wakeup: u64,
    pub(crate) lives: Vec<Life>,
    pub(crate) counts: Counts,
    pub(crate) hops: BTreeMap<&'static str, HopTruth>,
    attached: bool,
    /// Observations that will be lost: how many, and whether that is said at once.
    blind: Vec<(Sight, u8, bool)>,
    /// Losses that are still to be told.
    owed: BTreeMap<Option<HopId>, u64>,
    /// Anything was hidden from us.
    pub(crate) hidden: bool,
    /// What the source says; ticks are empty.
    pub(crate) told: Vec<(u64, Option<Told>)>,
}

impl World {
    /// Lets all of it happen.
    pub(crate) fn run(shape: Shape, steps: &[Step]) -> Self {
        let mut world = Self {
            shape,
            now: 1_000 * MS,
            requests: BTreeMap::new(),
            born: BTreeMap::new(),
            queued_aborts: 0,
            cut: BTreeSet::new(),
            lanes: BTreeMap::new(),
            incarnation: 0,
            wakeup: 0,
            lives: Vec::new(),
            counts: Counts::default(),
            hops: BTreeMap::new(),
            attached: false,
            blind: Vec::new(),
            owed: BTreeMap::new(),
            hidden: shape.attached_after > 0 || !shape.takes_seen || !shape.deliveries_seen,
            told: Vec::new(),
        };
        for (number, step) in steps.iter().enumerate() {
            if number >= shape.attached_after {
                world.attach();
            }
            world.step(step);
        }
        world.attach();
        world
    }

    /// The time now.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Places of the path: the hops of each have one name.
    fn places(&self) -> usize {
        match self.shape.path {
            Path::Direct => 1,
            Path::Detokenizer => 2,
            Path::Workers(_) => 3,
        }
    }

    fn name(&self, place: usize) -> &'static str {
        match (self.shape.path, place) {
            (Path::Direct, _) => "scheduler->tokenizer",
            (_, 0) => "scheduler->detokenizer",
            (Path::Detokenizer, _) => "detokenizer->tokenizer",
            (Path::Workers(_), 1) => "detokenizer->router",
            (Path::Workers(_), _) => "router->tokenizer",
        }
    }

    /// The place of a hop on the path.
    fn place(&self, hop: HopId) -> usize {
        usize::from(hop.0).min(self.places() - 1)
    }

    fn is_last(&self, place: usize) -> bool {
        place + 1 == self.places()
    }

    fn attach(&mut self) {
        if std::mem::replace(&mut self.attached, true) {
            return;
        }
        self.say(Told::Engine(self.shape.policy));
        let workers = match self.shape.path {
            Path::Workers(workers) => workers,
            _ => 1,
        };
        for place in 0..self.places() {
            let last = self.is_last(place);
            for worker in 0..if last { workers } else { 1 } {
                let sees = Sees {
                    sent: true,
                    taken: self.shape.takes_seen,
                    delivered: last && self.shape.deliveries_seen,
                    ..Sees::default()
                };
                self.say(Told::Hop {
                    id: HopId(place as u16 + worker),
                    name: self.name(place),
                    worker: (workers > 1 && last).then_some(worker),
                    origin: place == 0,
                    last,
                    sees,
                });
            }
        }
        // The source numbers frames from here on; what is under way it has not seen.
        for lane in self.lanes.values_mut() {
            lane.seq = 0;
            lane.queue.iter_mut().for_each(|flight| flight.id = None);
        }
    }

    fn say(&mut self, told: Told) {
        if self.attached {
            self.told.push((self.now, Some(told)));
        }
        if !self.shape.equal_stamps {
            self.now += US;
        }
    }

    /// Whether the next observation of this sort is lost; what is owed of earlier ones is said before one that is not.
    fn loses(&mut self, sight: Sight, hop: Option<HopId>) -> bool {
        if !self.attached {
            return false;
        }
        let places = self.places();
        let meant = |what: Sight| match (what, sight) {
            (Sight::Frames(a), Sight::Frames(b))
            | (Sight::Takes(a), Sight::Takes(b))
            | (Sight::Content(a), Sight::Content(b)) => a % places == b,
            (Sight::Deliveries, Sight::Deliveries) => true,
            _ => false,
        };
        let Some(at) = self.blind.iter().position(|&(what, count, _)| count > 0 && meant(what)) else {
            return false;
        };
        self.blind[at].1 -= 1;
        self.hidden = true;
        if !matches!(sight, Sight::Content(_)) {
            *self.owed.entry(hop).or_default() += 1;
            if self.blind[at].2 {
                self.own_up(hop);
            }
        }
        true
    }

    fn own_up(&mut self, hop: Option<HopId>) {
        if let Some(count) = self.owed.remove(&hop) {
            let now = self.now;
            self.say(Told::Lost {
                hop,
                count,
                cause: LostCause::QueueFull,
            });
            // It takes the engine no time.
            self.now = now;
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Send { rank, parts } => self.schedule(rank % self.shape.ranks, parts),
            Step::Pass { hop, frames } => (0..*frames).for_each(|_| self.pass(*hop)),
            Step::Take { lane, frames } => {
                self.wakeup += 1;
                (0..*frames).for_each(|_| self.take_last(*lane));
            }
            Step::Serve { request } => self.serve(*request),
            Step::Leave { request } => {
                if let Some(running) = self.requests.get_mut(request).filter(|r| !r.closed && r.sent > 0) {
                    running.left = true;
                    running.closed |= running.out.iter().any(|part| part.finish.is_some());
                    running.out.clear();
                }
            }
            Step::Retract { request } => {
                // Once a request, and not where a delivery says all so far: counts that run behind cannot be told apart there.
                let fit = |r: &&mut Running| r.retractions == 0 && r.sent > 0 && !r.finished;
                if self.shape.policy != Policy::Cumulative
                    && let Some(running) = self.requests.get_mut(request).filter(fit)
                {
                    running.made = 0;
                    running.retractions = 1;
                }
            }
            Step::AbortQueued { rank } => self.abort_queued(rank % self.shape.ranks),
            Step::Cut { rank } => {
                self.cut.insert(rank % self.shape.ranks);
            }
            Step::Blind { what, count, at_once } => self.blind.push((*what, *count, *at_once)),
            Step::Restart => self.restart(),
            Step::Wait(ms) => self.now += u64::from(*ms) * MS,
            Step::Tick => {
                if self.attached {
                    self.told.push((self.now, None));
                }
            }
        }
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        self.lanes.clear();
        self.requests.clear();
        self.cut.clear();
        let owed: Vec<_> = self.owed.keys().copied().collect();
        for hop in owed {
            self.own_up(hop);
        }
        self.say(Told::Lost {
            hop: None,
            count: 0,
            cause: LostCause::Ended,
        });
    }

    /// A scheduler makes a frame. Its requests are its own.
    fn schedule(&mut self, rank: u32, wanted: &[(usize, u32, bool)]) {
        let mut parts: Vec<Part> = Vec::new();
        for &(request, new, finish) in wanted {
            let request = request * 3 + rank as usize;
            let twice = parts
                .iter()
                .any(|part| self.requests.get(&request).is_some_and(|r| r.life == part.life));
            if twice {
                continue;
            }
            if self.requests.get(&request).is_some_and(|r| r.finished && r.closed) {
                self.requests.remove(&request);
            }
            if !self.requests.contains_key(&request) {
                self.begin(request);
            }
            let Some(running) = self.requests.get_mut(&request).filter(|r| !r.finished) else {
                continue;
            };
            let finish = finish || running.left;
            // A token in every chunk but, sometimes, the last.
            let new = if new == 0 && (!finish || running.sent == 0) {
                1
            } else {
                new
            };
            running.made += new;
            let tokens = running.made.saturating_sub(running.sent);
            running.sent = running.sent.max(running.made);
            running.finished = finish;
            let life = &mut self.lives[running.life];
            life.made = running.sent;
            life.over |= finish;
            life.last_at = self.now;
            parts.push(Part {
                rid: life.rid.clone(),
                life: running.life,
                tokens,
                end: running.sent,
                said: running.made,
                finish: finish.then_some(if running.left { Finish::Abort } else { Finish::Stop }),
                retractions: running.retractions,
            });
        }
        if parts.is_empty() {
            return;
        }
        if self.cut.remove(&rank) {
            for part in &parts {
                self.counts.tokens_cut += u64::from(part.tokens);
                self.lives[part.life].cut.extend(part.places());
                if part.finish.is_some() {
                    // The tokenizer waits for ever, and its client with it.
                    self.requests.retain(|_, r| r.life != part.life);
                }
            }
            return;
        }
        for part in &parts {
            let life = &mut self.lives[part.life];
            let new = life.first_sent.is_none();
            life.first_sent.get_or_insert(self.now);
            let counts = &mut self.counts;
            counts.requests += u64::from(new);
            counts.chunks_sent += 1;
            counts.tokens_sent += u64::from(part.tokens);
            counts.finished += u64::from(part.finish.is_some());
            counts.aborted += u64::from(part.finish == Some(Finish::Abort));
        }
        self.send(HopId(0), rank, Kind::TokenIds, parts.into());
    }

    fn begin(&mut self, request: usize) {
        let born = self.born.entry(request).or_default();
        let times = if self.shape.rids_again { 2 } else { 1 };
        let rid: Rc<str> = format!("r{request}-{}", *born / times).into();
        *born += 1;
        self.lives.push(Life { rid, ..Life::default() });
        let running = Running {
            life: self.lives.len() - 1,
            made: 0,
            sent: 0,
            retractions: 0,
            left: false,
            finished: false,
            closed: false,
            out: VecDeque::new(),
            received: 0,
        };
        self.requests.insert(request, running);
    }

    fn abort_queued(&mut self, rank: u32) {
        self.queued_aborts += 1;
        let rid: Rc<str> = format!("q{}", self.queued_aborts).into();
        self.lives.push(Life {
            rid: rid.clone(),
            over: true,
            ..Life::default()
        });
        self.counts.requests += 1;
        self.counts.aborted += 1;
        let part = Part {
            rid,
            life: self.lives.len() - 1,
            tokens: 0,
            end: 0,
            said: 0,
            finish: Some(Finish::Abort),
            retractions: 0,
        };
        self.send(HopId(0), rank, Kind::Abort, [part].into());
    }

    /// A frame enters a hop.
    fn send(&mut self, hop: HopId, lane: u32, kind: Kind, parts: Rc<[Part]>) {
        let place = self.place(hop);
        let name = self.name(place);
        let lane = lane + self.incarnation * 16;
        let state = self.lanes.entry((hop, lane)).or_default();
        let id = FrameId {
            hop,
            lane,
            seq: state.seq,
        };
        state.seq += 1;
        let unseen = self.loses(Sight::Frames(place), Some(hop));
        if !unseen {
            self.own_up(Some(hop));
            let told = if self.loses(Sight::Content(place), Some(hop)) {
                Told::Undecoded(id)
            } else {
                Told::Sent {
                    id,
                    kind,
                    parts: parts.clone(),
                }
            };
            self.say(told);
        }
        if self.is_last(place) && kind != Kind::Abort {
            self.counts.outstanding += parts.len() as u64;
        }
        let flight = Flight {
            id: self.attached.then_some(id),
            unseen,
            kind,
            parts,
        };
        let truth = self.hops.entry(name).or_default();
        truth.frames_sent += 1;
        if flight.kind != Kind::Abort {
            truth.chunks += flight.parts.len() as u64;
            truth.tokens += flight.parts.iter().map(|part| u64::from(part.tokens)).sum::<u64>();
        }
        truth.backlog_max = truth.backlog_max.max(truth.frames_sent - truth.frames_taken);
        self.lanes.entry((hop, lane)).or_default().queue.push_back(flight);
    }

    /// A frame leaves a hop, if one waits.
    fn take(&mut self, hop: HopId, lane: u32) -> Option<Flight> {
        let flight = self.lanes.get_mut(&(hop, lane))?.queue.pop_front()?;
        let place = self.place(hop);
        self.hops.entry(self.name(place)).or_default().frames_taken += 1;
        if let Some(id) = flight.id.filter(|_| self.shape.takes_seen && !flight.unseen)
            && !self.loses(Sight::Takes(place), Some(hop))
        {
            self.own_up(Some(hop));
            self.say(Told::Taken {
                id,
                wakeup: self.wakeup,
            });
        }
        Some(flight)
    }

    /// The connections of the hops between `from` and `to` that have something, in some order.
    fn waiting(&self, last: bool) -> Vec<(HopId, u32)> {
        let of = |hop: HopId| self.is_last(self.place(hop)) == last;
        let lanes = self
            .lanes
            .iter()
            .filter(|((hop, _), lane)| of(*hop) && !lane.queue.is_empty());
        lanes.map(|(at, _)| *at).collect()
    }

    fn pass(&mut self, choice: usize) {
        let waiting = self.waiting(false);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let Some(flight) = self.take(hop, lane) else { return };
        if flight.kind == Kind::Abort {
            return;
        }
        let next = HopId(hop.0 + 1);
        match self.shape.path {
            // One frame a worker.
            Path::Workers(workers) if hop.0 == 1 => {
                for worker in 0..workers {
                    let its = |part: &&Part| part.life % usize::from(workers) == usize::from(worker);
                    let parts: Rc<[Part]> = flight.parts.iter().filter(its).cloned().collect();
                    if !parts.is_empty() {
                        self.send(HopId(next.0 + worker), 0, Kind::Text, parts);
                    }
                }
            }
            _ => self.send(next, 0, Kind::Text, flight.parts),
        }
    }

    fn take_last(&mut self, choice: usize) {
        let waiting = self.waiting(true);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let taken_at = self.now;
        let Some(flight) = self.take(hop, lane) else { return };
        if flight.kind == Kind::Abort {
            return;
        }
        for part in flight.parts.iter() {
            self.counts.chunks_taken += 1;
            self.counts.tokens_taken += u64::from(part.tokens);
            let life = &mut self.lives[part.life];
            life.first_taken.get_or_insert(taken_at);
            life.last_at = taken_at;
            let running = self.requests.values_mut().find(|r| r.life == part.life);
            match running {
                // Nobody waits for it.
                Some(running) if running.left => running.closed |= part.finish.is_some(),
                Some(running) => running.out.push_back(part.clone()),
                None => {}
            }
        }
    }

    fn serve(&mut self, request: usize) {
        let policy = self.shape.policy;
        let Some(running) = self.requests.get_mut(&request).filter(|r| !r.out.is_empty()) else {
            return;
        };
        let served: Vec<Part> = match policy {
            Policy::YieldsAll => running.out.pop_front().into_iter().collect(),
            _ => running.out.drain(..).collect(),
        };
        let Some((last, before)) = served.split_last() else {
            return;
        };
        running.closed |= last.finish.is_some();
        running.received += served.iter().map(|part| part.tokens).sum::<u32>();
        let received = running.received;
        let mut tokens = last.tokens;
        let counts = &mut self.counts;
        counts.chunks_delivered += 1;
        counts.outstanding -= served.len() as u64;
        let life = &mut self.lives[last.life];
        for part in before {
            if policy == Policy::KeepsLast && part.tokens > 0 {
                counts.dropped += 1;
                counts.tokens_lost += u64::from(part.tokens);
                life.chunks_dropped += 1;
                life.dropped.extend(part.places());
            } else {
                counts.coalesced += 1;
                tokens += if policy == Policy::KeepsLast { 0 } else { part.tokens };
            }
        }
        counts.tokens_delivered += u64::from(tokens);
        life.last_at = self.now;
        if !self.shape.deliveries_seen || self.loses(Sight::Deliveries, None) {
            return;
        }
        self.own_up(None);
        let cumulative = policy == Policy::Cumulative;
        self.say(Told::Delivered {
            rid: last.rid.clone(),
            tokens: if cumulative { received } else { tokens },
            mode: if cumulative {
                Mode::Cumulative
            } else {
                Mode::Incremental
            },
            said: last.said,
            finished: last.finish.is_some(),
        });
    }
}
