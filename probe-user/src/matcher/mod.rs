//! Matching of each sent frame with its receipt.
//!
//! A lane is one sending socket, whose order ZMQ preserves. The kernel side numbers the messages of every socket even when it drops a
//! record, so order survives losses. Content determines which sender a frame came from, and the position of a lane at the attach. The
//! receiver of a lane is learned from the first frame that crosses.
//!
//! Identical frames are ambiguous. Frames in flight at the attach are mistaken for the first later ones if they are identical. If the next
//! frames of two lanes are identical (idle batches, health checks), the older one is chosen. The following frames of each lane show
//! whether that was wrong, and no other match shifts.

mod fingerprint;
mod lane;
#[cfg(test)]
mod tests;
mod twins;

use std::collections::HashMap;

use trace::MonoNs;

use crate::observation::{Call, Message, SocketId};
use fingerprint::{Agreement, Fingerprint};
pub use lane::Lane;
use twins::IdenticalFrames;

/// Limits of a matcher's memory and work.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of frames in flight per lane; beyond it the oldest is dropped and counted.
    pub in_flight: usize,
    /// Number of frames searched in a lane for a frame that is not its first.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight: 1 << 16, depth: 4096 }
    }
}

/// Identity of a frame: its sender's lane and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRef {
    /// Lane number from 0, in the order of first frames.
    pub lane: u32,
    /// Frame number within the lane, counted from the attach.
    pub seq: u64,
}

/// A recorded send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedSend {
    /// Identity of the frame.
    pub frame: FrameRef,
    /// Number of sends right before it on the same lane whose records were lost.
    pub lost_before: u64,
}

/// How a received frame was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By its content.
    Content,
    /// By position: the record of its send was lost, or too little was copied to compare.
    Order,
}

/// A received frame with its send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Identity of the frame.
    pub frame: FrameRef,
    /// Time of the send; `None` when its record was lost.
    pub sent_at: Option<MonoNs>,
    /// Method of the match.
    pub how: How,
    /// Number of receipts right before it on the same socket whose records were lost.
    pub lost_before: u64,
}

/// Why a received frame has no send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// No send was observed: it was sent before the attach, or by an unwatched process.
    Unsent,
    /// An identical frame was given its identity.
    Identical,
}

/// Counts of failed and uncertain matches since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// Received frames without an observed send: sent before the attach, or by an unwatched process.
    pub unsent: u64,
    /// Lost records of sends.
    pub lost_sent: u64,
    /// Lost records of receipts.
    pub lost_received: u64,
    /// Frames skipped because a later frame of their lane was received first; they were received unobserved.
    pub skipped: u64,
    /// Frames dropped because a lane had too many in flight.
    pub shed: u64,
    /// Received frames whose identity had already been given to an identical frame.
    pub identical: u64,
}

/// Matches sends with receipts. Feed it every observation, in order.
#[derive(Debug, Default)]
pub struct Matcher {
    limits: Limits,
    lanes: Vec<Lane>,
    /// Current lane of each sending socket.
    of_sender: HashMap<SocketId, usize>,
    receivers: HashMap<SocketId, Receiver>,
    misses: Misses,
}

#[derive(Debug, Default)]
struct Receiver {
    /// Lanes that lead to this receiver.
    lanes: Vec<usize>,
    next: Option<u64>,
    /// Number of frames received unobserved that are not assigned to a lane yet.
    unassigned: u64,
    last: Option<(u64, FrameRef)>,
    twins: IdenticalFrames,
}

