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
mod identical_frames;
mod sending_lane;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;

use trace::MonoNs;

use crate::observation::{Call, Message, SocketId};
use fingerprint::{Agreement, Fingerprint};
use identical_frames::IdenticalFrames;
pub use sending_lane::SendingLane;
use sending_lane::{AddedFrame, ObservedSend, RemovedFrame};

/// Limits of a matcher's memory and work.
#[derive(Clone, Copy, Debug)]
pub struct MatcherLimits {
    /// Maximum number of frames in flight per lane; beyond it the oldest is dropped and counted.
    pub max_in_flight: usize,
    /// Number of frames searched in a lane for a frame that is not its first.
    pub search_depth: usize,
}

impl Default for MatcherLimits {
    fn default() -> Self {
        Self { max_in_flight: 1 << 16, search_depth: 4096 }
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
pub enum MatchMethod {
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
    /// How it was matched.
    pub method: MatchMethod,
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
pub struct MatcherMisses {
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
    limits: MatcherLimits,
    lanes: Vec<SendingLane>,
    /// Current lane of each sending socket.
    lane_of_sender: HashMap<SocketId, usize>,
    receivers: HashMap<SocketId, ReceivingSocket>,
    misses: MatcherMisses,
}

#[derive(Debug, Default)]
struct ReceivingSocket {
    /// Lanes that lead to this receiver.
    lanes: Vec<usize>,
    next_seq: Option<u64>,
    /// Number of frames received unobserved that are not assigned to a lane yet.
    unassigned: u64,
    last: Option<LastReceipt>,
    identical: IdenticalFrames,
}

/// The last receipt of a socket.
#[derive(Clone, Copy, Debug)]
struct LastReceipt {
    /// Number of the receipt.
    seq: u64,
    frame: FrameRef,
}

/// Where a received frame was found.
#[derive(Clone, Copy)]
struct FoundFrame {
    /// Index of its lane.
    lane: usize,
    /// Number of frames before it in the lane.
    position: usize,
    method: MatchMethod,
}

impl Matcher {
    /// Creates a matcher with `limits`.
    pub fn new(limits: MatcherLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Records a sent frame. Appends it to the lane of its socket, which has the frames in flight from there. Returns its number in the
    /// lane, and how many sends right before it were not observed.
    pub fn record_send(&mut self, message: &Message<'_>) -> NumberedSend {
        let Call { socket, seq, at, .. } = message.call;
        let limit = self.limits.max_in_flight;
        let lane = self.find_or_add_lane(socket, seq);
        let fingerprint = Fingerprint::of_frame(message.bytes, message.payload);
        let AddedFrame { lost_before, dropped } =
            lane.add_frame_and_drop_oldest(seq, ObservedSend { sent_at: at, fingerprint }, limit);
        let frame = FrameRef { lane: lane.lane, seq };
        self.misses.lost_sent = self.misses.lost_sent.saturating_add(lost_before);
        // The lane was full, so its oldest frames are no longer tracked.
        self.misses.shed += dropped;
        NumberedSend { frame, lost_before }
    }

    /// The lane of the socket, if a send with this number continues it. Otherwise adds a new lane.
    fn find_or_add_lane(&mut self, socket: SocketId, seq: u64) -> &mut SendingLane {
        if let Some(&index) = self.lane_of_sender.get(&socket)
            && self.lanes[index].continues_with(seq, self.limits.max_in_flight)
        {
            return &mut self.lanes[index];
        }
        // A new socket at the address of an old one gets a lane of its own, too.
        let index = self.lanes.len();
        self.lanes.push(SendingLane::new(index as u32, socket, seq));
        self.lane_of_sender.insert(socket, index);
        &mut self.lanes[index]
    }

    /// Records that the socket refused its last frame, and returns the frame. `None` if the socket has no lane.
    pub fn record_refused_send(&mut self, call: &Call) -> Option<FrameRef> {
        let lane = &mut self.lanes[*self.lane_of_sender.get(&call.socket)?];
        lane.remove_refused_frame(call.seq);
        Some(FrameRef { lane: lane.lane, seq: call.seq })
    }

    /// Records a receipt. Returns the sent frame that was received, or why no send belongs to the receipt.
    pub fn match_receipt(&mut self, message: &Message<'_>) -> Result<Match, Unmatched> {
        let Call { socket, seq, .. } = message.call;
        let lost_before = self.count_receipt(socket, seq);
        let fingerprint = Fingerprint::of_frame(message.bytes, message.payload);
        let Some(FoundFrame { lane, position, method }) = self.find_frame(socket, &fingerprint) else {
            return Err(self.count_unmatched(socket, &fingerprint));
        };
        let Some(RemovedFrame { frame: received, removed_before }) =
            self.lanes[lane].remove_received_and_skipped(position)
        else {
            return Err(self.count_unmatched(socket, &fingerprint));
        };
        let frame = FrameRef { lane: self.lanes[lane].lane, seq: received.seq };
        let receiver = self.receivers.entry(socket).or_default();
        receiver.last = Some(LastReceipt { seq, frame });
        // The earlier frames of the lane were received as well. Unobserved receipts explain as many of them; the others were skipped.
        let skipped = removed_before.saturating_sub(receiver.unassigned);
        self.misses.skipped = self.misses.skipped.saturating_add(skipped);
        receiver.unassigned = receiver.unassigned.saturating_sub(removed_before);
        Ok(Match { frame, sent_at: received.observed.map(|send| send.sent_at), method, lost_before })
    }

    /// Counts the receipt with number `seq` of a socket. Returns how many receipts right before it were not observed: the kernel side
    /// numbers them without gaps.
    #[inline]
    fn count_receipt(&mut self, socket: SocketId, seq: u64) -> u64 {
        let receiver = self.receivers.entry(socket).or_default();
        // A decreasing number means a new socket at the same address.
        let lost_before = receiver.next_seq.map_or(0, |next| seq.saturating_sub(next));
        receiver.next_seq = Some(seq.wrapping_add(1));
        // The next matches show from which lanes these frames came.
        receiver.unassigned = receiver.unassigned.saturating_add(lost_before);
        self.misses.lost_received = self.misses.lost_received.saturating_add(lost_before);
        lost_before
    }

    /// Counts a received frame without send, and returns why it has none.
    fn count_unmatched(&mut self, socket: SocketId, fingerprint: &Fingerprint) -> Unmatched {
        if self.receivers.entry(socket).or_default().identical.take_if_expected(fingerprint) {
            self.misses.identical += 1;
            return Unmatched::Identical;
        }
        self.misses.unsent += 1;
        Unmatched::Unsent
    }

    /// Returns the frame that the application has processed; `None` if it is not the last matched frame of the socket.
    pub fn processed_frame(&self, call: &Call) -> Option<FrameRef> {
        let last = self.receivers.get(&call.socket)?.last?;
        (last.seq == call.seq).then_some(last.frame)
    }

    /// All lanes in the order of their numbers.
    pub fn lanes(&self) -> impl Iterator<Item = &SendingLane> {
        self.lanes.iter()
    }

    /// Numbers of the lanes whose frames `receiver` has received.
    pub fn lanes_to(&self, receiver: SocketId) -> impl Iterator<Item = u32> {
        let lanes = self.receivers.get(&receiver).into_iter().flat_map(|known| &known.lanes);
        lanes.map(|&lane| self.lanes[lane].lane)
    }

    /// Send time of the oldest frame in flight on a lane; `None` if there is none, or its record was lost.
    pub fn oldest_sent_at(&self, lane: u32) -> Option<MonoNs> {
        let oldest = self.lanes.get(lane as usize)?.frame_at(0)?;
        oldest.observed.map(|send| send.sent_at)
    }

    /// Counts of failed and uncertain matches.
    pub fn misses(&self) -> MatcherMisses {
        self.misses
    }

    /// Finds the sent frame that a socket received. A lane is one sending socket, with its frames in flight in their order. The content
    /// decides first: that of the oldest frame (head) of each lane that leads to this receiver, then that of later frames there, then that
    /// of other lanes. If too little was copied to compare, the order decides.
    fn find_frame(&mut self, socket: SocketId, fingerprint: &Fingerprint) -> Option<FoundFrame> {
        let receiver = self.receivers.entry(socket).or_default();
        // A copy, because a match may add a lane.
        let own_lanes = receiver.lanes.clone();
        let unassigned = receiver.unassigned as usize;
        let head = self.best_head(&own_lanes, fingerprint);
        if let Some(head) = head
            && head.agreement >= Agreement::Ends
        {
            return Some(self.match_head(socket, &own_lanes, head, fingerprint));
        }
        let later_frames: Vec<FoundFrame> =
            own_lanes.iter().filter_map(|lane| self.find_in_lane(*lane, fingerprint, Agreement::Ends)).collect();
        for found in &later_frames {
            // Unobserved receipts explain as many of the frames before it.
            let unexplained = found.position.saturating_sub(unassigned);
            if self.may_skip(socket, found.lane, unexplained) {
                return Some(*found);
            }
        }
        // An identical frame, received earlier, was matched to the send of this one, so no send is left.
        let has_lost_its_send = self.receivers.entry(socket).or_default().identical.is_expected(fingerprint);
        if has_lost_its_send {
            return None;
        }
        if let Some(found) = self.find_in_other_lanes(&own_lanes, fingerprint) {
            // From now on, this lane leads to the receiver as well.
            self.lanes[found.lane].receivers.push(socket);
            self.receivers.entry(socket).or_default().lanes.push(found.lane);
            return Some(found);
        }
        // Equal content decides before the order does, although it is not known why earlier frames were skipped.
        match later_frames.first() {
            Some(found) => Some(*found),
            None => self.find_by_order(&own_lanes, unassigned, head, fingerprint),
        }
    }

    /// Matches a received frame to the first frame of a lane, which has the same content. Remembers the match if another of these lanes
    /// has an identical frame first, because later frames then show whether the choice was right.
    #[inline]
    fn match_head(
        &mut self,
        socket: SocketId,
        own_lanes: &[usize],
        head: AgreeingHead,
        fingerprint: &Fingerprint,
    ) -> FoundFrame {
        if self.is_ambiguous(own_lanes, head.agreement, fingerprint) {
            let receiver = self.receivers.entry(socket).or_default();
            receiver.identical.record_ambiguous_match(head.lane, *fingerprint);
        }
        FoundFrame { lane: head.lane, position: 0, method: MatchMethod::Content }
    }

    /// Finds a received frame by the order of the lanes that lead to its receiver. `unassigned` is the number of its unobserved receipts
    /// that belong to unknown lanes. `head` is the best of the lanes' first frames. `None` if the order does not decide.
    fn find_by_order(
        &self,
        own_lanes: &[usize],
        unassigned: usize,
        head: Option<AgreeingHead>,
        fingerprint: &Fingerprint,
    ) -> Option<FoundFrame> {
        // Only one lane leads here, so the unobserved receipts have received its first frames.
        if let [only_lane] = *own_lanes {
            return self.find_at_position(only_lane, unassigned, fingerprint);
        }
        // It is not known from which of several lanes the unobserved receipts came.
        if unassigned > 0 {
            return None;
        }
        Some(FoundFrame { lane: head?.lane, position: 0, method: MatchMethod::Order })
    }

    /// The frame at a position of a lane, unless its content or its lost record speaks against it.
    #[inline]
    fn find_at_position(&self, lane: usize, position: usize, fingerprint: &Fingerprint) -> Option<FoundFrame> {
        let next = self.lanes[lane].frame_at(position)?;
        let is_acceptable = match next.observed {
            // Too little was copied to compare more than the length. Equal content was found before, and other content is another frame.
            Some(send) => send.fingerprint.agreement_with(fingerprint) == Agreement::Length,
            // The record of the send was lost, so nothing can be compared. A position that was only counted must then not skip frames that
            // can still be compared.
            None => position == 0,
        };
        is_acceptable.then_some(FoundFrame { lane, position, method: MatchMethod::Order })
    }

    /// Finds the first frame of a lane that agrees at least this well.
    fn find_in_lane(&self, lane: usize, fingerprint: &Fingerprint, min: Agreement) -> Option<FoundFrame> {
        let position = self.lanes[lane].find_frame_position(fingerprint, min, self.limits.search_depth)?;
        Some(FoundFrame { lane, position, method: MatchMethod::Content })
    }

    /// The first frame of these lanes that agrees best, of several the oldest.
    fn best_head(&self, lanes: &[usize], fingerprint: &Fingerprint) -> Option<AgreeingHead> {
        let heads = lanes.iter().filter_map(|&lane| {
            let send = self.lanes[lane].frame_at(0)?.observed?;
            let agreement = send.fingerprint.agreement_with(fingerprint);
            Some(AgreeingHead { agreement, sent_at: send.sent_at, lane })
        });
        heads.max_by_key(AgreeingHead::preference).filter(|head| head.agreement > Agreement::No)
    }

    /// Whether the first frames of several of these lanes agree exactly this well.
    fn is_ambiguous(&self, lanes: &[usize], agreement: Agreement, fingerprint: &Fingerprint) -> bool {
        lanes.iter().filter(|lane| self.head_agreement(**lane, fingerprint) == Some(agreement)).count() > 1
    }

    /// How well the first frame of a lane agrees; `None` if there is none, or its send was not observed.
    fn head_agreement(&self, lane: usize, fingerprint: &Fingerprint) -> Option<Agreement> {
        let send = self.lanes[lane].frame_at(0)?.observed?;
        Some(send.fingerprint.agreement_with(fingerprint))
    }

    /// Whether a received frame of `lane` may leave the first `count` frames of the lane behind. A lane keeps its order, so each of them
    /// must have been received before: by another receiver, or as a twin, which is an identical frame of another lane. The receipts of
    /// those twins are expected from now on.
    fn may_skip(&mut self, socket: SocketId, lane: usize, count: usize) -> bool {
        // Another receiver may have received the skipped frames, or may still do so.
        if self.lanes[lane].receivers.len() > 1 {
            return true;
        }
        let mut skipped = Vec::new();
        for position in 0..count {
            let frame = self.lanes[lane].frame_at(position);
            // A frame whose send was not observed cannot be compared.
            let Some(send) = frame.and_then(|frame| frame.observed) else { return false };
            skipped.push(send.fingerprint);
        }
        self.receivers.entry(socket).or_default().identical.explain_skipped_by_twins(lane, &skipped)
    }

    /// Finds a received frame by its content in lanes that do not lead to its receiver yet. Searches lanes without a receiver, then lanes
    /// with another receiver, whose frames ZMQ may distribute to several.
    fn find_in_other_lanes(&self, own_lanes: &[usize], fingerprint: &Fingerprint) -> Option<FoundFrame> {
        let has_receiver = |lane: &usize| !self.lanes[*lane].receivers.is_empty();
        let mut free_lanes = (0..self.lanes.len()).filter(|lane| !has_receiver(lane));
        if let Some(found) = free_lanes.find_map(|lane| self.find_in_lane(lane, fingerprint, Agreement::Ends)) {
            return Some(found);
        }
        // The ends may be equal by chance, so a lane that already has a receiver needs more proof.
        let is_of_other_receiver = |lane: &usize| has_receiver(lane) && !own_lanes.contains(lane);
        let mut lanes_of_others = (0..self.lanes.len()).filter(is_of_other_receiver);
        lanes_of_others.find_map(|lane| self.find_in_lane(lane, fingerprint, Agreement::Whole))
    }
}

/// The first frame of a lane that may be the received one.
#[derive(Clone, Copy)]
struct AgreeingHead {
    agreement: Agreement,
    sent_at: MonoNs,
    lane: usize,
}

impl AgreeingHead {
    /// Sort key, whose maximum is the frame with the best agreement. Of several, the oldest is preferred, then that of the last lane.
    fn preference(&self) -> (Agreement, Reverse<MonoNs>, usize) {
        (self.agreement, Reverse(self.sent_at), self.lane)
    }
}
