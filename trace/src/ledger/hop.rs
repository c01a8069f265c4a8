//! Hops, and groups of hops with one name.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::absence::AwayTimes;
use super::kernel::KernelQueue;
use super::lane::{Lane, LaneCounts, PendingChunk};
use super::passage::{Ends, Passages};
use super::stream::Stream;
use super::timeline::Spent;
use super::totals::Sightings;
use crate::clock::MonoNs;
use crate::event::{self, Sees};
use crate::id::{FrameId, HopId, ThreadId};
use crate::stats::{Buckets, Distribution, Rate, Tally, Trend, WindowedSum};

/// Maximum number of received, unprocessed frames remembered per hop.
const UNHANDLED: usize = 1_024;
/// Maximum number of distinct reasons for undecoded frames; further ones share an entry.
const REASONS: usize = 32;

/// Traffic on a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopCounts {
    /// Frames sent, undecoded ones included.
    pub frames_sent: u64,
    /// Frames forwarded by the relay.
    pub frames_forwarded: u64,
    /// Frames received by the application.
    pub frames_taken: u64,
    /// Of those, frames whose receive was not observed but follows from a later receive on the same lane.
    pub takes_inferred: u64,
    /// Frames processed by the application.
    pub frames_handled: u64,
    /// Chunks inside the frames.
    pub chunks: u64,
    /// New tokens inside them, by the streams' own counts.
    pub tokens: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Total processing time of frames (processed minus received), in nanoseconds.
    pub busy_ns: u64,
    /// Frames that could not be decoded.
    pub undecoded: u64,
    /// Frames sent and not received.
    pub backlog: u64,
    /// Maximum backlog.
    pub backlog_max: u64,
    /// Maximum number of frames received in one wakeup.
    pub wakeup_frames_max: u32,
    /// Observations missed here.
    pub lost: u64,
}

/// A receive observed before its send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct EarlyTake {
    pub(crate) id: FrameId,
    pub(crate) at: MonoNs,
    pub(crate) trip: Option<Trip>,
}

/// Frames received in one wakeup without waiting in between.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Burst {
    wakeup: u64,
    number: u64,
    frames: u32,
}

impl Burst {
    /// Enters a frame. Returns the number of its burst and its index in it.
    pub(crate) fn enter(&mut self, wakeup: u64, waited: bool) -> (u64, u32) {
        if self.number == 0 || waited || wakeup != self.wakeup {
            (self.wakeup, self.number, self.frames) = (wakeup, self.number + 1, 0);
        }
        let place = self.frames;
        self.frames = place.saturating_add(1);
        (self.number, place)
    }
}

/// Position of a received frame within its receiver's bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trip {
    pub(crate) by: Taker,
    /// Number of the receiver's burst (1-based).
    pub(crate) burst: u64,
    /// Index of the frame within the burst, over all hops: each frame takes the same number of event-loop turns.
    pub(crate) frame: u32,
}

/// Receiver of a frame, for counting its wakeups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Taker {
    Thread(ThreadId),
    /// The thread is not observed; each hop is assumed to have its own.
    OfHop(HopId),
}

/// A directed channel.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the hop, read by its name"
)]
pub struct Hop {
    pub(crate) id: HopId,
    pub(crate) group: usize,
    pub(crate) ends: Ends,
    pub(crate) endpoint: Box<str>,
    pub(crate) worker: Option<u16>,
    pub(crate) origin: bool,
    pub(crate) last: bool,
    /// The receiver is not known yet and may be the tokenizer.
    pub(crate) open: bool,
    /// Stages currently observed.
    pub(crate) shows: Sees,
    /// Stages observed at any time.
    #[serde(default)]
    pub(crate) sees: Sees,
    /// Its chunks are entered into delivery trackers.
    pub(crate) lines_up: bool,
    /// Number of its chunks entered into delivery trackers.
    pub(crate) lined_up: u64,
    /// Chunks without an expected delivery: health checks, repeated finishes and chunks without a rid.
    pub(crate) set_aside: u64,
    /// Incremented whenever observations are missed.
    pub(crate) epoch: u32,
    /// Missed frames already covered by a loss report.
    pub(crate) excused: u64,
    pub(crate) counts: HopCounts,
    pub(crate) lanes: HashMap<u32, Lane>,
    pub(crate) early: VecDeque<EarlyTake>,
    pub(crate) unhandled: VecDeque<(FrameId, MonoNs)>,
    /// Thread of the last receive.
    pub(crate) by: Option<ThreadId>,
    /// Queue wait (received minus sent) on this hop.
    pub(crate) residence: Buckets,
    /// Queue wait, counted once for each chunk of the frame.
    pub(crate) chunk_waits: WindowedSum,
    /// Queue waits of requests' first chunks.
    pub(crate) first_waits: WindowedSum,
    /// Time of the receiving thread while frames waited for it.
    pub(crate) while_waiting: Spent,
    #[serde(default)]
    pub(crate) away: AwayTimes,
    wakeup: Option<(u64, u32)>,
    /// Its receiver's burst, used if the receiving thread is not observed.
    #[serde(default)]
    pub(crate) burst: Burst,
    /// When its receiver finished the last frame; `None` after the next receive. Used if the receiving thread is not observed.
    #[serde(default)]
    pub(crate) asked: Option<MonoNs>,
}

