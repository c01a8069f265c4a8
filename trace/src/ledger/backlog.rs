//! A backlog of frames from the time at which it began to grow until few frames wait.

use std::collections::BTreeSet;

use super::lane::Lane;
use super::request::Request;
use super::{BACKLOG_FRAMES, CountedRids, LATE_NS, Ledger};
use crate::clock::MonoNs;
use crate::id::Ticket;
use crate::stats::Trend;

/// Seconds during which a backlog must not have fallen to count as growing.
pub(crate) const MIN_RISING_SECONDS: usize = 3;

/// Where a backlog began to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogRise {
    /// Last time at which it was as small as at the start.
    pub(crate) since: MonoNs,
    /// Frames that waited then.
    pub(crate) from: u64,
}

/// Frames that wait on the hops of one name, since fewer than [`BACKLOG_FRAMES`] waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BacklogCourse {
    /// Start of the first growth of three seconds; `None` before one.
    pub(crate) rise: Option<BacklogRise>,
    /// Most frames at one time.
    pub(crate) peak: u64,
    /// Time of the peak.
    pub(crate) peak_at: MonoNs,
    /// Longest wait of a frame that was received.
    pub(crate) longest_wait_ns: u64,
}

impl BacklogCourse {
    /// Records that a frame was sent, after which `waiting_frames` wait.
    pub(crate) fn record_backlog_after_send(&mut self, at: MonoNs, waiting_frames: u64) {
        if waiting_frames > self.peak {
            self.peak = waiting_frames;
            self.peak_at = at;
        }
    }

    /// Records that a frame was received, after which `waiting_frames` wait.
    pub(crate) fn record_backlog_after_receive(&mut self, at: MonoNs, waiting_frames: u64, wait_ns: u64) {
        if waiting_frames < BACKLOG_FRAMES {
            // The backlog is over; a new one begins with these frames.
            *self = Self { peak: waiting_frames, peak_at: at, ..Self::default() };
        } else {
            self.longest_wait_ns = self.longest_wait_ns.max(wait_ns);
        }
    }

    /// Records that `waiting_frames` frames wait at a tick. `trend` is the course of that number over the last seconds. Keeps its first
    /// rise of at least [`MIN_RISING_SECONDS`], which shows when the backlog began to grow.
    pub(crate) fn record_backlog_at_tick(&mut self, now: MonoNs, waiting_frames: u64, trend: &Trend) {
        if waiting_frames < BACKLOG_FRAMES {
            // The backlog is over. Checked here, too, because frames may leave without an observed receive.
            *self = Self { peak: waiting_frames, peak_at: now, ..Self::default() };
            return;
        }
        let has_first_rise = self.rise.is_some();
        if has_first_rise {
            return;
        }
        let Some(rise) = trend.rising_span() else { return };
        // `rise.to` is the lowest number in the last second, which may be less than `waiting_frames`.
        if rise.seconds >= MIN_RISING_SECONDS && rise.to >= BACKLOG_FRAMES {
            self.rise = Some(BacklogRise { since: rise.since, from: rise.from });
        }
    }
}

impl Request {
    /// Whether one of its frames on the hops of this group waited long before its receive.
    fn has_waited_on(&self, group: usize) -> bool {
        self.streams.iter().any(|stream| stream.is_on_group(group) && stream.has_waited)
    }
}

impl Ledger {
    /// Counts the requests of a frame that was received after a long wait on the hop at `hop_index`. Its chunks are in `pending_receive`.
    /// The count is that of the hop's group (the hops of one name), in which a request counts once.
    pub(super) fn count_requests_of_late_frame(&mut self, hop_index: usize) {
        let hop = &self.hops.all[hop_index];
        for chunk in &self.pending_receive {
            let Some(request) = self.table.get_mut(chunk.ticket) else { continue };
            // Asked before `has_waited` is set, which marks the request as counted.
            let was_counted = request.has_waited_on(hop.group);
            // A stream is the request's part on one hop.
            let Some(stream) = request.streams.iter_mut().find(|stream| stream.hop == hop.id) else { continue };
            stream.has_waited = true;
            if !was_counted {
                self.hops.groups[hop.group].late_requests.add_rid(&request.rid);
            }
        }
    }

    /// Requests with a late frame on the hops of this group (the hops of one name): one that waited at least [`LATE_NS`] until its receive,
    /// or until now.
    pub(crate) fn late_requests(&self, group_index: usize, now: MonoNs) -> CountedRids {
        // The group counts requests with a late frame that was received. Those with one that is still queued are added here, from all
        // lanes (connections). A request may have several such frames, but counts once.
        let lanes = self.hops_of_group(group_index).flat_map(|hop| hop.lanes.values());
        let queued: BTreeSet<Ticket> = lanes.flat_map(|lane| lane.tickets_queued_for(now, LATE_NS)).collect();
        let mut late = self.hops.groups[group_index].late_requests.clone();
        for request in queued.iter().filter_map(|ticket| self.table.get(*ticket)) {
            if !request.has_waited_on(group_index) {
                late.add_rid(&request.rid);
            }
        }
        late
    }
}

impl Lane {
    /// Requests with a chunk in frames that have been queued for `min_wait_ns` or longer at `now`, with repetitions.
    fn tickets_queued_for(&self, now: MonoNs, min_wait_ns: u64) -> impl Iterator<Item = Ticket> + '_ {
        let late = self.frames.iter().take_while(move |frame| now.since(frame.sent_at) >= min_wait_ns);
        // Chunks are queued in the order of their frames, so those of the oldest frames come first.
        let late_chunks: usize = late.map(|frame| frame.chunks as usize).sum();
        self.chunks.iter().take(late_chunks).map(|chunk| chunk.ticket)
    }
}
