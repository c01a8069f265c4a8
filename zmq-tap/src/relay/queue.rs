//! The queue from the relay thread to its reader: bounded, lock-free for frames, and without a wake-up. The reader polls every few
//! milliseconds, because a system call for every frame costs more than the frame.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::observation::Observation;

/// Observations that wait to be polled.
#[derive(Debug)]
pub struct Observations {
    frames: ArrayQueue<Observation>,
    /// Openings, closings and losses that found `frames` full. They are delivered once `frames` is empty.
    late: Mutex<VecDeque<Observation>>,
    /// Length of `late`, which a poll reads without the lock.
    late_len: AtomicUsize,
    /// Limit of `late`.
    late_limit: usize,
}

impl Observations {
    /// Creates a queue of `max_frames` observations, and a reserve of `late_limit` for rare ones.
    pub(super) fn new(max_frames: usize, late_limit: usize) -> Self {
        Self { frames: ArrayQueue::new(max_frames), late: Mutex::default(), late_len: AtomicUsize::new(0), late_limit }
    }

    /// Returns the next observation, if any. Never blocks.
    pub fn poll(&self) -> Option<Observation> {
        self.frames.pop().or_else(|| self.pop_late_or_new_frame())
    }

    /// Whether no observation waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.late_len.load(Ordering::Acquire) == 0
    }

    /// Returns the next late observation, after the caller found the queue of frames empty. An observation is late if it is rare and found
    /// that queue full. If a frame was queued in between, returns the frame instead. `None` if nothing waits.
    fn pop_late_or_new_frame(&self) -> Option<Observation> {
        // Usually nothing is late, so the lock is not taken.
        if self.late_len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        // A frame that was queued in between comes before the late observations of its connection.
        if let Some(frame) = self.frames.pop() {
            return Some(frame);
        }
        let first = late.pop_front();
        // Under the lock, so that no observation that is queued meanwhile is left out.
        self.late_len.store(late.len(), Ordering::Release);
        first
    }

    /// Queues an observation, or returns it when the queue is full.
    pub(super) fn push(&self, observation: Observation) -> Result<(), Observation> {
        self.frames.push(observation)
    }

    /// Queues a rare observation that must not be lost, behind all frames. Returns false if even the queue of such observations is full.
    pub(super) fn try_push_late(&self, observation: Observation) -> bool {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.len() >= self.late_limit {
            return false;
        }
        late.push_back(observation);
        self.late_len.store(late.len(), Ordering::Release);
        true
    }
}
