//! Bytes in a hop's kernel queues. libzmq drains its sockets, so this is 0 even while hundreds of frames wait in its inbox.

use std::collections::VecDeque;

use super::limits::push_bounded;
use crate::clock::MonoNs;
use crate::event::QueueSample;

/// Maximum number of samples kept: ten minutes.
const MAX_SAMPLES: usize = 6_000;

/// Kernel queues of the hops of one name.
#[derive(Clone, Debug, Default)]
pub struct KernelQueue {
    /// Bytes not yet read by the receivers' libzmq, at the last sample; `None` if not observable.
    pub bytes: Option<u64>,
    /// Maximum over all samples.
    pub bytes_max: Option<u64>,
    /// Bytes in the senders' sockets at the last sample. On Unix sockets, the same bytes plus the kernel's overhead.
    pub send_bytes: Option<u64>,
    /// Maximum number of frames in libzmq's own queues: sent, not received, and not in the kernel. Bytes in the kernel are converted to
    /// frames of the hop's mean length.
    pub inbox_max: Option<u64>,
    /// Time of the last sample.
    pub last_sample_at: Option<MonoNs>,
    samples: VecDeque<QueueLevel>,
}

#[derive(Clone, Copy, Debug)]
struct QueueLevel {
    at: MonoNs,
    bytes: u64,
}

impl KernelQueue {
    /// Records a sample of the bytes in the sockets' buffers. `backlog_frames`: number of frames sent on the hops (channels) and not
    /// received; `None` if sends or receives are not observed. `mean_frame_bytes`: mean length of a frame.
    pub(crate) fn add_sample(
        &mut self,
        at: MonoNs,
        sample: &QueueSample<'_>,
        backlog_frames: Option<u64>,
        mean_frame_bytes: u64,
    ) {
        self.send_bytes = sample.send_bytes;
        self.bytes = sample.receive_bytes;
        self.last_sample_at = Some(at);
        // Without the receivers' sockets, the queue is unknown, not empty.
        let Some(bytes) = sample.receive_bytes else { return };
        self.bytes_max = self.bytes_max.max(Some(bytes));
        if let Some(backlog_frames) = backlog_frames {
            // Queued frames that are not in the kernel are in the receiver's inbox, libzmq's own queue. The number in the kernel is
            // rounded up, so that the inbox is not overestimated.
            let frames_in_kernel = bytes.div_ceil(mean_frame_bytes.max(1));
            self.inbox_max = self.inbox_max.max(Some(backlog_frames.saturating_sub(frames_in_kernel)));
        }
        push_bounded(&mut self.samples, QueueLevel { at, bytes }, MAX_SAMPLES);
    }

    /// Maximum bytes of the samples between `from` and `to`; `None` without samples.
    pub(crate) fn max_bytes_between(&self, from: MonoNs, to: MonoNs) -> Option<u64> {
        // Samples are in order of time.
        let first = self.samples.partition_point(|sample| sample.at < from);
        let between = self.samples.range(first..).take_while(|sample| sample.at <= to);
        between.map(|sample| sample.bytes).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(receive_bytes: Option<u64>) -> QueueSample<'static> {
        QueueSample { hop: "scheduler->tokenizer", receive_bytes, send_bytes: None }
    }

    #[test]
    fn frames_not_in_the_kernel_queue_are_in_the_inbox() {
        let mut queue = KernelQueue::default();
        queue.add_sample(MonoNs(1), &sample(Some(0)), Some(850), 1_000);
        queue.add_sample(MonoNs(2), &sample(Some(2_500)), Some(10), 1_000);
        assert_eq!(queue.inbox_max, Some(850));
        assert_eq!(queue.bytes, Some(2_500));
        assert_eq!(queue.bytes_max, Some(2_500));
        queue.add_sample(MonoNs(3), &sample(None), Some(900), 1_000);
        assert_eq!((queue.bytes, queue.inbox_max), (None, Some(850)), "an unreadable value is not 0");
        assert_eq!(queue.max_bytes_between(MonoNs(0), MonoNs(1)), Some(0));
        assert_eq!(queue.max_bytes_between(MonoNs(2), MonoNs(9)), Some(2_500));
        assert_eq!(queue.max_bytes_between(MonoNs(3), MonoNs(9)), None);
    }

    #[test]
    fn samples_are_bounded() {
        let mut queue = KernelQueue::default();
        for n in 0..10_000 {
            queue.add_sample(MonoNs(n), &sample(Some(n)), None, 1);
        }
        assert_eq!((queue.samples.len(), queue.inbox_max), (MAX_SAMPLES, None));
    }
}
