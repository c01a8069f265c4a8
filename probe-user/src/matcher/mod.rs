//! Joins each frame sent with the same frame taken.
//!
//! A lane is one sending socket; ZMQ keeps its order. The kernel side numbers the messages of every socket even when it
//! has to drop a record, so the order holds across losses; content decides which of several senders a frame came from,
//! and where a lane stood at the attach. Which lane leads to which receiver is learned from the first frame that crosses.
//!
//! Not decided: identical frames. Frames that were on their way at the attach and are the same byte for byte as the first
//! ones after it are taken for those. Where the next frames of two lanes are identical (idle batches, health checks), the
//! older one is named; what comes next on each lane tells when that was wrong, and nothing else is shifted by it.

mod fingerprint;
mod lane;
#[cfg(test)]
mod tests;
mod twins;

use std::collections::HashMap;

use trace::MonoNs;

use crate::observation::{Call, Message, SocketId};
use fingerprint::{Agreement, Fingerprint};
use lane::Lane;
use twins::Twins;

/// Bounds of a matcher's memory and work.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames outstanding per lane; beyond it the oldest is given up and counted.
    pub outstanding: usize,
    /// How deep a lane is searched for a frame that is not at its head.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            outstanding: 1 << 16,
            depth: 4096,
        }
    }
}

/// A frame's name: its sender's lane, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRef {
    /// Counts lanes from 0 in the order of their first frame.
    pub lane: u32,
    /// Counts the lane's frames from the attach on.
    pub seq: u64,
}

/// How a frame taken was joined with one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By its content.
    Content,
    /// By its place: the record of its send was lost, or too little was copied to compare.
    Order,
}

/// A frame that was seen taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Which frame.
    pub frame: FrameRef,
    /// When it was sent; `None` when that record was lost.
    pub sent_at: Option<MonoNs>,
    /// How it was joined.
    pub how: How,
}

/// What a matcher could not do, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// Frames taken that no watched socket was seen to send: sent before the attach, or by a process not watched.
    pub unsent: u64,
    /// Records of sends that were lost.
    pub lost_sent: u64,
    /// Records of takes that were lost.
    pub lost_taken: u64,
    /// Frames passed over: a later one of their lane was taken first, so they were taken unseen.
    pub skipped: u64,
    /// Frames given up because a lane had too many outstanding.
    pub shed: u64,
    /// Frames taken whose name an identical one was given before.
    pub identical: u64,
}

/// The state of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Its number.
    pub lane: u32,
    /// The sending socket.
    pub sender: SocketId,
    /// The sockets that took its frames so far.
    pub receivers: Vec<SocketId>,
    /// Frames sent since the attach.
    pub sent: u64,
    /// Frames of those taken; the difference is the backlog.
    pub taken: u64,
}

/// Joins sends with takes. Feed it every observation, in the order they come.
#[derive(Debug, Default)]
pub struct Matcher {
    limits: Limits,
    lanes: Vec<Lane>,
    /// The current lane of each sending socket.
    of_sender: HashMap<SocketId, usize>,
    receivers: HashMap<SocketId, Receiver>,
    misses: Misses,
}

#[derive(Debug, Default)]
struct Receiver {
    /// Lanes that lead here.
    lanes: Vec<usize>,
    next: Option<u64>,
    /// Frames taken unseen that no lane has been charged for yet.
    owed: u64,
    last: Option<(u64, FrameRef)>,
    twins: Twins,
}

impl Matcher {
    /// A matcher with `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A frame was sent: its name from here on.
    pub fn sent(&mut self, message: &Message<'_>) -> FrameRef {
        let Call { socket, seq, at, .. } = message.call;
        let limit = self.limits.outstanding;
        let known = self
            .of_sender
            .get(&socket)
            .copied()
            .filter(|lane| self.lanes[*lane].continues_with(seq, limit));
        let lane = known.unwrap_or_else(|| {
            let id = self.lanes.len();
            self.lanes.push(Lane::new(id as u32, socket, seq));
            self.of_sender.insert(socket, id);
            id
        });
        let lane = &mut self.lanes[lane];
        let shed = lane.shed;
        let lost = lane.push(seq, at, Fingerprint::of(message.bytes, message.payload), limit);
        self.misses.lost_sent = self.misses.lost_sent.saturating_add(lost);
        self.misses.shed += lane.shed - shed;
        FrameRef { lane: lane.id, seq }
    }

    /// The socket refused the frame it was given last.
    pub fn unsent(&mut self, call: &Call) -> Option<FrameRef> {
        let lane = &mut self.lanes[*self.of_sender.get(&call.socket)?];
        lane.take_back(call.seq);
        Some(FrameRef {
            lane: lane.id,
            seq: call.seq,
        })
    }

    /// A frame was taken: which one it was; `None` when no watched socket was seen to send it.
    pub fn taken(&mut self, message: &Message<'_>) -> Option<Match> {
        let Call { socket, seq, .. } = message.call;
        let receiver = self.receivers.entry(socket).or_default();
        // A number that steps back is a new socket at an old address.
        let unseen = receiver.next.map_or(0, |next| seq.saturating_sub(next));
        receiver.next = Some(seq.wrapping_add(1));
        receiver.owed = receiver.owed.saturating_add(unseen);
        self.misses.lost_taken = self.misses.lost_taken.saturating_add(unseen);

        let fingerprint = Fingerprint::of(message.bytes, message.payload);
        let Some((lane, place, how)) = self.place_of(socket, &fingerprint) else {
            let named = self.receivers.entry(socket).or_default().twins.came(&fingerprint);
            *(if named {
                &mut self.misses.identical
            } else {
                &mut self.misses.unsent
            }) += 1;
            return None;
        };
        let (entry, before) = self.lanes[lane].remove(place)?;
        let receiver = self.receivers.entry(socket).or_default();
        let skipped = before.saturating_sub(receiver.owed);
        self.misses.skipped = self.misses.skipped.saturating_add(skipped);
        receiver.owed = receiver.owed.saturating_sub(before);
        let frame = FrameRef {
            lane: self.lanes[lane].id,
            seq: entry.seq,
        };
        receiver.last = Some((seq, frame));
        Some(Match {
            frame,
            sent_at: entry.seen.map(|(at, _)| at),
            how,
        })
    }

