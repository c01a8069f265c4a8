//! One connection of a hop: frames sent and waiting to be received, in order.

use std::collections::VecDeque;

use super::limits::push_bounded;
use crate::clock::MonoNs;
use crate::id::Ticket;

/// Number of send times kept: enough for [`Facts::unstreamed_tokens`](crate::engine::Facts::unstreamed_tokens) of every engine.
pub(crate) const RECENT_SENDS: usize = 50;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingChunk {
    pub(crate) ticket: Ticket,
    pub(crate) tokens: u32,
    /// The stream's count after it, which identifies it when it is forwarded.
    pub(crate) end_count: u32,
    /// Number of the chunk within the request on this hop (1-based).
    pub(crate) number: u32,
    /// The request's first chunk into the tokenizer.
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    /// Repeats an earlier finish, so no delivery follows.
    pub(crate) is_repeat: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameLoad {
    pub(crate) chunks: u32,
    /// Bytes of the frame, up to 4 GiB.
    pub(crate) bytes: u32,
    is_decoded: bool,
}

impl FrameLoad {
    pub(crate) fn new(chunks: usize, bytes: u64) -> Self {
        Self { chunks: u32::try_from(chunks).unwrap_or(u32::MAX), is_decoded: true, ..Self::undecoded(bytes) }
    }

    /// Load of a frame whose chunks are unknown.
    pub(crate) fn undecoded(bytes: u64) -> Self {
        Self { chunks: 0, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), is_decoded: false }
    }
}

/// Load of frames that were sent and not received yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedLoad {
    /// Chunks inside them.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Traffic of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Frames, undecoded ones included.
    pub frames: u64,
    /// Chunks inside them.
    pub chunks: u64,
    /// New tokens inside them, by the streams' own counts.
    pub tokens: u64,
}

/// Send of a frame, known at its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// When it was sent.
    pub at: MonoNs,
    /// Its bytes, up to 4 GiB.
    pub bytes: u32,
    /// Number of its chunks; `None` if it could not be decoded.
    pub chunks: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFrame {
    pub(crate) seq: u64,
    pub(crate) sent_at: MonoNs,
    /// Number of its entries in [`Lane::chunks`].
    pub(crate) chunks: u32,
    load: FrameLoad,
}

impl PendingFrame {
    pub(super) fn sent_frame(self) -> SentFrame {
        let chunks = self.load.is_decoded.then_some(self.load.chunks);
        SentFrame { at: self.sent_at, bytes: self.load.bytes, chunks }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(super) frames: VecDeque<PendingFrame>,
    pub(crate) chunks: VecDeque<PendingChunk>,
    /// Queued frames evicted at a limit, all older than those in `frames`.
    evicted_frames: u64,
    /// Sequence number after the last frame whose content was observed.
    next_seq: Option<u64>,
    /// Number of consecutive frames whose content was observed.
    pub(crate) watched_frames: u64,
    pub(crate) last_at: MonoNs,
    pub(crate) counts: LaneCounts,
    /// Send times of the last [`RECENT_SENDS`] frames with chunks, oldest first.
    recent_sends: VecDeque<MonoNs>,
}

impl Lane {
    /// Records that the frame numbered `seq` was observed on this connection. Returns the number of frames missed just before it, by the
    /// gap in the numbers.
    pub(crate) fn record_frame_and_count_missed(&mut self, seq: u64, at: MonoNs) -> u64 {
        self.counts.frames += 1;
        // Before the first observed frame, none was missed.
        let expected_seq = self.next_seq.unwrap_or(seq);
        let missed = seq.saturating_sub(expected_seq);
        self.next_seq = Some(expected_seq.max(seq.saturating_add(1)));
        self.last_at = at;
        // Counts the frames observed in a row, so a gap begins a new count.
        self.watched_frames = if missed > 0 { 1 } else { self.watched_frames + 1 };
        missed
    }

    /// Counts the chunks and tokens in a frame sent on this connection, and keeps when the last frames with chunks were sent.
    pub(crate) fn count_frame_content(&mut self, at: MonoNs, chunks: u64, tokens: u64) {
        self.counts.chunks += chunks;
        self.counts.tokens += tokens;
        // Only a frame with chunks shows a step of the scheduler.
        if chunks > 0 {
            if self.recent_sends.is_empty() {
                // Allocated only now: connections without chunks, such as those of requests, never need the memory.
                self.recent_sends.reserve_exact(RECENT_SENDS);
            }
            push_bounded(&mut self.recent_sends, at, RECENT_SENDS);
        }
    }

    /// Number of frames with chunks sent after `at`, up to [`RECENT_SENDS`].
    pub(crate) fn sends_since(&self, at: MonoNs) -> usize {
        let newest_first = self.recent_sends.iter().rev();
        newest_first.take_while(|&&sent| sent > at).count()
    }

