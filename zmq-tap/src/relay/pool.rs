//! Memory for reads: large blocks, reused once no observation refers to them.
//!
//! A block is split from its front: observations keep their part, and the rest receives the next read. A connection holds a block only
//! while it has unwritten or incomplete data, so a thousand idle connections hold none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

use super::relay_options::LEAST_READ;
use super::stats::Counters;

/// Number of retired blocks still in use to check before a block is allocated.
const RETIRED_CHECKS: usize = 4;

/// Number of unbudgeted blocks kept for reuse.
const MAX_UNBUDGETED: usize = 4;

/// One read may use this fraction (1/64) of the free shared memory. The memory then never runs out, and reads shrink gradually.
const SHARED_FRACTION: usize = 64;

/// Memory for reads; `bytes` shrinks from its front as messages are split off.
#[derive(Debug)]
pub(super) struct ReadBlock {
    pub(super) bytes: BytesMut,
    /// Allocated bytes.
    size: usize,
    origin: BlockOrigin,
}

/// The memory that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockOrigin {
    Budget,
    /// Outside the budget. A block of full size has the bytes that were asked for.
    Unbudgeted {
        is_full_size: bool,
    },
}

#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "the unit is a part of a number's name")]
pub(super) struct PoolLimits {
    /// Size of a regular block.
    pub(super) block_bytes: usize,
    /// Limit of all regular blocks.
    pub(super) budget_bytes: usize,
    /// Limit of the blocks outside the budget, apart from `LEAST_READ` bytes of each.
    pub(super) shared_bytes: usize,
}

impl ReadBlock {
    /// Number of bytes that can still be read into it.
    pub(super) fn spare_bytes(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Whether the block lies outside the budget, so that observations may not refer to it.
    pub(super) fn is_unbudgeted(&self) -> bool {
        self.origin != BlockOrigin::Budget
    }

    /// Bytes of an unbudgeted block that count against the limit of the shared memory. Every connection may have `LEAST_READ` bytes.
    fn shared_bytes(&self) -> usize {
        self.size - LEAST_READ
    }

    /// Discards the content. Makes the whole block available again if nothing refers to any of it, and returns whether it did.
    fn try_reclaim(&mut self) -> bool {
        self.bytes.clear();
        self.bytes.try_reclaim(self.size)
    }

    /// Makes the block available again if nothing refers to any of it, and returns whether it then has `needed` bytes.
    fn try_reclaim_bytes(&mut self, needed: usize) -> bool {
        self.try_reclaim() && self.spare_bytes() >= needed
    }
}

/// All blocks of one relay, except blocks that connections hold.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: Mutex<PoolBlocks>,
    limits: PoolLimits,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct PoolBlocks {
    /// Blocks with spare bytes, the most recently used last.
    open: Vec<ReadBlock>,
    /// Blocks that are full, until their observations are dropped.
    retired: VecDeque<ReadBlock>,
    /// A few blocks outside the budget. Each is in use only for one read and its write.
    unbudgeted: Vec<ReadBlock>,
    /// Size in bytes of all blocks, including those that connections hold.
    allocated: usize,
    /// Size in bytes of all blocks outside the budget that connections hold, apart from `LEAST_READ` bytes of each.
    shared_bytes: usize,
}

impl Pool {
    /// Creates a pool without blocks.
    pub(super) fn new(limits: PoolLimits, counters: Arc<Counters>) -> Self {
        Self { blocks: Mutex::default(), limits, counters }
    }

    /// Size of a regular block in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.limits.block_bytes
    }

