//! One hop.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use super::absence::AwayTimes;
use super::lane::{Lane, LaneCounts, PendingChunk, QueuedLoad};
use super::late_frames::LateFrames;
use super::limits::push_bounded;
use super::time_use::TimeUse;
use crate::clock::MonoNs;
use crate::event::Capabilities;
use crate::id::{FrameId, HopId, ThreadId, Ticket};
use crate::stats::{Buckets, LongDurations, RunSeconds, Tally, WindowedSum};

/// Maximum number of distinct reasons for undecoded frames; further ones share an entry.
const MAX_UNDECODED_REASONS: usize = 32;

/// Maximum number of requests whose first chunks are in such frames.
const MAX_UNPROCESSED_REQUESTS: usize = 4_096;
/// Maximum number of received, unprocessed frames remembered per hop.
const MAX_UNPROCESSED_FRAMES: usize = 1_024;
/// Traffic on a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopCounts {
    /// Frames sent, undecoded ones included.
    pub frames_sent: u64,
    /// Frames forwarded by the relay.
    pub frames_forwarded: u64,
    /// Frames received by the application.
    pub frames_received: u64,
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
    /// Maximum number of frames received in one wakeup, without a wait for a frame; 0 until the first one has ended.
    pub wakeup_frames_max: u32,
    /// Observations missed here.
    pub lost: u64,
}

/// A receive observed before its send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyReceive {
    pub(crate) id: FrameId,
    pub(crate) at: MonoNs,
    pub(crate) burst_position: Option<BurstPosition>,
}

/// Burst of the hop's receiver, and the number of the hop's frames received in it so far.
#[derive(Clone, Copy, Debug)]
struct CurrentWakeup {
    receiver: BurstReceiver,
    burst: u64,
    frames: u32,
}

#[derive(Clone, Copy, Debug)]
struct UnprocessedFrame {
    id: FrameId,
    received_at: MonoNs,
}

/// A request whose first chunk is in a received, unprocessed frame.
#[derive(Clone, Copy, Debug)]
struct UnprocessedRequest {
    received_at: MonoNs,
    ticket: Ticket,
}

/// Frames received in one wakeup without waiting in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    wakeup: u64,
    number: u64,
    frames: u32,
}

impl Burst {
    /// Adds a frame to the receiver's burst (frames received in one wakeup without a wait), and returns its position there. After a wait,
    /// or in another wakeup, the frame begins a new burst.
    pub(crate) fn add_frame_and_return_position(
        &mut self,
        receiver: BurstReceiver,
        wakeup: u64,
        has_waited: bool,
    ) -> BurstPosition {
        // Bursts are numbered from 1.
        let is_first = self.number == 0;
        let begins_burst = is_first || has_waited || wakeup != self.wakeup;
        if begins_burst {
            self.wakeup = wakeup;
            self.number += 1;
            self.frames = 0;
        }
        let frame_index = self.frames;
        self.frames = frame_index.saturating_add(1);
        BurstPosition { receiver, burst: self.number, frame_index }
    }
}

/// Position of a received frame within its receiver's bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BurstPosition {
    pub(crate) receiver: BurstReceiver,
    /// Number of the receiver's burst (1-based).
    pub(crate) burst: u64,
    /// Index of the frame within the burst, over all hops: each frame takes the same number of event-loop turns.
    pub(crate) frame_index: u32,
}

/// Receiver of a frame, for counting its wakeups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BurstReceiver {
    Thread(ThreadId),
    /// The thread is not observed; each hop is assumed to have its own.
    OfHop(HopId),
}

/// Roles at a hop's ends, as indices into the list of processing stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HopRoles {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Default for HopRoles {
    fn default() -> Self {
        Self { from: u16::MAX, to: u16::MAX }
    }
}

