//! Rooms of requests that were sent to the scheduler. A message between two schedulers is only read if it names one.

use std::collections::{HashSet, VecDeque};

/// Maximum number of rooms; beyond it the oldest is forgotten. As many requests may wait for the scheduler.
const MAX_ROOMS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct KnownRooms {
    rooms: HashSet<u64>,
    oldest_first: VecDeque<u64>,
}

impl KnownRooms {
    /// Remembers a room, the number that a request has on its prefill and on its decode server. Beyond the limit, the oldest one is
    /// forgotten.
    pub(super) fn add_room(&mut self, room: u64) {
        let is_new = self.rooms.insert(room);
        if !is_new {
            return;
        }
        self.oldest_first.push_back(room);
        if self.oldest_first.len() > MAX_ROOMS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.rooms.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, room: u64) -> bool {
        self.rooms.contains(&room)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_room_is_forgotten_at_the_limit() {
        let mut rooms = KnownRooms::default();
        (1..=MAX_ROOMS as u64 + 1).for_each(|room| rooms.add_room(room));
        rooms.add_room(2);
        assert!(!rooms.contains(1) && rooms.contains(2) && rooms.rooms.len() == MAX_ROOMS);
    }
}
