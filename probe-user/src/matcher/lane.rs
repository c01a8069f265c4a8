//! Frames in flight from one sending socket, oldest first.

use std::collections::VecDeque;

use trace::MonoNs;

use super::fingerprint::{Agreement, Fingerprint};
use crate::observation::SocketId;

/// A frame in flight. If the record of its send was lost, only its position is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) seen: Option<(MonoNs, Fingerprint)>,
}

/// Frames of one sending socket.
#[derive(Debug)]
pub struct Lane {
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
    next: u64,
    in_flight: VecDeque<Entry>,
}

impl Lane {
    /// Creates a lane whose first frame has number `seq`.
    pub(super) fn new(lane: u32, sender: SocketId, seq: u64) -> Self {
        let in_flight = VecDeque::new();
        Self { lane, sender, receivers: Vec::new(), sent: 0, received: 0, next: seq, in_flight }
    }

    /// Whether `seq` continues this lane. A decreasing number means a new socket at the same address.
    pub(super) fn continues_with(&self, seq: u64, limit: usize) -> bool {
        seq >= self.next && seq - self.next <= limit as u64
    }

    /// Adds a frame, with a placeholder for each frame whose record was lost. Returns the number of placeholders, and of the oldest frames
    /// dropped from tracking because too many were in flight.
    pub(super) fn push(&mut self, seq: u64, at: MonoNs, fingerprint: Fingerprint, limit: usize) -> (u64, u64) {
        let lost = seq - self.next;
        let places = (self.next..seq).map(|seq| Entry { seq, seen: None });
        self.in_flight.extend(places.chain([Entry { seq, seen: Some((at, fingerprint)) }]));
        self.sent = self.sent.saturating_add(lost).saturating_add(1);
        self.next = seq.wrapping_add(1);
        let shed = self.in_flight.len().saturating_sub(limit);
        self.in_flight.drain(..shed);
        (lost, shed as u64)
    }

    /// Removes the last frame, because the socket refused it.
    pub(super) fn take_back(&mut self, seq: u64) {
        if self.in_flight.back().is_some_and(|entry| entry.seq == seq) {
            self.in_flight.pop_back();
            self.sent -= 1;
            self.next = seq;
        }
    }

    /// The frame that is received after `place` others.
    pub(super) fn at(&self, place: usize) -> Option<&Entry> {
        self.in_flight.get(place)
    }

    /// Index of the oldest frame that agrees at least as far as `least`, within the first `depth`.
    pub(super) fn find(&self, fingerprint: &Fingerprint, min: Agreement, depth: usize) -> Option<usize> {
        let agrees = |entry: &Entry| entry.seen.is_some_and(|(_, other)| other.agrees(fingerprint) >= min);
        self.in_flight.iter().take(depth).position(agrees)
    }

    /// Removes the frame at `place`. With a single receiver, the earlier frames must have been received unobserved and are removed too.
    /// Returns their number.
    pub(super) fn remove(&mut self, place: usize) -> Option<(Entry, u64)> {
        let before = if self.receivers.len() > 1 { 0 } else { place.min(self.in_flight.len()) };
        self.in_flight.drain(..before);
        self.received += before as u64;
        let entry = self.in_flight.remove(place - before)?;
        self.received += 1;
        Some((entry, before as u64))
    }
}