/// A directed channel.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the hop, read by its name")]
pub struct Hop {
    /// Id of the hop.
    pub id: HopId,
    /// Index of its group in [`super::Ledger::groups`].
    pub group: usize,
    pub(crate) ends: HopRoles,
    /// Endpoint in ZMQ notation; empty when unknown.
    pub endpoint: Box<str>,
    /// Number of the tokenizer worker that receives.
    pub worker: Option<u16>,
    /// Whether it is the first of the path: its sends are the scheduler's.
    pub origin: bool,
    /// Whether it is the last of the path: its receives are the tokenizer's.
    pub last: bool,
    /// Whether it leads to the scheduler and carries requests.
    pub carries_requests: bool,
    /// It carries requests to a process that forwards them to the scheduler.
    pub(crate) forwards_requests: bool,
    /// Its sender received the requests on another hop.
    pub(crate) repeats_requests: bool,
    /// The receiver is not known yet and may be the tokenizer.
    pub(crate) may_be_last: bool,
    /// Stages currently observed.
    pub shows: Capabilities,
    /// Stages observed at any time.
    pub(crate) capabilities: Capabilities,
    /// When its receives ceased to be observed; `None` while they are, and if none was.
    pub(crate) receives_end: Option<MonoNs>,
    /// The same of its deliveries.
    pub(crate) deliveries_end: Option<MonoNs>,
    /// When its deliveries became observed, if it had carried chunks before.
    pub(crate) deliveries_observed_at: MonoNs,
    /// Its chunks are entered into delivery trackers.
    pub(crate) tracks_deliveries: bool,
    /// Number of its chunks entered into delivery trackers.
    pub(crate) tracked_chunks: u64,
    /// Chunks without an expected delivery: health checks, repeated finishes and chunks without a rid.
    pub(crate) untracked_chunks: u64,
    /// Incremented whenever observations are missed.
    pub(crate) epoch: u32,
    /// Missed frames already covered by a loss report.
    pub(crate) reported_missed: u64,
    /// Requests that it carried were answered although none of its receives was observed: a process receives them that is not watched.
    pub(crate) is_received_unobserved: bool,
    /// Receives until then may be among the missed observations.
    pub(crate) receives_missed_until: MonoNs,
    /// Traffic on the hop.
    pub counts: HopCounts,
    /// Number of undecoded frames by reason.
    pub(crate) undecoded: BTreeMap<String, u64>,
    pub(crate) lanes: HashMap<u32, Lane>,
    pub(crate) early_receives: VecDeque<EarlyReceive>,
    unprocessed: VecDeque<UnprocessedFrame>,
    /// Requests whose first chunk is in a frame that its receiver has not processed, with the receive.
    unprocessed_requests: VecDeque<UnprocessedRequest>,
    /// Thread of the last receive.
    pub(crate) last_receiver: Option<ThreadId>,
    /// Time of the last receive.
    pub(crate) last_received_at: Option<MonoNs>,
    /// Queue wait (received minus sent) on this hop.
    pub(crate) queue_wait: Buckets,
    /// Queue wait, counted once for each chunk of the frame.
    pub chunk_waits: WindowedSum,
    /// Queue waits of requests' first chunks.
    pub first_waits: WindowedSum,
    /// The part of long first-token gaps that was spent waiting here, by the length of the whole gap.
    pub(crate) long_gap_waits: LongDurations,
    /// Time of the receiving thread while frames waited for it.
    pub while_waiting: TimeUse,
    /// Why the receiving thread did not run in that time.
    pub away: AwayTimes,
    /// Frames received late.
    pub(crate) late_frames: LateFrames,
    wakeup: Option<CurrentWakeup>,
    /// Its receiver's burst, used if the receiving thread is not observed.
    pub(crate) burst: Burst,
    /// When its receiver finished processing the last frame; `None` after the next receive. Used if the receiving thread is not observed.
    pub(crate) requested_at: Option<MonoNs>,
}

impl Hop {
    /// A hop without traffic, in the group with this index.
    pub(super) fn new(id: HopId, group: usize, seconds: RunSeconds) -> Self {
        Self {
            id,
            group,
            chunk_waits: WindowedSum::with_seconds(seconds),
            first_waits: WindowedSum::with_seconds(seconds),
            ..Self::default()
        }
    }