impl Matcher {
    /// Creates a matcher with `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Records a send and numbers its frame.
    pub fn sent(&mut self, message: &Message<'_>) -> NumberedSend {
        let Call { socket, seq, at, .. } = message.call;
        let limit = self.limits.in_flight;
        let known = self.of_sender.get(&socket).copied().filter(|lane| self.lanes[*lane].continues_with(seq, limit));
        let lane = known.unwrap_or_else(|| {
            let id = self.lanes.len();
            self.lanes.push(Lane::new(id as u32, socket, seq));
            self.of_sender.insert(socket, id);
            id
        });
        let lane = &mut self.lanes[lane];
        let (lost_before, shed) = lane.push(seq, at, Fingerprint::of(message.bytes, message.payload), limit);
        self.misses.lost_sent = self.misses.lost_sent.saturating_add(lost_before);
        self.misses.shed += shed;
        NumberedSend { frame: FrameRef { lane: lane.lane, seq }, lost_before }
    }

    /// Records that the socket refused its last frame.
    pub fn unsent(&mut self, call: &Call) -> Option<FrameRef> {
        let lane = &mut self.lanes[*self.of_sender.get(&call.socket)?];
        lane.take_back(call.seq);
        Some(FrameRef { lane: lane.lane, seq: call.seq })
    }

    /// Records a receipt and returns its frame, or why no send belongs to it.
    pub fn received(&mut self, message: &Message<'_>) -> Result<Match, Unmatched> {
        let Call { socket, seq, .. } = message.call;
        let receiver = self.receivers.entry(socket).or_default();
        // A decreasing number means a new socket at the same address.
        let lost_before = receiver.next.map_or(0, |next| seq.saturating_sub(next));
        receiver.next = Some(seq.wrapping_add(1));
        receiver.unassigned = receiver.unassigned.saturating_add(lost_before);
        self.misses.lost_received = self.misses.lost_received.saturating_add(lost_before);

        let fingerprint = Fingerprint::of(message.bytes, message.payload);
        let position = self.find_position(socket, &fingerprint);
        let removed = position.and_then(|(lane, position, how)| Some((lane, self.lanes[lane].remove(position)?, how)));
        let Some((lane, (entry, before), how)) = removed else {
            if self.receivers.entry(socket).or_default().twins.take_expected(&fingerprint) {
                self.misses.identical += 1;
                return Err(Unmatched::Identical);
            }
            self.misses.unsent += 1;
            return Err(Unmatched::Unsent);
        };
        let receiver = self.receivers.entry(socket).or_default();
        let skipped = before.saturating_sub(receiver.unassigned);
        self.misses.skipped = self.misses.skipped.saturating_add(skipped);
        receiver.unassigned = receiver.unassigned.saturating_sub(before);
        let frame = FrameRef { lane: self.lanes[lane].lane, seq: entry.seq };
        receiver.last = Some((seq, frame));
        Ok(Match { frame, sent_at: entry.seen.map(|(at, _)| at), how, lost_before })
    }

    /// Returns the frame that the application has processed.
    pub fn processed(&self, call: &Call) -> Option<FrameRef> {
        let (seq, frame) = self.receivers.get(&call.socket)?.last?;
        (seq == call.seq).then_some(frame)
    }

    /// All lanes in the order of their numbers.
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// Numbers of the lanes whose frames `receiver` has received.
    pub fn lanes_to(&self, receiver: SocketId) -> impl Iterator<Item = u32> {
        let lanes = self.receivers.get(&receiver).into_iter().flat_map(|known| &known.lanes);
        lanes.map(|&lane| self.lanes[lane].lane)
    }

    /// Send time of the oldest frame in flight on a lane; `None` if there is none, or its record was lost.
    pub fn oldest_waiting(&self, lane: u32) -> Option<MonoNs> {
        let oldest = self.lanes.get(lane as usize)?.at(0)?;
        oldest.seen.map(|(at, _)| at)
    }

    /// Counts of failed and uncertain matches.
    pub fn misses(&self) -> Misses {
        self.misses
    }

