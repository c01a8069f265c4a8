//! Frames in flight from one sending socket, oldest first.

use std::collections::VecDeque;

use trace::MonoNs;

use super::fingerprint::{Agreement, Fingerprint};
use crate::observation::SocketId;

/// A frame in flight. If the record of its send was lost, only its position is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameInFlight {
    pub(super) seq: u64,
    pub(super) observed: Option<ObservedSend>,
}

/// The observed send of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedSend {
    pub(super) sent_at: MonoNs,
    pub(super) fingerprint: Fingerprint,
}

/// Consequences of adding a frame to a lane.
pub(super) struct AddedFrame {
    /// Number of frames right before it whose records were lost.
    pub(super) lost_before: u64,
    /// Number of the oldest frames that were dropped from tracking because too many were in flight.
    pub(super) dropped: u64,
}

/// A received frame that was removed from its lane.
pub(super) struct RemovedFrame {
    pub(super) frame: FrameInFlight,
    /// Number of earlier frames that were removed with it.
    pub(super) removed_before: u64,
}

/// Frames of one sending socket.
#[derive(Debug)]
pub struct SendingLane {
    /// Number of the lane.
    pub lane: u32,
    /// Sending socket.
    pub sender: SocketId,
    /// Sockets that received its frames. With several, ZMQ distributes the frames, and each receiver gets its share in order.
    pub receivers: Vec<SocketId>,
    /// Number of frames sent since the attach.
    pub sent: u64,
    /// Number of those frames that were received; the difference is the backlog.
    pub received: u64,
    /// Number of the next frame.
    next_seq: u64,
    in_flight: VecDeque<FrameInFlight>,
}

impl SendingLane {
    /// Creates a lane whose first frame has number `seq`.
    pub(super) fn new(lane: u32, sender: SocketId, seq: u64) -> Self {
        let in_flight = VecDeque::new();
        Self { lane, sender, receivers: Vec::new(), sent: 0, received: 0, next_seq: seq, in_flight }
    }

    /// Whether `seq` continues this lane. A decreasing number means a new socket at the same address.
    pub(super) fn continues_with(&self, seq: u64, limit: usize) -> bool {
        seq >= self.next_seq && seq - self.next_seq <= limit as u64
    }

    /// Adds the frame with number `seq` as the last one in flight. Before it, adds a placeholder for each frame whose record was lost.
    /// Drops the oldest frames beyond `max_in_flight`. `seq` must not be less than the number of the next frame.
    pub(super) fn add_frame_and_drop_oldest(
        &mut self,
        seq: u64,
        send: ObservedSend,
        max_in_flight: usize,
    ) -> AddedFrame {
        // Frames are numbered without gaps, so the skipped numbers are those of lost records.
        let lost_before = seq - self.next_seq;
        let placeholders = (self.next_seq..seq).map(|seq| FrameInFlight { seq, observed: None });
        self.in_flight.extend(placeholders.chain([FrameInFlight { seq, observed: Some(send) }]));
        self.sent = self.sent.saturating_add(lost_before).saturating_add(1);
        self.next_seq = seq.wrapping_add(1);
        let dropped = self.in_flight.len().saturating_sub(max_in_flight);
        self.in_flight.drain(..dropped);
        AddedFrame { lost_before, dropped: dropped as u64 }
    }

    /// Removes the last frame, because the socket refused it. Does nothing if the last frame has another number.
    pub(super) fn remove_refused_frame(&mut self, seq: u64) {
        if self.in_flight.back().is_some_and(|entry| entry.seq == seq) {
            self.in_flight.pop_back();
            self.sent -= 1;
            // The kernel side gives the number to the next frame.
            self.next_seq = seq;
        }
    }

    /// The frame that is received after `position` others.
    pub(super) fn frame_at(&self, position: usize) -> Option<&FrameInFlight> {
        self.in_flight.get(position)
    }

    /// Position of the oldest frame that agrees with the fingerprint at least as far as `min_agreement`. Searches only the first
    /// `max_searched_frames` frames. `None` if none of them agrees.
    pub(super) fn find_frame_position(
        &self,
        fingerprint: &Fingerprint,
        min_agreement: Agreement,
        max_searched_frames: usize,
    ) -> Option<usize> {
        self.in_flight.iter().take(max_searched_frames).position(|frame| {
            frame.observed.is_some_and(|send| send.fingerprint.agreement_with(fingerprint) >= min_agreement)
        })
    }

    /// Removes the frame at `position`, which was received. `None` if there is none. A single receiver gets the frames in their order, so
    /// it must have received the earlier ones unobserved. Then they are removed, too.
    pub(super) fn remove_received_and_skipped(&mut self, position: usize) -> Option<RemovedFrame> {
        // With several receivers, an earlier frame may be for another one, which is still to receive it.
        let has_several_receivers = self.receivers.len() > 1;
        // The position may be behind the last frame. Then all frames are removed, and there is none to return.
        let earlier_frames = if has_several_receivers { 0 } else { position.min(self.in_flight.len()) };
        self.in_flight.drain(..earlier_frames);
        self.received += earlier_frames as u64;
        let frame = self.in_flight.remove(position - earlier_frames)?;
        self.received += 1;
        Some(RemovedFrame { frame, removed_before: earlier_frames as u64 })
    }
}
