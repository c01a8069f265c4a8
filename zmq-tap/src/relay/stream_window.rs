//! The section of a stream that the relay holds: bytes read and not yet written, or part of an incomplete message.

use std::ops::Range;
use std::sync::Arc;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};

use super::pool::{Pool, ReadBlock};
use crate::zmtp::PendingMessage;

/// Bytes `held_start..end` of a stream, of which `..written` have been relayed.
#[derive(Debug)]
pub(super) struct StreamWindow {
    pool: Arc<Pool>,
    /// Memory of the held bytes; `None` while there are none.
    block: Option<ReadBlock>,
    /// Stream offset of the first held byte.
    held_start: u64,
    /// Stream offset up to which bytes have been relayed.
    written: u64,
    /// Stream offset of the next byte to read.
    end: u64,
    /// Maximum size of a read.
    max_read_bytes: usize,
    /// Current limit of a read, which is smaller while the receiver is not trusted.
    read_limit_bytes: usize,
}

/// Bytes of a stream.
#[derive(Debug)]
pub(super) struct StreamSlice {
    /// Stream offset of the first byte.
    start: u64,
    pub(super) bytes: Bytes,
}

impl StreamSlice {
    /// The bytes at these stream offsets. `None` if some of them are not in this slice.
    pub(super) fn bytes_at_offsets(&self, stream_offsets: Range<u64>) -> Option<Bytes> {
        let start = stream_offsets.start.checked_sub(self.start)?;
        let end = stream_offsets.end.checked_sub(self.start)?;
        let is_inside = start <= end && end <= self.bytes.len() as u64;
        is_inside.then(|| self.bytes.slice(start as usize..end as usize))
    }
}

impl StreamWindow {
    /// Creates the empty window at the start of a stream.
    pub(super) fn new(pool: Arc<Pool>, max_read_bytes: usize) -> Self {
        Self { pool, block: None, held_start: 0, written: 0, end: 0, max_read_bytes, read_limit_bytes: max_read_bytes }
    }

    /// Limits reads to `limit_bytes`, and at most to the buffer size.
    pub(super) fn limit_reads(&mut self, limit_bytes: usize) {
        self.read_limit_bytes = limit_bytes.min(self.max_read_bytes);
    }

    /// Minimum spare bytes of a usable block: a quarter of the largest read.
    fn min_spare_bytes(&self) -> usize {
        self.max_read_bytes / 4
    }

    /// Ensures space for the next read, behind the bytes of the `incomplete` message. The window's memory is one block of the relay's pool.
    /// If the current block is too small, the message moves to another one. Returns false if the pool's budget is exhausted. Then the bytes
    /// of the message are discarded, and the next read starts inside it.
    pub(super) fn reserve_space_or_discard(&mut self, incomplete: PendingMessage) -> bool {
        self.discard_relayed_before(incomplete.start);
        let buffered_bytes = self.block.as_ref().map_or(0, |block| block.bytes.len());
        let rest_of_frame_bytes = self.bytes_to_frame_end(incomplete);
        // A block outside the budget is only for one read, and observations may not refer to it.
        if let Some(block) = &self.block
            && !block.is_unbudgeted()
            && block.spare_bytes() >= self.min_spare_bytes_to_stay(buffered_bytes, rest_of_frame_bytes)
        {
            return true;
        }
        let wanted_spare_bytes = rest_of_frame_bytes.max(self.min_spare_bytes());
        // A header may claim any length. So it gets at most one regular block, or as much again as has already arrived.
        let max_spare_bytes = buffered_bytes.max(self.pool.block_bytes());
        let spare_bytes = wanted_spare_bytes.min(max_spare_bytes);
        if let Some(larger) = self.pool.acquire_block(buffered_bytes + spare_bytes) {
            self.move_to_block(larger);
            return true;
        }
        self.replace_by_unbudgeted_block();
        false
    }

    /// Number of bytes to come of the current frame of `pending`. 0 while the frame's length is unknown.
    #[inline]
    fn bytes_to_frame_end(&self, pending: PendingMessage) -> usize {
        let Some(frame_end) = pending.frame_end else { return 0 };
        // A length has 64 bits, which an address may not have.
        usize::try_from(frame_end - self.end).unwrap_or(usize::MAX)
    }

    /// Replaces the block by one outside the pool's budget, so that the copy goes on. The held bytes go with the old block, so the window
    /// starts again at the next read.
    #[inline]
    fn replace_by_unbudgeted_block(&mut self) {
        self.release_block();
        self.held_start = self.end;
        self.block = Some(self.pool.acquire_unbudgeted_block(self.max_read_bytes));
    }

    /// Copies the kept bytes to `larger`, which replaces the current block.
    fn move_to_block(&mut self, mut larger: ReadBlock) {
        if let Some(old) = self.block.take() {
            larger.bytes.extend_from_slice(&old.bytes);
            // No block has this many spare bytes. So no connection uses the old one before its observations are dropped.
            let unreachable_spare_bytes = usize::MAX;
            self.pool.return_block(old, unreachable_spare_bytes);
        }
        self.block = Some(larger);
    }

