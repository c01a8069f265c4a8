//! Memory for reads: large blocks, reused once no observation refers to them.
//!
//! A block is split from its front: observations keep their part, and the rest receives the next read. A connection holds a block only
//! while it has unwritten or incomplete data, so a thousand idle connections hold none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

use super::stats::Counters;

/// Number of retired blocks still in use to check before a block is allocated.
const LOOKS: usize = 4;

/// Number of unbudgeted blocks kept for reuse.
const OUTSIDE_KEPT: usize = 4;

/// Memory for reads; `bytes` shrinks from its front as messages are split off.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) bytes: BytesMut,
    /// Allocated bytes; 0 for a block outside the budget.
    size: usize,
}

impl Block {
    /// Number of bytes that can still be read into it.
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    pub(super) fn is_outside(&self) -> bool {
        self.size == 0
    }

    /// Makes the whole block available again if nothing refers to any of it.
    fn renew(&mut self) -> bool {
        self.bytes.clear();
        self.bytes.try_reclaim(self.size)
    }
}

/// All blocks of one relay, except blocks in the hands of a connection.
#[derive(Debug)]
pub(super) struct Pool {
    stock: Mutex<Stock>,
    block: usize,
    budget: usize,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Stock {
    /// Blocks with room, the most recently used last.
    open: Vec<Block>,
    /// Blocks that are full, until their observations are dropped.
    retired: VecDeque<Block>,
    /// A few blocks outside the budget. Each is in use only for one read and its write.
    outside: Vec<Block>,
    /// Size in bytes of all blocks, including those that connections hold.
    held: usize,
}

impl Pool {
    pub(super) fn new(block: usize, budget: usize, counters: Arc<Counters>) -> Self {
        Self {
            stock: Mutex::default(),
            block,
            budget,
            counters,
        }
    }

    /// Size of a regular block in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.block
    }

    /// Returns an empty block with room for at least `room` bytes, or `None` if the budget is exhausted.
    pub(super) fn take(&self, room: usize) -> Option<Block> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        stock.renew_retired();
        // Search from the top: the block used last is likely to be in a cache, and surplus blocks below stay untouched.
        if let Some(block) = stock.open.last_mut() {
            block.renew();
        }
        if let Some(place) = stock.open.iter().rposition(|block| block.room() >= room) {
            return Some(stock.open.remove(place));
        }
        let size = room.max(self.block);
        if stock.held + size > self.budget {
            // Reuse first: freeing and reallocating a block costs a page fault for each of its pages.
            if let Some(block) = stock.unused(room) {
                return Some(block);
            }
            stock.free_unused();
            if stock.held + size > self.budget {
                return None;
            }
        }
        stock.held += size;
        self.counters.held_bytes.set(stock.held as u64);
        Some(Block {
            bytes: BytesMut::with_capacity(size),
            size,
        })
    }

    /// Returns an empty block outside the budget, for a connection that must continue when the budget is exhausted.
    pub(super) fn outside(&self, room: usize) -> Block {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = stock.outside.pop().map_or_else(BytesMut::new, |block| block.bytes);
        bytes.reserve(room);
        Block { bytes, size: 0 }
    }

    /// Returns a block to the pool and discards its content.
    pub(super) fn give(&self, mut block: Block, least: usize) {
        block.bytes.clear();
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if block.is_outside() {
            if stock.outside.len() < OUTSIDE_KEPT {
                stock.outside.push(block);
            }
        } else if block.room() >= least {
            stock.open.push(block);
        } else {
            stock.retired.push_back(block);
        }
    }
}

impl Stock {
    /// Reopens retired blocks that are free. Observations are dropped in about the order they were made, so it is enough to check a few of
    /// the oldest. A block that is still in use moves to the back.
    fn renew_retired(&mut self) {
        let mut in_use = 0;
        while in_use < LOOKS.min(self.retired.len()) {
            let Some(mut block) = self.retired.pop_front() else {
                return;
            };
            if block.renew() {
                self.open.push(block);
            } else {
                self.retired.push_back(block);
                in_use += 1;
            }
        }
    }

    /// Finds a block that nothing refers to, open or retired.
    fn unused(&mut self, room: usize) -> Option<Block> {
        let mut fits = |block: &mut Block| block.renew() && block.room() >= room;
        if let Some(place) = self.retired.iter_mut().position(&mut fits) {
            return self.retired.remove(place);
        }
        let place = self.open.iter_mut().position(fits)?;
        Some(self.open.remove(place))
    }

    /// Frees every block that nothing refers to.
    fn free_unused(&mut self) {
        let held = &mut self.held;
        let mut keep = |block: &mut Block| {
            let unused = block.renew();
            if unused {
                *held -= block.size;
            }
            !unused
        };
        self.open.retain_mut(&mut keep);
        self.retired.retain_mut(&mut keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(block: usize, budget: usize) -> (Pool, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        (Pool::new(block, budget, counters.clone()), counters)
    }

    #[test]
    fn a_block_comes_back_once_its_observations_are_gone() {
        let (pool, counters) = pool(1024, 2048);
        let mut block = pool.take(100).expect("within the budget");
        block.bytes.extend_from_slice(&[7; 1000]);
        let message = block.bytes.split().freeze();
        pool.give(block, 100);
        let second = pool.take(100).expect("within the budget");
        assert_eq!(counters.held_bytes.get(), 2048);
        assert!(pool.take(100).is_none(), "both blocks are in use");
        drop(message);
        assert_eq!(pool.take(1024).expect("free again").room(), 1024);
        drop(second);
        assert_eq!(counters.held_bytes.get(), 2048);
    }

    #[test]
    fn one_observation_that_is_kept_holds_one_block_only() {
        let (pool, counters) = pool(1024, 64 << 10);
        let mut kept = Vec::new();
        for n in 0..1000 {
            let mut block = pool.take(1000).expect("within the budget");
            block.bytes.extend_from_slice(&[7; 1000]);
            let message = block.bytes.split().freeze();
            pool.give(block, 100);
            if n % 200 == 0 {
                kept.push(message);
            }
        }
        assert_eq!(kept.len(), 5);
        assert!(
            counters.held_bytes.get() <= 8 * 1024,
            "five, and a few that were not looked at in time"
        );
    }

    #[test]
    fn at_the_limit_a_block_is_used_again_rather_than_allocated() {
        let (pool, _) = pool(1024, 8 * 1024);
        let mut messages = Vec::new();
        for _ in 0..8 {
            let mut block = pool.take(1000).expect("within the budget");
            block.bytes.extend_from_slice(&[7; 1000]);
            messages.push(block.bytes.split().freeze());
            pool.give(block, 100);
        }
        // This block is behind those that `renew_retired` checks.
        let place = messages.pop().map(|last| last.as_ptr());
        let block = pool.take(1000).expect("one is free");
        assert_eq!(Some(block.bytes.as_ptr()), place);
        assert!(pool.take(1000).is_none(), "the others are in use");
    }

    #[test]
    fn a_large_message_gets_the_memory_of_unused_blocks() {
        let (pool, _) = pool(1024, 4096);
        let blocks: Vec<Block> = (0..4).filter_map(|_| pool.take(1024)).collect();
        assert_eq!(blocks.len(), 4);
        assert!(pool.take(4000).is_none());
        for block in blocks {
            pool.give(block, 16);
        }
        assert!(pool.take(4000).is_some_and(|block| block.room() >= 4000));
    }
}
