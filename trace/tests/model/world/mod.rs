//! A minimal server that tracks the location and outcome of every token. It records its observable part as events of a source.

mod hops;
mod observation;
mod scheduler;
mod tokenizer;
mod truth;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use trace::event::{AnswerEnd, Kind, Missed, MissedCause, What};
use trace::{FrameId, HopId};

use crate::events::{OwnedEvent, Part};
use crate::schedule::{Observation, Shape, Step, Visibility};
pub(crate) use truth::{Counts, HopTruth, LostTokens, RequestTruth};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// A live request.
#[derive(Clone, Debug, Default)]
struct Running {
    request: usize,
    generated: u32,
    sent: u32,
    retractions: u32,
    disconnected: bool,
    finished: bool,
    /// Its response is complete, or its client has disconnected: the rid may be reused.
    closed: bool,
    queued: VecDeque<Part>,
    /// Tokens that its waiter received, and tokens in its response.
    received: u32,
    in_response: u32,
    /// Last count claimed by its response.
    claimed: Option<u32>,
}

#[derive(Clone, Debug)]
struct QueuedFrame {
    /// Frame number assigned by the source; `None` if it was sent before observation began.
    id: Option<FrameId>,
    /// Its send was not observed, so its receive is not either.
    missed: bool,
    kind: Kind,
    parts: Rc<[Part]>,
}

#[derive(Debug, Default)]
struct Lane {
    /// Number that the source assigns to the next frame.
    seq: u64,
    queue: VecDeque<QueuedFrame>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) shape: Shape,
    now: u64,
    running: BTreeMap<usize, Running>,
    started: BTreeMap<usize, u32>,
    queued_aborts: u32,
    lossy_ranks: BTreeSet<u32>,
    lanes: BTreeMap<(HopId, u32), Lane>,
    /// Number of restarts; each starts new connections.
    incarnation: u32,
    wakeup: u64,
    /// Frames received in this wakeup.
    frame_of_wakeup: u32,
    /// For each request, the frame of this wakeup that woke its waiter, and the last received chunk.
    notified: BTreeMap<usize, u32>,
    previous: BTreeMap<usize, Part>,
    /// Chunks predicted as dropped.
    pub(crate) predicted: u64,
    /// Tokens missing on the wire before a later chunk of their request.
    pub(crate) tokens_judged_missing: u64,
    pub(crate) requests: Vec<RequestTruth>,
    pub(crate) counts: Counts,
    pub(crate) hops: BTreeMap<&'static str, HopTruth>,
    /// Tokens missing from complete responses compared with their claimed counts, where both were observed.
    pub(crate) tokens_short: u64,
    attached: bool,
    /// Observations to miss: kind, count, and whether the loss is reported at once.
    pending_misses: Vec<(Observation, u8, bool)>,
    /// Unobserved tokenizers, by the hop that leads to each.
    unobserved: BTreeMap<HopId, Visibility>,
    /// Missed observations not yet reported.
    unreported: BTreeMap<Option<HopId>, u64>,
    /// A frame was lost before it entered the first hop. It may have carried no tokens.
    pub(crate) frame_lost: bool,
    /// Some part of the run was not observed.
    pub(crate) incomplete: bool,
    /// Events of the source; `None` is a tick.
    pub(crate) events: Vec<(u64, Option<OwnedEvent>)>,
}

impl World {
    pub(crate) fn run(shape: Shape, steps: &[Step]) -> Self {
        let mut world = Self {
            shape,
            now: 1_000 * MS,
            incomplete: shape.attached_after > 0 || !shape.receives_observed || !shape.deliveries_observed,
            ..Self::default()
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
            Step::Forward { hop, frames } => (0..*frames).for_each(|_| self.forward(*hop)),
            Step::Receive { lane, frames } => {
                self.wakeup += 1;
                self.frame_of_wakeup = 0;
                self.notified.clear();
                (0..*frames).for_each(|_| self.receive_on_last_hop(*lane));
            }
            Step::Serve { request } => self.serve(*request),
            Step::Disconnect { request } => self.disconnect(*request),
            Step::Retract { request } => self.retract(*request),
            Step::AbortQueued { rank } => self.abort_queued(rank % self.shape.ranks),
            Step::LoseFrame { rank } => {
                self.lossy_ranks.insert(rank % self.shape.ranks);
            }
            Step::Miss { kind, count, at_once } => self.pending_misses.push((*kind, *count, *at_once)),
            Step::SetVisibility { worker, visibility } => self.set_visibility(*worker, *visibility),
            Step::Restart => self.restart(),
            Step::Wait(ms) => self.now += u64::from(*ms) * MS,
            Step::Tick => {
                if self.attached {
                    self.events.push((self.now, None));
                }
            }
        }
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        self.lanes.clear();
        for running in std::mem::take(&mut self.running).into_values() {
            if !running.closed && !running.disconnected {
                self.record_answer(&running, AnswerEnd::ServerLeft);
            }
        }
        self.lossy_ranks.clear();
        let unreported: Vec<_> = self.unreported.keys().copied().collect();
        for hop in unreported {
            self.report_missed(hop);
        }
        let ended = Missed::new(None, 0, MissedCause::Ended);
        self.emit(OwnedEvent::Plain(What::Missed(ended)));
    }
}
