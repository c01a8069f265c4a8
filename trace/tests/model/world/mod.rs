//! A minimal server that tracks the location and outcome of every token. It records its observable part as events of a source.

mod hops;
mod scheduler;
mod sight;
mod tokenizer;
mod truth;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use trace::event::{AnswerEnd, Kind, LostCause};
use trace::{FrameId, HopId};

use crate::schedule::{Shape, Sight, Step, Watched};
use crate::told::{Part, Told};
pub(crate) use truth::{Counts, HopTruth, Life};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// A live request.
#[derive(Clone, Debug)]
struct Running {
    life: usize,
    made: u32,
    sent: u32,
    retractions: u32,
    left: bool,
    finished: bool,
    /// Its response is complete, or its client has left: the rid may be reused.
    closed: bool,
    out: VecDeque<Part>,
    /// Tokens that its waiter received, and tokens in its response.
    received: u32,
    carried: u32,
    /// Last count claimed by its response.
    claimed: Option<u32>,
}

#[derive(Clone, Debug)]
struct Flight {
    /// Frame number assigned by the source; `None` if it was sent before observation began.
    id: Option<FrameId>,
    /// Its send was missed, and its receive will be too.
    unseen: bool,
    kind: Kind,
    parts: Rc<[Part]>,
}

#[derive(Debug, Default)]
struct Lane {
    /// Number that the source assigns to the next frame.
    seq: u64,
    queue: VecDeque<Flight>,
}

pub(crate) struct World {
    pub(crate) shape: Shape,
    now: u64,
    requests: BTreeMap<usize, Running>,
    born: BTreeMap<usize, u32>,
    queued_aborts: u32,
    cut: BTreeSet<u32>,
    lanes: BTreeMap<(HopId, u32), Lane>,
    /// Number of restarts; each starts new connections.
    incarnation: u32,
    wakeup: u64,
    pub(crate) lives: Vec<Life>,
    pub(crate) counts: Counts,
    pub(crate) hops: BTreeMap<&'static str, HopTruth>,
    /// Tokens missing from complete responses compared with their claimed counts, where both were observed.
    pub(crate) short: u64,
    attached: bool,
    /// Observations to miss: kind, count, and whether the loss is reported at once.
    blind: Vec<(Sight, u8, bool)>,
    /// Unobserved tokenizers, by the hop that leads to each.
    unwatched: BTreeMap<HopId, Watched>,
    /// Missed observations not yet reported.
    owed: BTreeMap<Option<HopId>, u64>,
    /// A frame was lost before it entered the first hop. It may have carried no tokens.
    pub(crate) vanished: bool,
    /// Some part of the run was not observed.
    pub(crate) hidden: bool,
    /// Events of the source; `None` is a tick.
    pub(crate) told: Vec<(u64, Option<Told>)>,
}

impl World {
    /// Runs the schedule.
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
            short: 0,
            attached: false,
            blind: Vec::new(),
            unwatched: BTreeMap::new(),
            owed: BTreeMap::new(),
            vanished: false,
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

    /// Current time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
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
            Step::Leave { request } => self.leave(*request),
            Step::Retract { request } => self.retract(*request),
            Step::AbortQueued { rank } => self.abort_queued(rank % self.shape.ranks),
            Step::Cut { rank } => {
                self.cut.insert(rank % self.shape.ranks);
            }
            Step::Blind { what, count, at_once } => self.blind.push((*what, *count, *at_once)),
            Step::Watch { worker, sight } => self.watch(*worker, *sight),
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
        for running in std::mem::take(&mut self.requests).into_values() {
            if !running.closed && !running.left {
                self.answered(&running, AnswerEnd::ServerLeft);
            }
        }
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
}