    /// Finds the position of a frame. By content first: at the head of a lane that leads here, deeper in such a lane, then in a lane
    /// without a known receiver. Then by order: at the position given by the number of unobserved receipts, including that of a lost
    /// record.
    fn find_position(&mut self, socket: SocketId, fingerprint: &Fingerprint) -> Option<(usize, usize, How)> {
        let receiver = self.receivers.entry(socket).or_default();
        let (own_lanes, unassigned) = (receiver.lanes.clone(), receiver.unassigned as usize);
        let head = own_lanes.iter().filter_map(|lane| {
            let (at, other) = self.lanes[*lane].at(0)?.seen?;
            Some((other.agrees(fingerprint), std::cmp::Reverse(at), *lane))
        });
        let head = head.max().filter(|(agreement, ..)| *agreement > Agreement::No);
        if let Some((agreement @ (Agreement::Ends | Agreement::Whole), _, lane)) = head {
            let same = |lane: &&usize| {
                let next = self.lanes[**lane].at(0).and_then(|entry| entry.seen);
                next.is_some_and(|(_, other)| other.agrees(fingerprint) == agreement)
            };
            if own_lanes.iter().filter(same).count() > 1 {
                let receiver = self.receivers.entry(socket).or_default();
                receiver.twins.record_ambiguous(lane, *fingerprint);
            }
            return Some((lane, 0, How::Content));
        }
        let depth = self.limits.depth;
        let deeper = |lane: usize| Some((lane, self.lanes[lane].find(fingerprint, Agreement::Ends, depth)?));
        let candidates: Vec<(usize, usize)> = own_lanes.iter().filter_map(|lane| deeper(*lane)).collect();
        for &(lane, position) in &candidates {
            if self.may_skip(socket, lane, position.saturating_sub(unassigned)) {
                return Some((lane, position, How::Content));
            }
        }
        if self.receivers.entry(socket).or_default().twins.is_expected(fingerprint) {
            return None;
        }
        if let Some((lane, position)) = self.find_in_other_lanes(&own_lanes, fingerprint) {
            self.lanes[lane].receivers.push(socket);
            self.receivers.entry(socket).or_default().lanes.push(lane);
            return Some((lane, position, How::Content));
        }
        if let Some(&(lane, position)) = candidates.first() {
            return Some((lane, position, How::Content));
        }
        if let [lane] = own_lanes[..] {
            // Only one lane leads here, so its order decides. However, a position that was counted but not compared must not skip frames
            // that can still be compared.
            let position = self.lanes[lane].at(unassigned).copied();
            let lost = unassigned == 0 && position.is_some_and(|entry| entry.seen.is_none());
            let fits = |(_, other): (MonoNs, Fingerprint)| other.agrees(fingerprint) == Agreement::Length;
            if lost || position.and_then(|entry| entry.seen).is_some_and(fits) {
                return Some((lane, unassigned, How::Order));
            }
        } else if unassigned == 0 {
            return head.map(|(_, _, lane)| (lane, 0, How::Order));
        }
        None
    }

    /// Whether a frame of `lane` may skip its first `count` frames. Receipts are numbered, so it may skip only frames that were received
    /// under a twin's identity, or by another receiver.
    fn may_skip(&mut self, socket: SocketId, lane: usize, count: usize) -> bool {
        if self.lanes[lane].receivers.len() > 1 {
            return true;
        }
        let skipped = (0..count).map(|at| Some(self.lanes[lane].at(at)?.seen?.1));
        let Some(skipped) = skipped.collect::<Option<Vec<Fingerprint>>>() else {
            return false;
        };
        self.receivers.entry(socket).or_default().twins.resolve(lane, &skipped)
    }

    /// Searches lanes without a receiver, then lanes that ZMQ distributes to several.
    fn find_in_other_lanes(&self, own_lanes: &[usize], fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let depth = self.limits.depth;
        let search = |received: bool, min: Agreement| {
            let lanes = self.lanes.iter().enumerate();
            lanes
                .filter(|(i, lane)| lane.receivers.is_empty() != received && !own_lanes.contains(i))
                .find_map(|(i, lane)| Some((i, lane.find(fingerprint, min, depth)?)))
        };
        search(false, Agreement::Ends).or_else(|| search(true, Agreement::Whole))
    }
}