impl Hop {
    fn new(id: HopId, group: usize) -> Self {
        Self {
            id,
            group,
            ends: Ends::default(),
            endpoint: Box::default(),
            worker: None,
            origin: false,
            last: false,
            open: false,
            shows: Sees::default(),
            sees: Sees::default(),
            lines_up: false,
            lined_up: 0,
            set_aside: 0,
            epoch: 0,
            excused: 0,
            counts: HopCounts::default(),
            lanes: HashMap::new(),
            early: VecDeque::new(),
            unhandled: VecDeque::new(),
            by: None,
            residence: Buckets::default(),
            chunk_waits: WindowedSum::default(),
            first_waits: WindowedSum::default(),
            while_waiting: Spent::default(),
            away: AwayTimes::default(),
            wakeup: None,
            burst: Burst::default(),
            asked: None,
        }
    }

    /// Queue wait (received minus sent) on this hop.
    pub fn residence(&self) -> Tally {
        self.residence.tally()
    }

    /// Queue wait, counted once for each chunk of the frame.
    pub fn chunk_waits(&self) -> &WindowedSum {
        &self.chunk_waits
    }

    /// Queue waits of requests' first chunks that have been received.
    pub fn first_waits(&self) -> &WindowedSum {
        &self.first_waits
    }

    /// Time of the receiving thread while frames waited for it; empty if not sampled.
    pub fn while_waiting(&self) -> Spent {
        self.while_waiting
    }

    /// Why the receiving thread did not run in that time.
    pub fn away(&self) -> AwayTimes {
        self.away
    }

    /// Traffic of each remembered connection, by its number.
    pub fn lanes(&self) -> impl Iterator<Item = (u32, LaneCounts)> {
        self.lanes.iter().map(|(&number, lane)| (number, lane.counts))
    }

    /// Id of the hop.
    pub fn id(&self) -> HopId {
        self.id
    }

    /// Endpoint in ZMQ notation; empty when unknown.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Number of the tokenizer worker that receives.
    pub fn worker(&self) -> Option<u16> {
        self.worker
    }

    /// Index of its group in [`super::Ledger::groups`].
    pub fn group(&self) -> usize {
        self.group
    }

    /// Whether it is the first of the path: its sends are the scheduler's.
    pub fn is_origin(&self) -> bool {
        self.origin
    }

    /// Whether it is the last of the path: its receives are the tokenizer's.
    pub fn is_last(&self) -> bool {
        self.last
    }

    /// Traffic on the hop.
    pub fn counts(&self) -> HopCounts {
        self.counts
    }

    /// Stages observed here at any time: a receiver may have ended, or been detected late.
    pub fn sees(&self) -> Sees {
        self.sees
    }

    /// Whether it leads, or may lead, to the tokenizer while the tokenizer's receives are not observed.
    pub(crate) fn hides_takes(&self) -> bool {
        (self.last || self.open) && !self.shows.taken
    }

    /// Stops waiting for receives, which are no longer observed. Returns the number of queued frames, without evicted ones, and their
    /// chunks.
    pub(crate) fn forget_waiting(&mut self) -> (usize, Vec<PendingChunk>) {
        let (mut frames, mut chunks) = (0, Vec::new());
        for lane in self.lanes.values_mut() {
            frames += lane.forget_waiting(&mut chunks);
        }
        self.counts.backlog = 0;
        (frames, chunks)
    }

