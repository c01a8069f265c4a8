//! Requests that a prefill and a decode server share: their halves are joined by the number that both log, if their rids differ.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::recogniser::RequestHalf;

/// Halves of a request seen so far.
#[derive(Debug, Default)]
struct RoomHalves {
    prefill: Option<Box<str>>,
    decode: Option<Box<str>>,
}

impl RoomHalves {
    /// The place of the rid that the half's server has given the request.
    fn rid_slot(&mut self, half: &RequestHalf<'_>) -> &mut Option<Box<str>> {
        if half.is_decode { &mut self.decode } else { &mut self.prefill }
    }

    /// Whether the half's server has given the room another rid before. The room is then used again, by a later request.
    fn are_of_earlier_request(&self, half: &RequestHalf<'_>) -> bool {
        let known_rid = if half.is_decode { &self.decode } else { &self.prefill };
        known_rid.as_ref().is_some_and(|known| **known != *half.rid)
    }
}

/// The rooms of a log, and the pairs of rids that follow from them.
#[derive(Debug, Default)]
pub(super) struct BootstrapRooms {
    /// Halves by room.
    halves: HashMap<u64, RoomHalves>,
    /// Rooms in `halves`, the oldest first.
    order: VecDeque<u64>,
    /// Rid of the prefill server, by that of the decode server.
    prefill_rids: HashMap<Box<str>, Box<str>>,
    /// Rids of the decode server in `prefill_rids`, the oldest first.
    decode_order: VecDeque<Box<str>>,
    /// Limit of rooms, and of pairs of rids.
    limit: usize,
}

impl BootstrapRooms {
    /// Creates an empty set of at most `limit` rooms, and as many pairs of rids.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Remembers the rid (request id) that one server gave a request. The prefill and the decode server use different rids, but both log
    /// the request's room, which is a number. Once both rids of a room are known, pairs them.
    pub(super) fn add_half_and_pair_rids(&mut self, half: &RequestHalf<'_>) {
        // With a limit of 0 no room is kept, so no rids can be paired.
        if self.limit == 0 {
            return;
        }
        self.add_room_and_evict_oldest(half.room);
        let halves = self.halves.entry(half.room).or_default();
        // The number of a room may be used again, by a later request.
        if halves.are_of_earlier_request(half) {
            *halves = RoomHalves::default();
        }
        *halves.rid_slot(half) = Some(half.rid.into());
        // Until the other half is known, there is nothing to pair.
        let RoomHalves { prefill: Some(prefill), decode: Some(decode) } = halves else { return };
        // A client may give both halves the same rid, which then needs no translation.
        if prefill == decode {
            return;
        }
        let is_known_pair = self.prefill_rids.contains_key(decode);
        if is_known_pair {
            return;
        }
        let prefill = prefill.clone();
        let decode = decode.clone();
        self.pair_rids(prefill, decode);
    }

    /// Makes this room the newest, unless it is kept already. At the limit, forgets the oldest room and its rids first.
    fn add_room_and_evict_oldest(&mut self, room: u64) {
        if self.halves.contains_key(&room) {
            return;
        }
        if self.order.len() >= self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.halves.remove(&oldest);
        }
        self.order.push_back(room);
    }

    /// Remembers that these two rids (request ids) are of one request. At the limit, the pair of the oldest request is removed first.
    fn pair_rids(&mut self, prefill_rid: Box<str>, decode_rid: Box<str>) {
        if self.decode_order.len() >= self.limit
            && let Some(oldest) = self.decode_order.pop_front()
        {
            self.prefill_rids.remove(&oldest);
        }
        self.decode_order.push_back(decode_rid.clone());
        self.prefill_rids.insert(decode_rid, prefill_rid);
    }

    /// Translates a decode server's rid to the prefill server's rid of the same request. `None` if no such pair is known.
    pub(super) fn prefill_rid(&self, rid: &str) -> Option<&str> {
        // Most logs are not of a pair, so most rids need not be hashed.
        if self.prefill_rids.is_empty() {
            return None;
        }
        self.prefill_rids.get(rid).map(|prefill| &**prefill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_half_and_pair_rids(rooms: &mut BootstrapRooms, room: u64, rid: &str, is_decode: bool) {
        rooms.add_half_and_pair_rids(&RequestHalf { rid, room, is_decode });
    }

    #[test]
    fn halves_are_joined_by_their_room() {
        let mut rooms = BootstrapRooms::new(2);
        add_half_and_pair_rids(&mut rooms, 7, "p1", false);
        add_half_and_pair_rids(&mut rooms, 7, "d1", true);
        add_half_and_pair_rids(&mut rooms, 7, "p1", false);
        assert_eq!((rooms.prefill_rid("d1"), rooms.prefill_rid("p1")), (Some("p1"), None));
        add_half_and_pair_rids(&mut rooms, 8, "same", true);
        add_half_and_pair_rids(&mut rooms, 8, "same", false);
        assert_eq!(rooms.prefill_rid("same"), None);
        add_half_and_pair_rids(&mut rooms, 8, "later", true);
        assert_eq!(rooms.prefill_rid("later"), None, "the room is used again");
        for room in 9..11 {
            add_half_and_pair_rids(&mut rooms, room, &format!("p{room}"), false);
            add_half_and_pair_rids(&mut rooms, room, &format!("d{room}"), true);
        }
        assert_eq!((rooms.prefill_rid("d1"), rooms.prefill_rid("d10")), (None, Some("p10")), "the oldest was evicted");
    }
}
