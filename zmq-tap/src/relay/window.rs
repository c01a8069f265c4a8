//! The stretch of a stream that is in the relay's hands: read and not yet written, or part of a message under way.

use std::sync::Arc;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};

use super::pool::{Block, Pool};

/// What a message under way needs, in stream offsets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// First byte that is still needed.
    pub(super) from: u64,
    /// End of the frame under way, when its header has told.
    pub(super) frame_end: Option<u64>,
}

/// Bytes `base..end` of a stream, of which `..written` have been passed on.
#[derive(Debug)]
pub(super) struct Window {
    pool: Arc<Pool>,
    block: Option<Block>,
    base: u64,
    written: u64,
    end: u64,
    /// The most to read at once.
    buffer: usize,
}

impl Window {
    pub(super) fn new(pool: Arc<Pool>, buffer: usize) -> Self {
        Self {
            pool,
            block: None,
            base: 0,
            written: 0,
            end: 0,
            buffer,
        }
    }

    /// Less room than this and a block is done with.
    fn least(&self) -> usize {
        self.buffer / 4
    }

    /// Makes sure of room for a read, contiguous with what is kept. False: the budget is in use, what was kept is gone,
    /// and so is the beginning of whatever is read next.
    pub(super) fn make_room(&mut self, keep: Keep) -> bool {
        self.forget(keep.from);
        let have = self.block.as_ref().map_or(0, |block| block.bytes.len());
        let room = self.block.as_ref().map_or(0, Block::room);
        let outside = self.block.as_ref().is_some_and(Block::is_outside);
        let left = keep
            .frame_end
            .map_or(0, |end| usize::try_from(end - self.end).unwrap_or(usize::MAX));
        // What a header claims is believed by and by: no more at once than a block, or as much as has come already.
        let need = match left {
            0 => self.least(),
            left => left.min(have.max(self.pool.block_bytes())),
        };
        if room >= need && !outside {
            return true;
        }
        if let Some(mut larger) = self.pool.take(have + need) {
            if let Some(old) = self.block.take() {
                larger.bytes.extend_from_slice(&old.bytes);
                self.pool.give(old, usize::MAX);
            }
            self.block = Some(larger);
            return true;
        }
        if !outside {
            self.give_back();
            self.block = Some(Block::outside(self.buffer));
        }
        self.base = self.end;
        if let Some(block) = &mut self.block {
            block.bytes.clear();
        }
        false
    }

    /// Where the next read goes.
    pub(super) fn spare(&mut self) -> Limit<&mut BytesMut> {
        let most = self.buffer;
        let block = self.block.get_or_insert_with(|| Block::outside(most));
        let limit = block.room().min(most);
        (&mut block.bytes).limit(limit)
    }

    /// Notes that `count` bytes were read, and gives them.
    pub(super) fn fresh(&mut self, count: usize) -> &[u8] {
        self.end += count as u64;
        let bytes = self.block.as_ref().map_or(&[][..], |block| &block.bytes);
        &bytes[bytes.len() - count..]
    }

    /// What is still to be passed on.
    pub(super) fn unwritten(&self) -> &[u8] {
        let bytes = self.block.as_ref().map_or(&[][..], |block| &block.bytes);
        &bytes[(self.written - self.base) as usize..]
    }

    /// Notes that `count` bytes were passed on.
    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count as u64;
    }

    /// Stream offset up to which bytes were passed on.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Cuts off everything before `end`; gives it with the stream offset of its first byte.
    pub(super) fn cut(&mut self, end: u64) -> (u64, Bytes) {
        let base = self.base;
        let length = end.saturating_sub(base) as usize;
        let Some(block) = &mut self.block else {
            return (base, Bytes::new());
        };
        let length = length.min(block.bytes.len());
        self.base += length as u64;
        (base, block.bytes.split_to(length).freeze())
    }

    /// Forgets everything before `from` that was passed on; without anything left, gives the block back.
    pub(super) fn settle(&mut self, from: u64) {
        self.forget(from);
        if self.base == self.end {
            self.give_back();
        }
    }

    fn forget(&mut self, from: u64) {
        let upto = from.min(self.written);
        if upto > self.base {
            drop(self.cut(upto));
        }
    }

    fn give_back(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give(block, self.least());
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.give_back();
    }
}
