//! A minimal server that tracks the location and outcome of every token. It records its observable part as events of a source.

mod hops;
mod observation;
mod scheduler;
mod tokenizer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use trace::event::{AnswerEnd, Kind, Missed, MissedCause, What};
use trace::{FrameId, HopId};

use crate::events::{OwnedEvent, Part};
use crate::schedule::{Observation, Shape, Step, Visibility};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Lost tokens of a request, by position: the number of the chunk.
pub(crate) type LostTokens = BTreeMap<u32, u32>;

#[derive(Debug, Default)]
pub(crate) struct RequestTruth {
    pub(crate) rid: Rc<str>,
    /// When its first frame left the scheduler, and when the tokenizer received its first chunk.
    pub(crate) first_sent: Option<u64>,
    pub(crate) first_received: Option<u64>,
    /// Positions of tokens that the tokenizer received and dropped, though later ones were delivered.
    pub(crate) dropped: LostTokens,
    /// Tokens predicted as lost: another chunk of the request arrived before its waiter ran.
    pub(crate) predicted: LostTokens,
    /// Tokens of frames lost since its last chunk that crossed the wire.
    pub(crate) lost_since: u64,
    /// Chunks that the scheduler sent and the wire did not lose.
    pub(crate) chunks: u32,
    /// Its finishing chunk has been sent.
    pub(crate) finished: bool,
    pub(crate) last_at: u64,
}

/// Counts over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) chunks_sent: u64,
    pub(crate) tokens_sent: u64,
    pub(crate) chunks_received: u64,
    pub(crate) tokens_received: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) merged: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) tokens_missing_on_wire: u64,
    /// Chunks that entered the tokenizer's hop and are neither delivered nor lost.
    pub(crate) in_flight: u64,
    /// Ended responses, and those that the client or the server ended early.
    pub(crate) answers: u64,
    pub(crate) client_left: u64,
    pub(crate) server_left: u64,
}

/// Traffic of all hops with one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HopTruth {
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    pub(crate) backlog_max: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
}

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
    /// Current time in nanoseconds.
    pub(crate) now: u64,
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
    /// Times at which a scheduler sent a frame, observed or not.
    pub(crate) engine_sent_at: Vec<u64>,
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
