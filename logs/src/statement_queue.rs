//! Queue of statements by time. Logs are nearly in order, so a statement is appended to its time slot, and a slot
//! is sorted once when it is due.

use std::collections::BTreeMap;
use std::rc::Rc;

use trace::event::LoggedState;

/// Number of slots per window.
const SLOTS: u64 = 64;
/// Minimum length of a slot, in nanoseconds.
const SHORTEST_SLOT_NS: u64 = 1_000_000;
/// Maximum number of passed slots whose memory is kept for later ones.
const SPARE_SLOTS: usize = 8;
/// Maximum number of statements that such a slot has room for.
const SPARE_ENTRIES: usize = 16_384;

/// A statement with its time and source. Its texts are kept outside of it.
#[derive(Debug)]
pub(super) struct QueuedStatement {
    pub(super) at_ns: u64,
    /// Index of the process that wrote the line.
    pub(super) writer: u16,
    /// Whether the line truncates the rid.
    pub(super) is_rid_truncated: bool,
    pub(super) rid: Rc<str>,
    pub(super) kind: QueuedKind,
}

/// What a queued statement says. Half a million may be queued, so it is small.
#[derive(Debug)]
pub(super) enum QueuedKind {
    /// A request reached the stage with this index of its name.
    Stage { name: u16, tokens: Option<u32>, pending: Option<u32>, gap_ns: Option<u64> },
    /// State of a process.
    ProcessState(Box<LoggedState<'static>>),
    /// Number of merged chunks.
    MergedChunks { chunks: u32 },
}

/// Statements that wait for their time.
#[derive(Debug)]
pub(super) struct StatementQueue {
    /// Length of a slot.
    slot_ns: u64,
    /// Slots that are not empty, by their start in units of their length.
    slots: BTreeMap<u64, Vec<QueuedStatement>>,
    /// Number of statements in all slots.
    len: usize,
    /// Empty memory of passed slots. A slot that grows from nothing copies its statements several times.
    spare_slots: Vec<Vec<QueuedStatement>>,
    /// Empty memory for the order of the next slot that is due.
    spare_order: Vec<u128>,
}

/// The statements of a slot that is due.
#[derive(Debug)]
pub(super) struct DueSlot {
    entries: Vec<QueuedStatement>,
    /// Time of each entry, and its index in the lower 32 bits, in order. Sorting these moves less memory than sorting the entries, and two
    /// numbers compare faster than two pairs.
    order: Vec<u128>,
}

impl DueSlot {
    /// Sorts statements by time. Statements of equal times keep their order. `order` is empty memory to use.
    fn sorted_by_time(entries: Vec<QueuedStatement>, mut order: Vec<u128>) -> Self {
        let times = entries.iter().map(|queued| u128::from(queued.at_ns));
        // Time and index in one number, so that sorting moves 16 bytes and no statement.
        order.extend(times.zip(0..).map(|(at_ns, index)| (at_ns << 32) | index));
        order.sort_unstable();
        Self { entries, order }
    }

    /// Number of statements in the slot.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The statements by time. Those with equal times keep their reading order.
    pub(super) fn statements_by_time(&self) -> impl Iterator<Item = &QueuedStatement> {
        self.order.iter().map(|&at_and_index| {
            // The index is in the lower 32 bits.
            let index = at_and_index as u32;
            &self.entries[index as usize]
        })
    }
}

impl StatementQueue {
    /// Creates an empty queue for statements that are sorted over this span of time.
    pub(super) fn new(window_ns: u64) -> Self {
        Self {
            slot_ns: (window_ns / SLOTS).max(SHORTEST_SLOT_NS),
            slots: BTreeMap::new(),
            len: 0,
            spare_slots: Vec::new(),
            spare_order: Vec::new(),
        }
    }

    /// Number of statements in the queue.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a statement to the slot of its time. A slot is a short span of time, whose statements are sorted together.
    pub(super) fn push_statement(&mut self, queued: QueuedStatement) {
        self.len += 1;
        let slot = self.slots.entry(queued.at_ns / self.slot_ns);
        // A new slot takes the memory of a passed one.
        let entries = slot.or_insert_with(|| self.spare_slots.pop().unwrap_or_default());
        entries.push(queued);
    }

    /// Removes and returns the earliest slot, if it ends by `limit_ns`. `None` if it ends later, or the queue is empty.
    pub(super) fn pop_slot_before(&mut self, limit_ns: u64) -> Option<DueSlot> {
        let first = self.slots.first_entry()?;
        let slot_end_ns = (first.key() + 1).saturating_mul(self.slot_ns);
        if slot_end_ns > limit_ns {
            return None;
        }
        let due = DueSlot::sorted_by_time(first.remove(), std::mem::take(&mut self.spare_order));
        self.len -= due.len();
        Some(due)
    }

    /// Keeps the memory of a slot whose statements were passed on for later slots.
    pub(super) fn keep_memory_of_slot(&mut self, passed: DueSlot) {
        let DueSlot { mut entries, mut order } = passed;
        // A slot that has grown large gives its memory back.
        if entries.capacity() > SPARE_ENTRIES {
            return;
        }
        entries.clear();
        order.clear();
        self.spare_order = order;
        // Slots beyond this number give their memory back too.
        if self.spare_slots.len() < SPARE_SLOTS {
            self.spare_slots.push(entries);
        }
    }
}
