//! Messages between the schedulers of a prefill and a decode server, by room.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Ledger;
use crate::clock::MonoNs;
use crate::event::{PairMessage, PairMessageKind};

/// When the messages about one room were sent. With several ranks, the last of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairTimes {
    /// The decode server had allocated memory.
    pub allocated: Option<MonoNs>,
    /// The cache was transferred.
    pub transferred: Option<MonoNs>,
    /// The transfer failed.
    pub failed: Option<MonoNs>,
}

/// Numbers of messages that a server's scheduler sent to that of the other server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairMessageCounts {
    /// Only a decode server sends them.
    pub allocated: u64,
    /// Only a prefill server sends them, as the next.
    pub transferred: u64,
    /// Failed transfers.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct PairMessages {
    by_room: HashMap<u64, PairTimes>,
    /// Rooms in the order of their first message.
    oldest_first: VecDeque<u64>,
    has_evicted: bool,
    counts: PairMessageCounts,
}

impl PairMessages {
    /// Records the time of a message in those of its room, the number under which both servers of a pair know a request. Returns whether
    /// the oldest room was evicted because `max_rooms` are kept.
    fn record_message_and_check_eviction(&mut self, at: MonoNs, message: PairMessage, max_rooms: usize) -> bool {
        let is_new_room = !self.by_room.contains_key(&message.room);
        let has_evicted_room =
            if is_new_room { self.add_room_and_check_eviction(message.room, max_rooms) } else { false };
        let times = self.by_room.entry(message.room).or_default();
        // Of several messages of one kind, the last counts. `None` is less than any time.
        match message.kind {
            PairMessageKind::Allocated => {
                times.allocated = times.allocated.max(Some(at));
                self.counts.allocated += 1;
            }
            PairMessageKind::Transferred => {
                times.transferred = times.transferred.max(Some(at));
                self.counts.transferred += 1;
            }
            PairMessageKind::Failed => {
                times.failed = times.failed.max(Some(at));
                self.counts.failed += 1;
            }
        }
        has_evicted_room
    }

    /// Adds a new room as the last one. Returns whether the oldest was evicted because `max_rooms` are kept.
    fn add_room_and_check_eviction(&mut self, room: u64, max_rooms: usize) -> bool {
        // A maximum of 0 counts as 1, so that the room itself is kept.
        let is_full = self.oldest_first.len() >= max_rooms.max(1);
        if is_full && let Some(oldest) = self.oldest_first.pop_front() {
            self.by_room.remove(&oldest);
            self.has_evicted = true;
        }
        self.oldest_first.push_back(room);
        is_full
    }
}

impl Ledger {
    /// Records a message between the schedulers of a pair.
    pub(super) fn record_pair_message(&mut self, at: MonoNs, message: PairMessage) {
        let was_evicted = self.pair_messages.record_message_and_check_eviction(at, message, self.limits.pair_rooms);
        if was_evicted {
            self.limits.count_reached("pair_rooms");
        }
    }

    /// When this server's scheduler sent messages about a room to that of the other server.
    pub fn pair_times(&self, room: u64) -> PairTimes {
        self.pair_messages.by_room.get(&room).copied().unwrap_or_default()
    }

    /// Whether the messages about a room may have been evicted: rooms were, and this one is not known.
    pub fn may_have_evicted_room(&self, room: u64) -> bool {
        self.pair_messages.has_evicted && !self.pair_messages.by_room.contains_key(&room)
    }

    /// Numbers of messages that this server's scheduler sent to that of another server.
    pub fn pair_message_counts(&self) -> PairMessageCounts {
        self.pair_messages.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, What};
    use crate::ledger::Limits;

    fn record(ledger: &mut Ledger, at: u64, room: u64, kind: PairMessageKind) {
        ledger.apply(&Event::new(MonoNs(at), What::PairMessage(PairMessage { room, kind })));
    }

    #[test]
    fn the_last_message_of_several_ranks_counts() {
        let mut ledger = Ledger::new(Limits::default());
        for at in [5, 9, 7] {
            record(&mut ledger, at, 3, PairMessageKind::Allocated);
        }
        record(&mut ledger, 11, 3, PairMessageKind::Failed);
        let times = PairTimes { allocated: Some(MonoNs(9)), transferred: None, failed: Some(MonoNs(11)) };
        assert_eq!((ledger.pair_times(3), ledger.pair_times(4)), (times, PairTimes::default()));
        let counts = PairMessageCounts { allocated: 3, transferred: 0, failed: 1 };
        assert_eq!(ledger.pair_message_counts(), counts);
    }

    #[test]
    fn the_oldest_room_is_evicted_at_the_limit() {
        let mut ledger = Ledger::new(Limits { pair_rooms: 2, ..Limits::default() });
        for room in [1, 2, 1] {
            record(&mut ledger, room, room, PairMessageKind::Transferred);
        }
        assert!(!ledger.may_have_evicted_room(9));
        record(&mut ledger, 3, 3, PairMessageKind::Transferred);
        let known = [1, 2, 3].map(|room| ledger.pair_times(room).transferred.is_some());
        assert_eq!(known, [false, true, true]);
        assert_eq!([1, 2].map(|room| ledger.may_have_evicted_room(room)), [true, false]);
        let reached = ledger.limits().into_iter().find(|limit| limit.name == "pair_rooms");
        assert_eq!(reached.map(|limit| limit.times), Some(1));
    }
}
