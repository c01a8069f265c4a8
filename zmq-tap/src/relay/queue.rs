//! The way observations leave the relay's thread: bounded, lock-free for frames, and without a wake-up. The reader looks
//! every few milliseconds; a system call for every frame would cost more than the frame.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::observation::Observation;

/// Observations waiting to be polled.
#[derive(Debug)]
pub struct Observations {
    frames: ArrayQueue<Observation>,
    /// Openings, closings and losses that found `frames` full: told once it has been emptied.
    late: Mutex<VecDeque<Observation>>,
    late_len: AtomicUsize,
    late_most: usize,
}

impl Observations {
    pub(super) fn new(frames: usize, late_most: usize) -> Self {
        Self {
            frames: ArrayQueue::new(frames),
            late: Mutex::default(),
            late_len: AtomicUsize::new(0),
            late_most,
        }
    }

    /// The next observation, if any. Never blocks.
    pub fn poll(&self) -> Option<Observation> {
        self.frames.pop().or_else(|| self.poll_late())
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.frames.len() + self.late_len.load(Ordering::Acquire)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn poll_late(&self) -> Option<Observation> {
        if self.late_len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        // A frame that came meanwhile belongs before what was late, if they are of one lane.
        if let Some(frame) = self.frames.pop() {
            return Some(frame);
        }
        let first = late.pop_front();
        self.late_len.store(late.len(), Ordering::Release);
        first
    }

    /// Queues, or gives the observation back when the queue is full.
    pub(super) fn push(&self, observation: Observation) -> Result<(), Observation> {
        self.frames.push(observation)
    }

    /// Queues one of the rare observations that must not be lost. False: even the reserve is full.
    pub(super) fn push_late(&self, observation: Observation) -> bool {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.len() >= self.late_most {
            return false;
        }
        late.push_back(observation);
        self.late_len.store(late.len(), Ordering::Release);
        true
    }
}
