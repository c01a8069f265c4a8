//! Requests by rid: records in a slab, found through a hash table that holds slots only.

use std::hash::BuildHasher;

use hashbrown::hash_map::EntryRef;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::lane::PendingChunk;
use super::request::Request;
use crate::clock::MonoNs;
use crate::event::Finish;
use crate::id::Ticket;

/// Number of records prefetched before they are processed. Their cache misses overlap, and that many records fit in the L1 cache.
pub(super) const PREFETCHED_RECORDS: usize = 32;

/// Fixed field order and cache-line alignment, so that a chunk touches only the four lines described at [`Request`]. A slot has seven.
#[derive(Debug)]
#[repr(C, align(64))]
struct TableSlot {
    age: u32,
    request: Option<Request>,
}

/// The records.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    slots: Vec<TableSlot>,
    free: Vec<u32>,
    by_rid: HashTable<u32>,
    /// Number of records of each rid that it no longer maps to.
    unmapped: HashMap<Box<str>, u32>,
    hasher: DefaultHashBuilder,
    /// Number of finished records that a rid maps to.
    mapped_finished: usize,
    cursor: usize,
    /// Total length of all rids, in bytes.
    pub(super) rid_bytes: usize,
}

impl RequestTable {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of unfinished records that a rid maps to.
    pub(crate) fn live_count(&self) -> usize {
        self.by_rid.len() - self.mapped_finished
    }

