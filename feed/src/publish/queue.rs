//! Bounded queue of messages for one watcher.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::message::Topic;

/// Limits on a topic's length and on the number of topics a watcher may subscribe to.
pub(super) const TOPIC: usize = 256;
const TOPICS: usize = 16;

/// Relation of a watcher to the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    /// Not subscribed.
    #[default]
    None,
    /// Waits for a state to start from.
    Waits,
    /// Receives every block.
    Receives,
    /// Too slow: gets nothing more until its queue is empty, then waits for a state again.
    Behind,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    topics: Vec<Bytes>,
    flow: Flow,
    dropped: u64,
    ended: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, inner: Mutex::default(), changed: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or removes a subscription; `false` if there are too many.
    pub(super) fn subscribe(&self, topic: Bytes, subscribe: bool) -> bool {
        let mut inner = self.inner();
        if subscribe {
            if topic.len() > TOPIC || inner.topics.len() >= TOPICS {
                return false;
            }
            inner.topics.push(topic);
        } else if let Some(at) = inner.topics.iter().position(|known| *known == topic) {
            inner.topics.swap_remove(at);
        }
        let streams = inner.wants(Topic::Stream);
        inner.flow = match inner.flow {
            Flow::None if streams => Flow::Waits,
            _ if !streams => Flow::None,
            flow => flow,
        };
        true
    }

    pub(super) fn wants(&self, topic: Topic) -> bool {
        self.inner().wants(topic)
    }

    pub(super) fn is_subscribed(&self) -> bool {
        !self.inner().topics.is_empty()
    }

    pub(super) fn flow(&self) -> Flow {
        self.inner().flow
    }

    /// Marks a gap in the stream: a watcher that receives blocks needs a new state.
    pub(super) fn skip(&self) {
        let mut inner = self.inner();
        if inner.flow == Flow::Receives {
            inner.gap();
        }
    }

    /// Queues the next message of the stream.
    pub(super) fn stream(&self, message: &Bytes) {
        let mut inner = self.inner();
        match inner.flow {
            Flow::Receives if inner.fits(message, self.limit) => self.push(inner, message),
            Flow::Receives => inner.gap(),
            Flow::Behind => inner.dropped += 1,
            Flow::Waits | Flow::None => {}
        }
    }

    /// Queues the state if the watcher waits for one.
    pub(super) fn start(&self, message: &Bytes) {
        let mut inner = self.inner();
        if inner.flow == Flow::Waits {
            inner.flow = Flow::Receives;
            self.push(inner, message);
        }
    }

    /// Queues a self-contained message, such as a report.
    pub(super) fn offer(&self, topic: Topic, message: &Bytes) {
        let mut inner = self.inner();
        if inner.wants(topic) {
            if inner.fits(message, self.limit) {
                self.push(inner, message);
            } else {
                inner.dropped += 1;
            }
        }
    }

    /// Queues a reply to the watcher; `false` if the queue is full.
    pub(super) fn answer(&self, message: &Bytes) -> bool {
        let inner = self.inner();
        let fits = inner.fits(message, self.limit);
        if fits {
            self.push(inner, message);
        }
        fits
    }

    fn push(&self, mut inner: MutexGuard<'_, Inner>, message: &Bytes) {
        inner.push(message);
        drop(inner);
        self.changed.notify_one();
    }

    /// Queues the end for watchers of the stream even if the queue is full, because a watcher without it would wait for ever. Watchers with
    /// a gap first get `state`, the last one.
    pub(super) fn end(&self, state: Option<&Bytes>, end: Option<&Bytes>) {
        let mut inner = self.inner();
        let state = state.filter(|_| matches!(inner.flow, Flow::Waits | Flow::Behind));
        let end = end.filter(|_| inner.flow != Flow::None);
        [state, end].into_iter().flatten().for_each(|message| inner.push(message));
        inner.ended = true;
        drop(inner);
        self.changed.notify_one();
    }

    /// Waits for the next message; `None` after the last one.
    pub(super) async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut inner = self.inner();
                if let Some(message) = inner.waiting.pop_front() {
                    inner.bytes -= message.len();
                    return Some(message);
                }
                if inner.ended {
                    return None;
                }
                if inner.flow == Flow::Behind {
                    inner.flow = Flow::Waits;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Messages dropped because the watcher was too slow.
    pub(super) fn dropped(&self) -> u64 {
        self.inner().dropped
    }
}

