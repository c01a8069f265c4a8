//! Fast path one level up: a batch of lists that are themselves flat, such as the token ids of a whole frame.

use super::super::Undecoded;
use super::super::arena::{ListRun, Node};
use super::vm::PickleMachine;
use super::{flat, op};
use crate::msgpack::NextOffset;

impl PickleMachine<'_, '_> {
    /// Reads the batch of flat lists at `self.at` into the list at `outer_list_index`. The items of a flat list are numbers, strings and
    /// the like, so it stays in the message. Returns false if the batch contains any other item; then nothing has changed, and the machine
    /// reads the items one by one. Fails if that list may not grow.
    #[inline(never)]
    pub(super) fn try_read_flat_lists(&mut self, outer_list_index: u32) -> Result<bool, Undecoded> {
        let memo_before = self.arena.memo.len();
        let runs_before = self.arena.list_runs.len();
        let cells_before = self.arena.cells.len();
        let Some(end) = self.enter_flat_lists_into_arena() else {
            // Undo what the scan has added before it failed.
            self.arena.memo.truncate(memo_before);
            self.arena.list_runs.truncate(runs_before);
            self.arena.cells.truncate(cells_before);
            return Ok(false);
        };
        let run = ListRun::cells(cells_before as u32, self.arena.cells.len() as u32);
        self.at = end;
        self.arena.append_run(outer_list_index, run, self.limits)?;
        Ok(true)
    }

    /// Scans a batch of lists of scalars and enters the lists into the arena, the tables that decoding fills. Returns the
    /// end of the batch; `None` for any other item, with the arena half filled.
    fn enter_flat_lists_into_arena(&mut self) -> Option<NextOffset> {
        let message = self.message;
        let mut at = self.at;
        loop {
            at = self.enter_short_int_lists_into_arena(at);
            // A list begins with `EMPTY_LIST MEMOIZE`. The opcode after them shows how its items follow.
            match message.get(at..at + 3)? {
                [op::EMPTY_LIST, op::MEMOIZE, next_opcode] => {
                    at = self.enter_flat_list_into_arena(at + 2, *next_opcode)?;
                }
                [op::FRAME, ..] => at = flat::offset_after_single_frame_header(message, at)?,
                [op::APPENDS, ..] => return Some(at + 1),
                _ => return None,
            }
        }
    }

    /// Enters a list of scalars into the arena. Its items, if it has any, begin with `next_opcode` at `next_at`. Returns the end of the
    /// list; `None` for other items, and at a limit.
    #[inline]
    fn enter_flat_list_into_arena(&mut self, next_at: usize, next_opcode: u8) -> Option<NextOffset> {
        let message = self.message;
        let limits = self.limits;
        let arena = &mut *self.arena;
        let is_arena_full = arena.memo.len() >= limits.memo
            || arena.list_runs.len() >= limits.items
            || arena.cells.len() >= limits.items;
        if is_arena_full {
            return None;
        }
        let list = Node::List(arena.list_runs.len() as u32);
        arena.memo.push(list);
        arena.cells.push(list);
        let batch = match next_opcode {
            op::MARK => Some(flat::scan_items(message, next_at + 1, &mut arena.memo, limits.memo)?),
            // The list has no items: the next one begins, or the batch ends.
            op::EMPTY_LIST | op::APPENDS => None,
            // A single item is appended without a mark.
            _ => Some(flat::scan_single_int(message, next_at)?),
        };
        // A batch ends before its `APPEND` or `APPENDS`.
        let end = batch.as_ref().map_or(next_at, |batch| batch.end + 1);
        arena.list_runs.push(batch.map_or(ListRun::EMPTY, |batch| batch.to_list_run()));
        Some(end)
    }

    /// Reads lists of only short integers from `at` on, as nearly all are. Returns the position of the first other item. Each list gets a
    /// slot of the memo, the table of values for later references. Integers get none, so the lists are memoized in one step.
    fn enter_short_int_lists_into_arena(&mut self, mut at: usize) -> NextOffset {
        let limits = self.limits;
        let arena = &mut *self.arena;
        let first_cell = arena.cells.len();
        // Each list takes a cell and a memo slot.
        let free_cells = limits.items.saturating_sub(first_cell);
        let free_slots = limits.memo.saturating_sub(arena.memo.len());
        let mut lists_left = free_cells.min(free_slots);
        let mut rest = self.message.get(at..).unwrap_or_default();
        while lists_left > 0
            && let Some(flat::ShortIntList { len, first, next }) = flat::parse_short_int_list(rest)
            && let Some(after) = rest.get(next..)
        {
            arena.cells.push(Node::Ints { len, at: (at + first) as u32 });
            at += next;
            rest = after;
            lists_left -= 1;
        }
        arena.memo.extend_from_slice(&arena.cells[first_cell..]);
        at
    }
}