    /// When the oldest queued frame was sent. Frames sent until `missed_until` do not count: they may have been received unobserved. If it
    /// is 0, all count. `None` if no frame counts.
    pub(crate) fn oldest_queued_send_after(&self, missed_until: MonoNs) -> Option<MonoNs> {
        let oldest = self.frames.front()?.sent_at;
        if oldest > missed_until || missed_until == MonoNs(0) {
            return Some(oldest);
        }
        // Frames are queued in the order of their sends.
        let index = self.frames.partition_point(|frame| frame.sent_at <= missed_until);
        self.frames.get(index).map(|frame| frame.sent_at)
    }

    pub(crate) fn push_frame(&mut self, seq: u64, at: MonoNs, chunks: u32, load: FrameLoad) {
        self.frames.push_back(PendingFrame { seq, sent_at: at, chunks, load });
    }

    /// Moves the `count` chunks queued longest to the end of `moved_chunks`.
    pub(crate) fn move_oldest_chunks_to(&mut self, count: usize, moved_chunks: &mut Vec<PendingChunk>) {
        let count = count.min(self.chunks.len());
        // Two copies of slices are cheaper than a move of each chunk.
        let (front, back) = self.chunks.as_slices();
        let from_front = count.min(front.len());
        moved_chunks.extend_from_slice(&front[..from_front]);
        moved_chunks.extend_from_slice(&back[..count - from_front]);
        self.chunks.drain(..count);
    }

    /// Load of the queued frames; `None` if some were evicted at a limit.
    pub(crate) fn queued_load(&self) -> Option<QueuedLoad> {
        if self.evicted_frames > 0 {
            return None;
        }
        let chunks = self.frames.iter().map(|frame| u64::from(frame.load.chunks)).sum();
        let bytes = self.frames.iter().map(|frame| u64::from(frame.load.bytes)).sum();
        Some(QueuedLoad { chunks, bytes })
    }

    /// Number of queued frames, including evicted ones.
    pub(crate) fn backlog(&self) -> u64 {
        self.frames.len() as u64 + self.evicted_frames
    }

    /// Sequence number of the oldest queued frame that is not evicted.
    pub(crate) fn first_waiting(&self) -> Option<u64> {
        self.frames.front().map(|frame| frame.seq)
    }

    /// Evicts the oldest frame and returns its chunks; `None` if no frame is queued.
    pub(crate) fn evict_oldest(&mut self) -> Option<impl ExactSizeIterator<Item = PendingChunk> + '_> {
        let frame = self.frames.pop_front()?;
        self.evicted_frames += 1;
        Some(self.chunks.drain(..frame.chunks as usize))
    }

    /// Empties the queue, because receives are not observed any more, and moves its chunks to `moved_chunks`. Returns the number of frames,
    /// without evicted ones.
    pub(crate) fn move_all_chunks_and_count_frames(&mut self, moved_chunks: &mut Vec<PendingChunk>) -> usize {
        moved_chunks.extend(self.chunks.drain(..));
        self.evicted_frames = 0;
        let frames = self.frames.len();
        self.frames.clear();
        frames
    }

    /// Forgets evicted frames that the receive of frame `received_seq` shows as received, and returns their number. If `received_seq` is in
    /// the queue or later, all evicted frames were received before it. Otherwise frame `received_seq` is one of them, and only that one was
    /// received.
    pub(crate) fn forget_received_evicted_frames(&mut self, received_seq: u64) -> u64 {
        // Evicted frames are older than all queued ones, and a lane keeps its order.
        let is_after_evicted = self.first_waiting().is_some_and(|first| first <= received_seq);
        let received = if is_after_evicted { self.evicted_frames } else { self.evicted_frames.min(1) };
        self.evicted_frames -= received;
        received
    }

    /// Removes and returns the oldest frame if it is `seq` or an earlier one.
    pub(crate) fn pop_through(&mut self, seq: u64) -> Option<PendingFrame> {
        self.frames.pop_front_if(|frame| frame.seq <= seq)
    }

    /// Whether the frame was sent or is missed. Its send cannot follow.
    pub(crate) fn is_past(&self, seq: u64) -> bool {
        self.next_seq.is_some_and(|next| seq < next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_a_lane_in_order_and_gaps_are_detected() {
        let mut lane = Lane::default();
        assert_eq!(lane.record_frame_and_count_missed(7, MonoNs(1)), 0, "attaching mid-stream is not a gap");
        lane.push_frame(7, MonoNs(1), 0, FrameLoad::new(3, 100));
        assert_eq!(lane.record_frame_and_count_missed(8, MonoNs(2)), 0);
        lane.push_frame(8, MonoNs(2), 0, FrameLoad::new(2, 50));
        assert_eq!(lane.queued_load(), Some(QueuedLoad { chunks: 5, bytes: 150 }));
        assert_eq!(lane.record_frame_and_count_missed(11, MonoNs(3)), 2);
        let mut pop = |seq| lane.pop_through(seq).map(|frame| (frame.seq, frame.sent_at));
        assert_eq!((pop(5), pop(7)), (None, Some((7, MonoNs(1)))));
        assert_eq!((pop(9), pop(9)), (Some((8, MonoNs(2))), None), "a frame received before 9");
        assert_eq!((lane.is_past(5), lane.is_past(12)), (true, false));
    }
}