    /// Returns a block of memory with at least `needed_bytes` spare bytes. Reuses a block before it allocates one: other bytes of the
    /// block may still be in use. `None` if a new block would exceed the pool's budget of bytes.
    pub(super) fn acquire_block(&self, needed_bytes: usize) -> Option<ReadBlock> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.reclaim_retired();
        if let Some(block) = blocks.take_open_block(needed_bytes) {
            return Some(block);
        }
        let size = needed_bytes.max(self.limits.block_bytes);
        if self.would_exceed_budget(&blocks, size) {
            // Reuse first: freeing and reallocating a block costs a page fault for each of its pages.
            if let Some(block) = blocks.take_unused_block(needed_bytes) {
                return Some(block);
            }
            // Freed blocks make room, because each of them was too small alone.
            blocks.free_unused();
            if self.would_exceed_budget(&blocks, size) {
                return None;
            }
        }
        blocks.allocated += size;
        self.counters.held_bytes.set(blocks.allocated as u64);
        Some(ReadBlock { bytes: BytesMut::with_capacity(size), size, origin: BlockOrigin::Budget })
    }

    /// Whether a new block of `size_bytes` would exceed the budget.
    #[inline]
    fn would_exceed_budget(&self, blocks: &PoolBlocks, size_bytes: usize) -> bool {
        blocks.allocated + size_bytes > self.limits.budget_bytes
    }

    /// Returns an empty block for a connection that must continue although the budget for blocks is exhausted. Each connection gets at
    /// least `LEAST_READ` bytes. The rest of `wanted_bytes` comes from memory that these connections share, so it may be shorter.
    pub(super) fn acquire_unbudgeted_block(&self, wanted_bytes: usize) -> ReadBlock {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let free_shared_bytes = self.limits.shared_bytes.saturating_sub(blocks.shared_bytes);
        // No connection gets all of the free bytes. So connections whose receivers do not read cannot use up the shared memory.
        let max_shared_bytes = free_shared_bytes / SHARED_FRACTION;
        let shared_bytes = wanted_bytes.saturating_sub(LEAST_READ).min(max_shared_bytes);
        blocks.shared_bytes += shared_bytes;
        let size = LEAST_READ + shared_bytes;
        let is_full_size = size >= wanted_bytes;
        let mut reused_block = None;
        // Blocks kept for reuse have full size, so a shortened block is a new one.
        if is_full_size {
            reused_block = blocks.unbudgeted.pop();
        } else {
            self.counters.reads_shortened.add(1);
        }
        let mut bytes = reused_block.map_or_else(BytesMut::new, |block| block.bytes);
        bytes.reserve(size);
        ReadBlock { bytes, size, origin: BlockOrigin::Unbudgeted { is_full_size } }
    }

    /// Returns a block to the pool and discards its content. A block of the budget with at least `min_spare_bytes` can be used again at
    /// once. Any other one waits until all observations that refer to its bytes are dropped.
    pub(super) fn return_block(&self, mut block: ReadBlock, min_spare_bytes: usize) {
        block.bytes.clear();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        match block.origin {
            BlockOrigin::Unbudgeted { is_full_size } => {
                blocks.shared_bytes -= block.shared_bytes();
                // A shortened block would be too small for the next read, and a few of full size are enough.
                if is_full_size && blocks.unbudgeted.len() < MAX_UNBUDGETED {
                    blocks.unbudgeted.push(block);
                }
            }
            BlockOrigin::Budget if block.spare_bytes() >= min_spare_bytes => blocks.open.push(block),
            BlockOrigin::Budget => blocks.retired.push_back(block),
        }
    }
}

impl PoolBlocks {
    /// Takes the block used last of those with `needed_bytes` spare bytes. `None` if none has that many.
    #[inline]
    fn take_open_block(&mut self, needed_bytes: usize) -> Option<ReadBlock> {
        if let Some(last) = self.open.last_mut() {
            // If nothing refers to it any more, all of its bytes are spare again.
            last.try_reclaim();
        }
        // From the end: the block used last is likely to be in a cache, and surplus ones before it stay untouched.
        let index = self.open.iter().rposition(|block| block.spare_bytes() >= needed_bytes)?;
        Some(self.open.remove(index))
    }

    /// Moves retired blocks, which were full, to the open ones if no observation refers to them any more. Observations are dropped in about
    /// the order they were made, so it is enough to check a few of the oldest. A block that is still in use moves to the back.
    fn reclaim_retired(&mut self) {
        let mut blocks_in_use = 0;
        // Ends at the latest when each of the blocks left is known to be in use.
        while blocks_in_use < RETIRED_CHECKS.min(self.retired.len()) {
            let Some(mut block) = self.retired.pop_front() else { return };
            if block.try_reclaim() {
                self.open.push(block);
            } else {
                self.retired.push_back(block);
                blocks_in_use += 1;
            }
        }
    }

    /// Takes a block of at least `needed_bytes` that nothing refers to, retired or open. `None` if there is none.
    fn take_unused_block(&mut self, needed_bytes: usize) -> Option<ReadBlock> {
        if let Some(index) = self.retired.iter_mut().position(|block| block.try_reclaim_bytes(needed_bytes)) {
            return self.retired.remove(index);
        }
        let index = self.open.iter_mut().position(|block| block.try_reclaim_bytes(needed_bytes))?;
        Some(self.open.remove(index))
    }