    /// Least number of spare bytes with which an incomplete message stays in its block of memory. With fewer, it is copied to another
    /// block. `buffered_bytes`: bytes of the message so far. `rest_of_frame_bytes`: bytes to come of its current frame, 0 if unknown.
    fn min_spare_bytes_to_stay(&self, buffered_bytes: usize, rest_of_frame_bytes: usize) -> usize {
        let is_cheap_to_move = buffered_bytes < self.min_spare_bytes();
        if is_cheap_to_move {
            // If the rest does not fit, it moves now, because a later copy is longer. With half a block of space, it always stays.
            rest_of_frame_bytes.clamp(self.min_spare_bytes(), self.pool.block_bytes() / 2)
        } else if rest_of_frame_bytes > 0 {
            // A copy is expensive by now. For the last bytes of a frame, less space than usual is enough.
            rest_of_frame_bytes.min(self.min_spare_bytes())
        } else {
            self.min_spare_bytes()
        }
    }

    /// Spare memory for the next read, no longer than the current limit of a read. Call [`Self::reserve_space_or_discard`] before.
    pub(super) fn spare_buffer(&mut self) -> Limit<&mut BytesMut> {
        let Self { block, pool, max_read_bytes, .. } = self;
        // `reserve_space_or_discard` has set the block, so another one is only a fallback.
        let block = block.get_or_insert_with(|| pool.acquire_unbudgeted_block(*max_read_bytes));
        let limit = block.spare_bytes().min(self.read_limit_bytes);
        (&mut block.bytes).limit(limit)
    }

    /// Records that `count` bytes were read, and returns them.
    pub(super) fn record_read_and_get_bytes(&mut self, count: usize) -> &[u8] {
        self.end += count as u64;
        let bytes = self.block.as_ref().map_or(&[][..], |block| &block.bytes);
        &bytes[bytes.len() - count..]
    }

    /// Bytes that are still to be relayed.
    pub(super) fn unwritten(&self) -> &[u8] {
        let bytes = self.block.as_ref().map_or(&[][..], |block| &block.bytes);
        &bytes[(self.written - self.held_start) as usize..]
    }

    /// Records that `count` bytes were relayed.
    pub(super) fn record_written(&mut self, count: usize) {
        self.written += count as u64;
    }

    /// Stream offset up to which bytes have been relayed.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Removes the held bytes before the stream offset `end_offset` from the window, and returns them.
    pub(super) fn take_bytes_before(&mut self, end_offset: u64) -> StreamSlice {
        let start = self.held_start;
        let Some(block) = &mut self.block else {
            return StreamSlice { start, bytes: Bytes::new() };
        };
        let length = (end_offset.saturating_sub(start) as usize).min(block.bytes.len());
        self.held_start += length as u64;
        // Without a copy: the observation shares the block's memory.
        StreamSlice { start, bytes: block.bytes.split_to(length).freeze() }
    }

    /// Discards relayed bytes before `offset`. Returns the block to the pool if it becomes empty.
    pub(super) fn discard_relayed_and_release_if_empty(&mut self, offset: u64) {
        self.discard_relayed_before(offset);
        if self.held_start == self.end {
            self.release_block();
        }
    }

    /// Discards the bytes before `offset`, except those that are not relayed yet.
    fn discard_relayed_before(&mut self, offset: u64) {
        let end = offset.min(self.written);
        if end > self.held_start {
            drop(self.take_bytes_before(end));
        }
    }

    /// Gives the memory back to the pool.
    fn release_block(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.return_block(block, self.min_spare_bytes());
        }
    }
}

impl Drop for StreamWindow {
    fn drop(&mut self) {
        self.release_block();
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;
    use crate::relay::pool::PoolLimits;
    use crate::relay::stats::Counters;

    /// Fills a message of `length` bytes in full reads. Returns how many bytes were copied from block to block.
    fn copied(length: u64, before: usize) -> usize {
        let limits = PoolLimits { block_bytes: 1 << 20, budget_bytes: 64 << 20, shared_bytes: 64 << 20 };
        let pool = Arc::new(Pool::new(limits, Arc::new(Counters::default())));
        let mut window = StreamWindow::new(pool, 128 << 10);
        assert!(window.reserve_space_or_discard(PendingMessage { start: 0, frame_end: None }));
        window.spare_buffer().put_bytes(1, before);
        let appended = window.record_read_and_get_bytes(before).len();
        window.record_written(appended);
        let (from, end) = (before as u64, before as u64 + length);
        let mut copied = 0;
        while window.end < end {
            let kept = (window.end - from) as usize;
            let place = window.block.as_ref().map(|block| block.bytes.as_ptr());
            assert!(window.reserve_space_or_discard(PendingMessage { start: from, frame_end: Some(end) }));
            let moved = window.block.as_ref().map(|block| block.bytes.as_ptr()) != place;
            copied += if moved { kept } else { 0 };
            let mut spare = window.spare_buffer();
            let count = spare.remaining_mut().min((end - from) as usize - kept);
            assert!(count > 0);
            spare.put_bytes(2, count);
            let appended = window.record_read_and_get_bytes(count).len();
            window.record_written(appended);
        }
        assert_eq!(window.take_bytes_before(end).bytes.len() as u64, length);
        copied
    }

    #[test]
    fn a_long_message_is_rarely_moved() {
        assert_eq!(copied(60_000, 100), 0, "it fits");
        assert_eq!(copied(900_000, 100_000), 0, "it fits");
        for length in [2 << 20, 16 << 20] {
            let copied = copied(length, 100_000) as u64;
            assert!(copied < 2 * length, "{copied} bytes moved of {length}");
        }
    }
}