    /// When the oldest queued frame was sent; `None` if none is queued.
    pub fn oldest_waiting(&self) -> Option<MonoNs> {
        self.lanes.values().filter_map(Lane::oldest).min()
    }

    /// Chunks and bytes of the queued frames; `None` if some were evicted at a limit.
    pub fn waiting_load(&self) -> Option<(u64, u64)> {
        let mut loads = self.lanes.values().map(Lane::waiting_load);
        loads.try_fold((0, 0), |sum, load| load.map(|load| (sum.0 + load.0, sum.1 + load.1)))
    }

    /// Thread of the last receive; `None` if not observed.
    pub fn taker(&self) -> Option<ThreadId> {
        self.by
    }

    /// Counts the frames of a wakeup. At the first frame of a new wakeup, returns the count of the previous one.
    pub(crate) fn woke(&mut self, wakeup: u64) -> Option<u32> {
        let (frames, last) = match self.wakeup {
            Some((last, frames)) if last == wakeup => (frames + 1, None),
            last => (1, last.map(|(_, frames)| frames)),
        };
        self.wakeup = Some((wakeup, frames));
        self.counts.wakeup_frames_max = self.counts.wakeup_frames_max.max(frames);
        last
    }

    pub(crate) fn took(&mut self, id: FrameId, at: MonoNs) {
        if !self.shows.handled {
            return;
        }
        if self.unhandled.len() == UNHANDLED {
            self.unhandled.pop_front();
        }
        self.unhandled.push_back((id, at));
    }

    /// Returns when the processed frame was received. A receiver processes frames in the order received.
    pub(crate) fn handled(&mut self, id: FrameId) -> Option<MonoNs> {
        let at = self.unhandled.iter().position(|u| u.0 == id)?;
        self.unhandled.drain(..=at).next_back().map(|u| u.1)
    }
}

/// Hops of one name, reported together.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// `from->to`, by role.
    pub name: String,
    /// Frames sent and not received, over all of its hops.
    pub backlog: u64,
    /// Maximum backlog at one time.
    pub backlog_max: u64,
    /// Time of the maximum backlog.
    pub backlog_max_at: MonoNs,
    /// Maximum backlog in the current time slot.
    pub(crate) backlog_slot: u64,
    /// Queue wait: received minus sent.
    pub residence: Distribution,
    /// Queue waits in the current time slot.
    pub(crate) residence_slot: Buckets,
    /// Forwarded minus sent.
    pub relay: Distribution,
    /// Processed minus received.
    pub handling: Distribution,
    /// Received minus requested: how long receivers waited for a frame.
    pub recv_wait: Distribution,
    /// Frames received per wakeup, over finished wakeups; a count, not a time.
    pub wakeups: Distribution,
    /// Bytes in kernel queues.
    pub kernel: KernelQueue,
    /// Traffic per second.
    pub rate: Rate,
    /// Backlog over time.
    pub trend: Trend,
    /// Number of streams whose counts show new ids only, and of those that list all ids so far.
    pub streams: (u64, u64),
    /// Token ids that crossed.
    pub ids: super::IdCounts,
    /// Number of undecoded frames by reason.
    pub undecoded: BTreeMap<String, u64>,
    /// Requests whose chunks went to more than one receiver of the group.
    pub moved: Sightings,
    /// Chunks received after a later chunk of their request.
    pub out_of_order: Sightings,
}

impl Group {
    pub(crate) fn resided(&mut self, until: MonoNs, ns: u64) {
        self.residence.record(until, ns);
        self.residence_slot.record(ns);
    }

    pub(crate) fn undecoded(&mut self, reason: &str) {
        if let Some(count) = self.undecoded.get_mut(reason) {
            *count += 1;
        } else {
            let key = if self.undecoded.len() < REASONS {
                reason
            } else {
                "other reasons"
            };
            *self.undecoded.entry(key.to_owned()).or_default() += 1;
        }
    }
}

/// All hops.
#[derive(Debug, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about all hops, read by its name"
)]
pub(crate) struct Hops {
    pub(crate) all: Vec<Hop>,
    pub(crate) groups: Vec<Group>,
    /// Roles at the ends of hops, and time inside each process between two hops.
    pub(crate) passages: Passages,
    /// Index in `all` by id.
    by_id: HashMap<HopId, usize>,
    pub(crate) any_origin: bool,
    pub(crate) any_last: bool,
    /// Receives are or were observed on some hop.
    #[serde(default)]
    pub(crate) any_taken: bool,
    /// Deliveries are or were observed on some hop.
    pub(crate) any_delivered: bool,
}