    /// Frees every block that nothing refers to. Blocks that observations still refer to stay.
    fn free_unused(&mut self) {
        self.open.retain_mut(|block| uncount_unless_in_use(block, &mut self.allocated));
        self.retired.retain_mut(|block| uncount_unless_in_use(block, &mut self.allocated));
    }
}

/// Whether the block stays allocated, because something refers to it. If nothing does, subtracts its size from `allocated_bytes`.
fn uncount_unless_in_use(block: &mut ReadBlock, allocated_bytes: &mut usize) -> bool {
    let is_unused = block.try_reclaim();
    if is_unused {
        *allocated_bytes -= block.size;
    }
    !is_unused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(block: usize, budget: usize) -> (Pool, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let limits = PoolLimits { block_bytes: block, budget_bytes: budget, shared_bytes: 1 << 20 };
        (Pool::new(limits, counters.clone()), counters)
    }

    #[test]
    fn a_block_is_reused_after_its_observations_are_dropped() {
        let (pool, counters) = pool(1024, 2048);
        let mut block = pool.acquire_block(100).expect("within the budget");
        block.bytes.extend_from_slice(&[7; 1000]);
        let message = block.bytes.split().freeze();
        pool.return_block(block, 100);
        let second = pool.acquire_block(100).expect("within the budget");
        assert_eq!(counters.held_bytes.get(), 2048);
        assert!(pool.acquire_block(100).is_none(), "both blocks are in use");
        drop(message);
        assert_eq!(pool.acquire_block(1024).expect("free again").spare_bytes(), 1024);
        drop(second);
        assert_eq!(counters.held_bytes.get(), 2048);
    }

    #[test]
    fn one_retained_observation_pins_only_one_block() {
        let (pool, counters) = pool(1024, 64 << 10);
        let mut kept = Vec::new();
        for n in 0..1000 {
            let mut block = pool.acquire_block(1000).expect("within the budget");
            block.bytes.extend_from_slice(&[7; 1000]);
            let message = block.bytes.split().freeze();
            pool.return_block(block, 100);
            if n % 200 == 0 {
                kept.push(message);
            }
        }
        assert_eq!(kept.len(), 5);
        assert!(counters.held_bytes.get() <= 8 * 1024, "five, and a few that were not checked in time");
    }

    #[test]
    fn at_the_limit_a_block_is_reused_instead_of_allocated() {
        let (pool, _) = pool(1024, 8 * 1024);
        let mut messages = Vec::new();
        for _ in 0..8 {
            let mut block = pool.acquire_block(1000).expect("within the budget");
            block.bytes.extend_from_slice(&[7; 1000]);
            messages.push(block.bytes.split().freeze());
            pool.return_block(block, 100);
        }
        // This block is behind those that `reclaim_retired` checks.
        let index = messages.pop().map(|last| last.as_ptr());
        let block = pool.acquire_block(1000).expect("one is free");
        assert_eq!(Some(block.bytes.as_ptr()), index);
        assert!(pool.acquire_block(1000).is_none(), "the others are in use");
    }

    #[test]
    fn reads_shrink_before_the_shared_memory_runs_out() {
        let (pool, counters) = pool(1024, 0);
        let blocks: Vec<ReadBlock> = (0..4_000).map(|_| pool.acquire_unbudgeted_block(128 << 10)).collect();
        let held: usize = blocks.iter().map(|block| block.spare_bytes() - LEAST_READ).sum();
        assert!(held <= 1 << 20, "{held}");
        assert!(blocks.iter().all(|block| block.spare_bytes() >= LEAST_READ));
        assert!(counters.reads_shortened.get() > 3_000);
        for block in blocks {
            pool.return_block(block, 16);
        }
        assert_eq!(pool.acquire_unbudgeted_block(16 << 10).spare_bytes(), 16 << 10, "free again");
    }

    #[test]
    fn a_large_message_gets_the_memory_of_unused_blocks() {
        let (pool, _) = pool(1024, 4096);
        let blocks: Vec<ReadBlock> = (0..4).filter_map(|_| pool.acquire_block(1024)).collect();
        assert_eq!(blocks.len(), 4);
        assert!(pool.acquire_block(4000).is_none());
        for block in blocks {
            pool.return_block(block, 16);
        }
        assert!(pool.acquire_block(4000).is_some_and(|block| block.spare_bytes() >= 4000));
    }
}