    /// Counts a frame that could not be decoded, by the reason for that.
    pub(super) fn count_undecoded_frame(&mut self, reason: &str) {
        self.counts.undecoded += 1;
        if let Some(count) = self.undecoded.get_mut(reason) {
            *count += 1;
        } else {
            let key = if self.undecoded.len() < MAX_UNDECODED_REASONS { reason } else { "other reasons" };
            // A reason may contain text from the wire, so the number of keys is limited.
            *self.undecoded.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// Queue wait (received minus sent) on this hop.
    pub fn queue_wait(&self) -> Tally {
        self.queue_wait.to_tally()
    }

    /// Traffic of each remembered connection, by its number.
    pub fn lanes(&self) -> impl Iterator<Item = (u32, LaneCounts)> {
        self.lanes.iter().map(|(&number, lane)| (number, lane.counts))
    }

    /// Stages that were observed here at any time. Receives count if one was recorded, or if they are announced and not known to be
    /// unobserved.
    pub fn capabilities(&self) -> Capabilities {
        let is_announced = self.shows.received && !self.is_received_unobserved;
        Capabilities {
            received: self.capabilities.received && (is_announced || self.counts.frames_received > 0),
            ..self.capabilities
        }
    }

    /// Whether it leads, or may lead, to the tokenizer.
    pub(crate) fn may_lead_to_tokenizer(&self) -> bool {
        self.last || self.may_be_last
    }

    /// Records when stages ceased to be observed, after an announcement at `at`. `previous_stages`: those observed until then. Receives do
    /// not cease if none was observed.
    pub(super) fn update_observation_ends(&mut self, at: MonoNs, previous_stages: Capabilities) {
        if self.shows.received {
            self.receives_end = None;
        } else if previous_stages.received && self.counts.frames_received > 0 {
            self.receives_end = Some(at);
        }
        if self.shows.delivered {
            self.deliveries_end = None;
        } else if previous_stages.delivered {
            self.deliveries_end = Some(at);
        }
    }

    /// Whether it leads, or may lead, to the tokenizer while the tokenizer's receives are not observed.
    pub(crate) fn hides_receives(&self) -> bool {
        self.may_lead_to_tokenizer() && !self.shows.received
    }

    /// Chunks that wait for their receive, sorted by request and number, without repeats of an earlier finish.
    pub(crate) fn sorted_queued_chunks(&self) -> Vec<PendingChunk> {
        let queued = self.lanes.values().flat_map(|lane| &lane.chunks);
        let mut queued: Vec<PendingChunk> = queued.filter(|chunk| !chunk.is_repeat).copied().collect();
        // Lanes are unordered, and the chunks of one request may be in several.
        queued.sort_unstable_by_key(|chunk| (chunk.ticket, chunk.number));
        queued
    }

    /// When the oldest queued frame was sent; `None` if none is queued. Without frames whose receive may have been missed.
    pub fn oldest_waiting(&self) -> Option<MonoNs> {
        self.lanes.values().filter_map(|lane| lane.oldest_queued_send_after(self.receives_missed_until)).min()
    }

    /// Load of the queued frames; `None` if some were evicted at a limit.
    pub fn queued_load(&self) -> Option<QueuedLoad> {
        let mut sum = QueuedLoad::default();
        for lane in self.lanes.values() {
            let load = lane.queued_load()?;
            sum.chunks += load.chunks;
            sum.bytes += load.bytes;
        }
        Some(sum)
    }

    /// Thread of the last receive; `None` if not observed.
    pub fn receiving_thread(&self) -> Option<ThreadId> {
        self.last_receiver
    }

    /// Counts a received frame in its receiver's current wakeup, or in a new one if that is over. A wakeup ends when the receiver finds no
    /// frame, even if it polls again without sleeping. Its frames are a burst, in which the frame has this `position`. If the frame begins
    /// a new wakeup, returns the number of frames in the previous one.
    pub(crate) fn count_frame_and_take_ended_wakeup_frames(&mut self, position: BurstPosition) -> Option<u32> {
        let BurstPosition { receiver, burst, .. } = position;
        let mut frames = 1;
        let mut frames_of_ended = None;
        if let Some(previous) = self.wakeup {
            let is_same_wakeup = previous.receiver == receiver && previous.burst == burst;
            if is_same_wakeup {
                frames = previous.frames + 1;
            } else {
                frames_of_ended = Some(previous.frames);
            }
        }
        self.wakeup = Some(CurrentWakeup { receiver, burst, frames });
        let max = &mut self.counts.wakeup_frames_max;
        // The maximum is 0 until a first wakeup has ended: before that, its receiver may never have returned to its poll.
        let has_any_wakeup_ended = frames_of_ended.is_some() || *max > 0;
        if has_any_wakeup_ended {
            *max = (*max).max(frames).max(frames_of_ended.unwrap_or(0));
        }
        frames_of_ended
    }

    /// Frames received so far in the current wakeup.
    pub(crate) fn current_wakeup_frames(&self) -> u32 {
        self.wakeup.map_or(0, |wakeup| wakeup.frames)
    }

    /// Frames received in the first wakeup, until it ends.
    pub(crate) fn frames_of_unended_first_wakeup(&self) -> u32 {
        // The maximum stays 0 until the first wakeup has ended.
        let has_first_ended = self.counts.wakeup_frames_max > 0;
        if has_first_ended { 0 } else { self.current_wakeup_frames() }
    }

    /// Remembers a received frame until it is processed, if that is observed.
    pub(crate) fn remember_unprocessed_frame(&mut self, id: FrameId, received_at: MonoNs) {
        if self.shows.processed {
            push_bounded(&mut self.unprocessed, UnprocessedFrame { id, received_at }, MAX_UNPROCESSED_FRAMES);
        }
    }

    /// Remembers a request whose first chunk is in the frame received at this time, until the frame is processed, if that is observed.
    pub(crate) fn remember_unprocessed_request(&mut self, received_at: MonoNs, ticket: Ticket) {
        if self.shows.processed {
            let unprocessed = UnprocessedRequest { received_at, ticket };
            push_bounded(&mut self.unprocessed_requests, unprocessed, MAX_UNPROCESSED_REQUESTS);
        }
    }

    /// Removes and returns the next request whose first chunk is in the frame received at this time; `None` if no more are. Forgets
    /// requests of earlier frames.
    pub(crate) fn take_unprocessed_request(&mut self, received_at: MonoNs) -> Option<Ticket> {
        // Frames are processed in order, so the end of processing of an earlier frame was missed.
        while let Some(oldest) = self.unprocessed_requests.front() {
            if oldest.received_at >= received_at {
                break;
            }
            self.unprocessed_requests.pop_front();
        }
        let request = self.unprocessed_requests.pop_front_if(|request| request.received_at == received_at)?;
        Some(request.ticket)
    }

    /// Returns the receive time of the processed frame; `None` if it is not remembered. Also forgets the frames received before it, because
    /// a receiver processes frames in the order received.
    pub(crate) fn take_unprocessed(&mut self, id: FrameId) -> Option<MonoNs> {
        let index = self.unprocessed.iter().position(|frame| frame.id == id)?;
        self.unprocessed.drain(..=index).next_back().map(|frame| frame.received_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undecoded_reasons_are_bounded() {
        let mut hop = Hop::new(HopId(0), 0, RunSeconds::default());
        for n in 0..1000 {
            hop.count_undecoded_frame(&format!("reason {n}"));
        }
        assert_eq!(hop.undecoded.len(), MAX_UNDECODED_REASONS + 1);
        assert_eq!(hop.undecoded.values().sum::<u64>(), 1000);
    }
}