impl Hops {
    /// Whether all indices are valid.
    pub(crate) fn is_sound(&self) -> bool {
        self.by_id.values().all(|&place| place < self.all.len())
            && self.all.iter().all(|hop| hop.group < self.groups.len())
    }

    /// The hop of a stream.
    pub(crate) fn of(&self, stream: &Stream) -> Option<&Hop> {
        self.by_id.get(&stream.hop).and_then(|&place| self.all.get(place))
    }

    /// Whether no observation of the hop was missed since the stream's last chunk.
    pub(crate) fn heard_all_since(&self, stream: &Stream) -> bool {
        let hop = self.of(stream);
        hop.is_some_and(|hop| hop.epoch == stream.epoch)
    }

    /// Index of the hop, which is added if unknown. `None` at the limit of hops.
    pub(crate) fn place(&mut self, id: HopId, limit: usize) -> Option<usize> {
        if let Some(&place) = self.by_id.get(&id) {
            return Some(place);
        }
        self.add(id, &format!("hop {}", id.0), limit)
    }

    fn add(&mut self, id: HopId, name: &str, limit: usize) -> Option<usize> {
        if self.all.len() >= limit {
            return None;
        }
        let group = self.group(name);
        let mut hop = Hop::new(id, group);
        hop.ends = self.ends(name);
        (hop.shows.sent, hop.sees.sent) = (true, true);
        self.all.push(hop);
        self.by_id.insert(id, self.all.len() - 1);
        Some(self.all.len() - 1)
    }

    /// Tokenizer worker at the end of these streams; `None` if there is only one, or none is known yet.
    pub(crate) fn worker_of(&self, streams: &[Stream]) -> Option<u16> {
        let hops = streams
            .iter()
            .rev()
            .filter_map(|s| self.all.get(*self.by_id.get(&s.hop)?));
        hops.filter(|hop| hop.last).find_map(|hop| hop.worker)
    }

    pub(crate) fn announce(&mut self, said: &event::Hop<'_>, limit: usize) -> bool {
        let known = self.by_id.get(&said.id).copied();
        let Some(place) = known.or_else(|| self.add(said.id, said.name, limit)) else {
            return false;
        };
        let before = self.all[place].group;
        let alone = !self.all.iter().any(|h| h.group == before && h.id != said.id);
        if alone && self.group_named(said.name).is_none() {
            // The whole group takes the new name, with its history.
            said.name.clone_into(&mut self.groups[before].name);
        }
        let (group, ends) = (self.group(said.name), self.ends(said.name));
        let hop = &mut self.all[place];
        (hop.group, hop.ends) = (group, ends);
        hop.endpoint = said.endpoint.into();
        (hop.worker, hop.origin, hop.last, hop.shows) = (said.worker, said.origin, said.last, said.sees);
        // A hop used before its announcement has presumed stages that count as observed; a new hop has none.
        let saw = known.map_or(Sees::default(), |_| hop.sees);
        hop.sees = saw.or(said.sees);
        hop.open = said.name.ends_with("->?");
        if said.sees.taken && !said.last {
            self.passages.takes_are_shown(ends.to);
        }
        if before != group {
            self.renamed(place, before);
        }
        self.any_origin = self.all.iter().any(|h| h.origin);
        self.any_last = self.all.iter().any(|h| h.last);
        // Chunks are tracked on one hop only: the hop into the tokenizer, if deliveries are observed there.
        let at_last = self.all.iter().any(|h| h.last && h.sees.delivered);
        for hop in &mut self.all {
            hop.lines_up = hop.sees.delivered && (hop.last || !at_last);
        }
        self.any_taken = self.all.iter().any(|h| h.sees.taken);
        self.any_delivered = self.all.iter().any(|h| h.sees.delivered);
        true
    }