    /// Sets how a request ended. Returns false, and changes nothing, if that is known or the record is gone.
    pub(crate) fn mark_finished_if_open(&mut self, ticket: Ticket, finish: Finish) -> bool {
        let Some(request) = self.get_mut(ticket) else { return false };
        if request.finish.is_some() {
            return false;
        }
        request.finish = Some(finish);
        if request.is_mapped {
            self.mapped_finished += 1;
        }
        true
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Ticket of the record to which this rid leads now; `None` without one.
    pub(crate) fn ticket_of(&self, rid: &str) -> Option<Ticket> {
        let hash = self.hasher.hash_one(rid);
        let slot = self.by_rid.find(hash, |&slot| {
            let request = self.slots[slot as usize].request.as_ref();
            request.is_some_and(|request| request.is_mapped && &*request.rid == rid)
        })?;
        Some(self.ticket_of_slot(*slot))
    }

    /// Ticket of the record to which this rid leads now; [`Ticket::NONE`] without one. Prefetches the memory that every chunk of the record
    /// reads and writes.
    pub(crate) fn find_and_prefetch(&self, rid: &str) -> Ticket {
        let Some(ticket) = self.ticket_of(rid) else { return Ticket::NONE };
        self.prefetch_record(ticket);
        ticket
    }

    /// Prefetches a record's cache lines.
    pub(crate) fn prefetch_record(&self, ticket: Ticket) {
        if let Some(request) = self.get(ticket) {
            request.touch_cache_lines();
        }
    }

    /// Whether its rid still maps to the record.
    pub(crate) fn is_mapped(&self, ticket: Ticket) -> bool {
        self.get(ticket).is_some_and(|request| request.is_mapped)
    }

    /// Adds the record of a request, maps its rid to it, and returns its ticket (handle).
    pub(crate) fn insert(&mut self, rid: &str, first_at: MonoNs) -> Ticket {
        let request = Request::new(rid, first_at);
        self.rid_bytes += rid.len();
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize].request = Some(request);
            slot
        } else {
            self.slots.push(TableSlot { age: 0, request: Some(request) });
            (self.slots.len() - 1) as u32
        };
        self.map_rid(slot, rid);
        self.ticket_of_slot(slot)
    }

    /// Makes the rid lead to the record in this slot.
    fn map_rid(&mut self, slot: u32, rid: &str) {
        let Self { by_rid, hasher, slots, .. } = self;
        // The index stores no hashes. When it grows, it asks for the hash of the rid in each slot.
        by_rid.insert_unique(hasher.hash_one(rid), slot, |&known_slot| {
            let request = slots[known_slot as usize].request.as_ref();
            hasher.hash_one(request.map_or("", |request| &request.rid))
        });
    }

    /// Unmaps the record's rid, so that another request can use it. The record stays.
    pub(crate) fn unmap_rid(&mut self, ticket: Ticket) {
        let was_mapped = self.remove_mapping(ticket);
        if was_mapped && let Some(request) = self.get(ticket) {
            let rid = request.rid.clone();
            *self.unmapped.entry(rid).or_default() += 1;
        }
    }

    /// Whether a record exists whose rid was `rid`, and is that of another request now.
    pub(super) fn has_unmapped(&self, rid: &str) -> bool {
        self.unmapped.contains_key(rid)
    }

    /// Removes the record from the index of rids. Returns whether it was there.
    fn remove_mapping(&mut self, ticket: Ticket) -> bool {
        let Some(request) = self.get_mut(ticket) else { return false };
        if !request.is_mapped {
            return false;
        }
        request.is_mapped = false;
        if request.finish.is_some() {
            self.mapped_finished -= 1;
        }
        // The record exists, so this is the hash of its rid.
        let hash = self.get(ticket).map_or(0, |request| self.hasher.hash_one(&*request.rid));
        if let Ok(entry) = self.by_rid.find_entry(hash, |&slot| slot == ticket.slot) {
            entry.remove();
        }
        true
    }

    /// Removes and returns the record with this ticket (handle), which is invalid from then on. `None` if there is no such record.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Request> {
        // Leaves if the ticket is that of an earlier record in the slot.
        self.get(ticket)?;
        let was_mapped = self.remove_mapping(ticket);
        let slot = &mut self.slots[ticket.slot as usize];
        // A ticket of the removed record no longer matches.
        slot.age = slot.age.wrapping_add(1);
        self.free.push(ticket.slot);
        let request = slot.request.take()?;
        self.rid_bytes -= request.rid.len();
        // An unmapped record is counted by its rid: see `unmap_rid`.
        if !was_mapped && let EntryRef::Occupied(mut count) = self.unmapped.entry_ref(&*request.rid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(request)
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Request> {
        let slot = self.slots.get(ticket.slot as usize)?;
        slot.request.as_ref().filter(|_| slot.age == ticket.age)
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        let slot = self.slots.get_mut(ticket.slot as usize)?;
        slot.request.as_mut().filter(|_| slot.age == ticket.age)
    }

    /// Marks the first receives of requests as missed whose first chunk is among these.
    pub(super) fn mark_first_receives_missed(&mut self, chunks: impl Iterator<Item = PendingChunk>) {
        for chunk in chunks.filter(|chunk| chunk.is_first) {
            if let Some(request) = self.get_mut(chunk.ticket) {
                request.first_receive_missed = true;
            }
        }
    }

    /// Every record's ticket, in ascending order.
    pub(crate) fn tickets(&self) -> Vec<Ticket> {
        let occupied = (0..self.slots.len() as u32).filter(|slot| self.slots[*slot as usize].request.is_some());
        occupied.map(|slot| self.ticket_of_slot(slot)).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.slots.iter().filter_map(|slot| slot.request.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.slots.iter_mut().filter_map(|slot| slot.request.as_mut())
    }

    /// Moves the cursor to the next slot with a record, and returns the record's ticket. After the last slot comes the first one. `None` if
    /// the table is empty.
    pub(crate) fn advance_to_next_record(&mut self) -> Option<Ticket> {
        for _ in 0..self.slots.len() {
            self.cursor = (self.cursor + 1) % self.slots.len();
            if self.slots[self.cursor].request.is_some() {
                return Some(self.ticket_of_slot(self.cursor as u32));
            }
        }
        None
    }

    /// Moves the cursor by one slot, and returns the ticket of the record there; `None` if the slot is empty.
    pub(crate) fn advance_one_slot(&mut self) -> Option<Ticket> {
        self.cursor = (self.cursor + 1) % self.slots.len().max(1);
        self.slots.get(self.cursor)?.request.as_ref()?;
        Some(self.ticket_of_slot(self.cursor as u32))
    }

    fn ticket_of_slot(&self, slot: u32) -> Ticket {
        Ticket { slot, age: self.slots[slot as usize].age }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::super::stream::Stream;
    use super::*;

    /// The sizes assume 64-bit pointers.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn the_fields_used_per_chunk_fit_four_cache_lines() {
        let streams = offset_of!(TableSlot, request) + offset_of!(Request, streams);
        assert!(streams + 16 + offset_of!(Stream, first_at) <= 256);
        // An odd number of lines spreads records over all sets of a cache.
        assert_eq!(size_of::<TableSlot>(), 7 * 64);
    }

    #[test]
    fn a_reused_slot_is_not_found_by_an_old_ticket() {
        let mut table = RequestTable::default();
        let old = table.insert("a", MonoNs(1));
        assert_eq!(table.ticket_of("a"), Some(old));
        assert!(table.remove(old).is_some());
        let new = table.insert("b", MonoNs(2));
        assert_eq!(new.slot, old.slot);
        assert!(table.get(old).is_none() && table.ticket_of("a").is_none());
        assert_eq!(table.get(new).map(|r| &*r.rid), Some("b"));
    }

    #[test]
    fn finished_and_replaced_records_are_not_live() {
        let mut table = RequestTable::default();
        let [a, b] = ["a", "b"].map(|rid| table.insert(rid, MonoNs(1)));
        table.unmap_rid(a);
        table.insert("a", MonoNs(2));
        assert_eq!(table.live_count(), 2);
        assert!(
            table.mark_finished_if_open(a, Finish::Other)
                && table.mark_finished_if_open(b, Finish::Other)
                && !table.mark_finished_if_open(b, Finish::Other)
        );
        assert_eq!(table.live_count(), 1);
        table.remove(a);
        table.remove(b);
        assert_eq!(table.live_count(), 1);
    }

    #[test]
    fn a_reused_rid_maps_to_the_new_record_and_the_old_one_stays() {
        let mut table = RequestTable::default();
        let old = table.insert("a", MonoNs(1));
        table.unmap_rid(old);
        let new = table.insert("a", MonoNs(2));
        assert_eq!(table.ticket_of("a"), Some(new));
        assert!(table.get(old).is_some());
        assert!(table.remove(old).is_some());
        assert_eq!((table.ticket_of("a"), table.len()), (Some(new), 1));
    }

    #[test]
    fn the_eviction_cursor_visits_every_record() {
        let mut table = RequestTable::default();
        for rid in ["a", "b", "c", "d"] {
            table.insert(rid, MonoNs(0));
        }
        table.ticket_of("b").map(|t| table.remove(t));
        let mut seen: Vec<u32> = (0..3).filter_map(|_| table.advance_to_next_record()).map(|t| t.slot).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 2, 3]);
    }
}