impl Inner {
    fn wants(&self, topic: Topic) -> bool {
        self.topics.iter().any(|prefix| topic.name().as_bytes().starts_with(prefix))
    }

    fn push(&mut self, message: &Bytes) {
        self.bytes += message.len();
        self.waiting.push_back(message.clone());
    }

    /// A message longer than the queue fits when the queue is empty.
    fn fits(&self, message: &Bytes, limit: usize) -> bool {
        self.waiting.is_empty() || self.bytes + message.len() <= limit
    }

    /// Drops a message of the stream.
    fn gap(&mut self) {
        self.dropped += 1;
        self.flow = if self.waiting.is_empty() { Flow::Waits } else { Flow::Behind };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Bytes {
        vec![7; n].into()
    }

    #[tokio::test]
    async fn a_slow_watcher_uses_no_more_than_its_queue_and_resumes_from_a_state() {
        let queue = Queue::new(100);
        assert!(queue.subscribe(Bytes::from("stream"), true));
        queue.stream(&bytes(10));
        assert_eq!((queue.flow(), queue.dropped()), (Flow::Waits, 0), "no blocks before the state");
        queue.start(&bytes(500));
        for _ in 0..5 {
            queue.stream(&bytes(60));
        }
        assert_eq!((queue.flow(), queue.dropped()), (Flow::Behind, 5));
        assert_eq!(queue.next().await.map(|m| m.len()), Some(500));
        queue.stream(&bytes(60));
        assert_eq!((queue.flow(), queue.dropped()), (Flow::Behind, 6), "blocks after a gap are dropped");
        tokio::select! {
            biased;
            _ = queue.next() => panic!("the queue is not empty"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(queue.flow(), Flow::Waits);
        queue.start(&bytes(50));
        queue.stream(&bytes(50));
        queue.stream(&bytes(1));
        assert_eq!((queue.flow(), queue.dropped()), (Flow::Behind, 7));
        queue.end(None, None);
        assert_eq!(queue.next().await.map(|m| m.len()), Some(50));
        assert_eq!(queue.next().await.map(|m| m.len()), Some(50));
        assert_eq!(queue.next().await, None);
    }

    #[tokio::test]
    async fn a_watcher_receives_the_end_and_a_slow_one_the_last_state_first() {
        let of = |flow| {
            let queue = Queue::new(100);
            if flow != Flow::None {
                assert!(queue.subscribe(Bytes::from("stream"), true));
            }
            if matches!(flow, Flow::Receives | Flow::Behind) {
                queue.start(&bytes(90));
            }
            if flow == Flow::Behind {
                queue.stream(&bytes(60));
            }
            assert_eq!(queue.flow(), flow);
            queue
        };
        for (flow, lengths) in [
            (Flow::None, &[][..]),
            (Flow::Waits, &[500, 70]),
            (Flow::Receives, &[90, 70]),
            (Flow::Behind, &[90, 500, 70]),
        ] {
            let queue = of(flow);
            queue.end(Some(&bytes(500)), Some(&bytes(70)));
            for &length in lengths {
                assert_eq!(queue.next().await.map(|m| m.len()), Some(length), "{flow:?}");
            }
            assert_eq!(queue.next().await, None, "{flow:?}");
        }
    }

    #[test]
    fn topics_are_prefixes_and_limited() {
        let queue = Queue::new(100);
        assert!(!queue.is_subscribed());
        assert!(queue.subscribe(Bytes::from("rep"), true));
        assert!(queue.wants(Topic::Report) && !queue.wants(Topic::Stream));
        assert!(queue.subscribe(Bytes::new(), true));
        assert_eq!(queue.flow(), Flow::Waits);
        assert!(queue.subscribe(Bytes::new(), false));
        assert_eq!(queue.flow(), Flow::None);
        assert!(!queue.subscribe(bytes(257), true));
        let accepted = (0..40).filter(|_| queue.subscribe(Bytes::from("x"), true)).count();
        assert_eq!(accepted, 15);
    }
}