    /// The application is done with a frame: which one it was.
    pub fn handled(&self, call: &Call) -> Option<FrameRef> {
        let (seq, frame) = self.receivers.get(&call.socket)?.last?;
        (seq == call.seq).then_some(frame)
    }

    /// Every lane, in the order of their numbers.
    pub fn lanes(&self) -> impl Iterator<Item = LaneView> {
        self.lanes.iter().map(|lane| LaneView {
            lane: lane.id,
            sender: lane.socket,
            receivers: lane.receivers.clone(),
            sent: lane.sent,
            taken: lane.taken,
        })
    }

    /// When the oldest frame of a lane was sent that was not seen taken; `None` when there is none, or its record was lost.
    pub fn oldest_waiting(&self, lane: u32) -> Option<MonoNs> {
        let oldest = self.lanes.get(lane as usize)?.at(0)?;
        oldest.seen.map(|(at, _)| at)
    }

    /// What could not be joined.
    pub fn misses(&self) -> Misses {
        self.misses
    }

    /// Where the frame is. Content first: at the head of a lane that leads here, deeper in one, in a lane not known to lead
    /// here yet. Then order: where the count of unseen takes puts it, be it in the place of a lost record.
    fn place_of(&mut self, socket: SocketId, fingerprint: &Fingerprint) -> Option<(usize, usize, How)> {
        let receiver = self.receivers.entry(socket).or_default();
        let (here, owed) = (receiver.lanes.clone(), receiver.owed as usize);
        let head = here.iter().filter_map(|lane| {
            let (at, other) = self.lanes[*lane].at(0)?.seen?;
            Some((other.agrees(fingerprint), std::cmp::Reverse(at), *lane))
        });
        let head = head.max().filter(|(agreement, ..)| *agreement > Agreement::No);
        if let Some((agreement @ (Agreement::Ends | Agreement::Whole), _, lane)) = head {
            let same = |lane: &&usize| {
                let next = self.lanes[**lane].at(0).and_then(|entry| entry.seen);
                next.is_some_and(|(_, other)| other.agrees(fingerprint) == agreement)
            };
            if here.iter().filter(same).count() > 1 {
                let receiver = self.receivers.entry(socket).or_default();
                receiver.twins.doubt(lane, *fingerprint);
            }
            return Some((lane, 0, How::Content));
        }
        let depth = self.limits.depth;
        let deeper = |lane: usize| Some((lane, self.lanes[lane].find(fingerprint, Agreement::Ends, depth)?));
        let candidates: Vec<(usize, usize)> = here.iter().filter_map(|lane| deeper(*lane)).collect();
        for &(lane, place) in &candidates {
            if self.may_pass(socket, lane, place.saturating_sub(owed)) {
                return Some((lane, place, How::Content));
            }
        }
        if self.receivers.entry(socket).or_default().twins.awaits(fingerprint) {
            return None;
        }
        if let Some((lane, place)) = self.elsewhere(&here, fingerprint) {
            self.lanes[lane].receivers.push(socket);
            self.receivers.entry(socket).or_default().lanes.push(lane);
            return Some((lane, place, How::Content));
        }
        if let Some(&(lane, place)) = candidates.first() {
            return Some((lane, place, How::Content));
        }
        if let [lane] = here[..] {
            // The only lane that is known to lead here: its order decides, but a place that was counted and not compared
            // may not pass over frames that can still be compared.
            let place = self.lanes[lane].at(owed).copied();
            let lost = owed == 0 && place.is_some_and(|entry| entry.seen.is_none());
            let fits = |(_, other): (MonoNs, Fingerprint)| other.agrees(fingerprint) == Agreement::Length;
            if lost || place.and_then(|entry| entry.seen).is_some_and(fits) {
                return Some((lane, owed, How::Order));
            }
        } else if owed == 0 {
            return head.map(|(_, _, lane)| (lane, 0, How::Order));
        }
        None
    }

    /// Whether a frame of `lane` may pass over its first `passed` ones. Takes are numbered: only over such as were taken under
    /// the name of a twin, or by another receiver.
    fn may_pass(&mut self, socket: SocketId, lane: usize, passed: usize) -> bool {
        if self.lanes[lane].receivers.len() > 1 {
            return true;
        }
        let skipped = (0..passed).map(|at| Some(self.lanes[lane].at(at)?.seen?.1));
        let Some(skipped) = skipped.collect::<Option<Vec<Fingerprint>>>() else {
            return false;
        };
        self.receivers.entry(socket).or_default().twins.settle(lane, &skipped)
    }

    /// A lane that leads nowhere yet, or else one that ZMQ deals out to several.
    fn elsewhere(&self, here: &[usize], fingerprint: &Fingerprint) -> Option<(usize, usize)> {
        let depth = self.limits.depth;
        let search = |taken: bool, least: Agreement| {
            let lanes = self.lanes.iter().enumerate();
            lanes
                .filter(|(i, lane)| lane.receivers.is_empty() != taken && !here.contains(i))
                .find_map(|(i, lane)| Some((i, lane.find(fingerprint, least, depth)?)))
        };
        search(false, Agreement::Ends).or_else(|| search(true, Agreement::Whole))
    }
}