    /// Moves the frames queued on the hop at `place` to its new group. Times and rates stay with the old group.
    fn renamed(&mut self, place: usize, before: usize) {
        let (group, counts) = (self.all[place].group, self.all[place].counts);
        let others = self.all.iter().filter(|h| h.group == before);
        let others_max = others.map(|h| h.counts.backlog_max).sum();
        let old = &mut self.groups[before];
        let at = old.backlog_max_at;
        old.backlog -= counts.backlog;
        old.backlog_max = old.backlog_max.min(others_max);
        let new = &mut self.groups[group];
        new.backlog += counts.backlog;
        let most = counts.backlog_max.max(new.backlog);
        if most > new.backlog_max {
            (new.backlog_max, new.backlog_max_at) = (most, at);
        }
    }

    fn ends(&mut self, name: &str) -> Ends {
        let (from, to) = name.split_once("->").unwrap_or((name, name));
        Ends {
            from: self.passages.role(from),
            to: self.passages.role(to),
        }
    }

    pub(crate) fn group_named(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|g| g.name == name)
    }

    fn group(&mut self, name: &str) -> usize {
        self.group_named(name).unwrap_or_else(|| {
            self.groups.push(Group {
                name: name.to_owned(),
                ..Group::default()
            });
            self.groups.len() - 1
        })
    }

    /// Makes room for a new lane. Evicts and returns the lane with the fewest queued frames, or the one silent longest.
    pub(crate) fn make_room(hop: &mut Hop, lane: u32, limit: usize) -> Option<Lane> {
        if hop.lanes.len() < limit.max(1) || hop.lanes.contains_key(&lane) {
            return None;
        }
        let quietest = hop
            .lanes
            .iter()
            .min_by_key(|(_, l)| (l.waiting(), l.last_at))
            .map(|(&id, _)| id)?;
        hop.lanes.remove(&quietest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: u16, name: &str) -> event::Hop<'_> {
        let sees = Sees {
            sent: true,
            ..Sees::default()
        };
        event::Hop {
            id: HopId(id),
            name,
            endpoint: "",
            worker: None,
            origin: id == 0,
            last: false,
            sees,
        }
    }

    #[test]
    fn hops_of_one_name_share_a_group_and_a_late_name_moves_the_hop() {
        let mut hops = Hops::default();
        assert_eq!(hops.place(HopId(1), 3), Some(0));
        assert_eq!(hops.groups[0].name, "hop 1");
        assert!(hops.announce(&named(0, "router->detokenizer"), 3));
        assert!(hops.announce(&named(1, "router->detokenizer"), 3));
        assert_eq!(hops.all[0].group, hops.all[1].group);
        assert!(hops.announce(&named(2, "x"), 3) && !hops.announce(&named(3, "y"), 3));
    }

    #[test]
    fn a_name_that_comes_late_takes_the_backlog_with_it() {
        let mut hops = Hops::default();
        assert!(hops.announce(&named(0, "scheduler->?"), 8));
        let wait = |hops: &mut Hops, place: usize, frames: u64| {
            let group = hops.all[place].group;
            (hops.all[place].counts.backlog, hops.all[place].counts.backlog_max) = (frames, frames);
            hops.groups[group].backlog += frames;
            hops.groups[group].backlog_max = hops.groups[group].backlog;
        };
        wait(&mut hops, 0, 5);
        assert!(hops.announce(&named(0, "scheduler->tokenizer"), 8));
        let of = |hops: &Hops, name: &str| {
            hops.group_named(name)
                .map(|g| (hops.groups[g].backlog, hops.groups[g].backlog_max))
        };
        assert_eq!(
            (of(&hops, "scheduler->?"), of(&hops, "scheduler->tokenizer")),
            (None, Some((5, 5)))
        );
        // One of two hops with the same name is renamed to the name of a third.
        assert!(hops.announce(&named(1, "scheduler->?"), 8) && hops.announce(&named(2, "scheduler->?"), 8));
        wait(&mut hops, 1, 3);
        wait(&mut hops, 2, 2);
        assert!(hops.announce(&named(1, "scheduler->tokenizer"), 8));
        assert_eq!(
            (of(&hops, "scheduler->?"), of(&hops, "scheduler->tokenizer")),
            (Some((2, 2)), Some((8, 8)))
        );
    }

    #[test]
    fn undecoded_reasons_are_bounded() {
        let mut group = Group::default();
        for n in 0..1000 {
            group.undecoded(&format!("reason {n}"));
        }
        assert_eq!(group.undecoded.len(), REASONS + 1);
        assert_eq!(group.undecoded.values().sum::<u64>(), 1000);
    }
}
