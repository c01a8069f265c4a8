//! Push queue between the run, which never blocks, and the sender's thread. It is limited in bytes, and in bytes of spans per minute.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trace::metrics::Pushed;

const MINUTE: Duration = Duration::from_mins(1);

/// Content of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

/// Body of a request.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) signal: Signal,
    pub(super) json: Vec<u8>,
    /// Number of spans or points in it.
    pub(super) items: u64,
    pub(super) since: Instant,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Body>,
    /// Start of the current minute of spans, and their bytes since then.
    minute: Option<(Instant, u64)>,
    /// Set while a body is being sent.
    sending: bool,
    closed: bool,
    pushed: Pushed,
    /// Last failure.
    trouble: Option<String>,
    /// Message not yet shown to the user.
    message: Option<String>,
    failing: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    max: usize,
    max_per_minute: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub(super) fn new(max: usize, max_per_minute: u64) -> Self {
        Self { max, max_per_minute, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body. Metrics are cumulative, so newer ones replace queued ones. A body that does not fit is dropped and counted. One that
    /// starts within the limit per minute is sent completely.
    pub(super) fn push(&self, body: Body) {
        let mut state = self.state();
        if body.signal == Signal::Traces {
            let minute = state.minute.filter(|(since, _)| body.since.duration_since(*since) < MINUTE);
            let (since, bytes) = minute.unwrap_or((body.since, 0));
            if bytes >= self.max_per_minute {
                state.give_up(body.signal, body.items, "the limit per minute is reached (--otlp-rate)");
                return;
            }
            state.minute = Some((since, bytes + body.json.len() as u64));
        } else {
            state.waiting.retain(|waiting| waiting.signal != Signal::Metrics);
        }
        let bytes: usize = state.waiting.iter().map(|waiting| waiting.json.len()).sum();
        if bytes + body.json.len() > self.max {
            state.give_up(body.signal, body.items, "the queue is full (--otlp-queue)");
            return;
        }
        state.waiting.push_back(body);
        self.changed.notify_all();
    }

    /// Next body, waiting for one if necessary; `None` once the queue is closed and empty.
    pub(super) fn next(&self) -> Option<Body> {
        let mut state = self.state();
        loop {
            if let Some(body) = state.waiting.pop_front() {
                state.sending = true;
                return Some(body);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits between two attempts, but ends early when the queue is closed.
    pub(super) fn pause(&self, max: Duration) {
        let state = self.state();
        let running = |state: &mut State| !state.closed;
        drop(self.changed.wait_timeout_while(state, max, running));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Records that a body was sent and accepted, except `rejected` of its items.
    pub(super) fn sent(&self, body: &Body, rejected: u64, why: &str) {
        let mut state = self.state();
        let rejected = rejected.min(body.items);
        let accepted = body.items - rejected;
        state.count(body.signal).0 += accepted;
        state.failing &= accepted == 0;
        if rejected > 0 {
            state.give_up(body.signal, rejected, why);
        }
        state.sending = false;
        self.changed.notify_all();
    }

    /// Records a failed attempt that will be repeated.
    pub(super) fn failed(&self, why: &str) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.failing, true) {
            state.message = Some(format!("! otlp: {why}; retrying"));
        }
    }

    /// Closes the queue: waits until `deadline` for the rest to be sent, then drops it.
    pub(super) fn close(&self, deadline: Instant) {
        let mut state = self.state();
        state.closed = true;
        self.changed.notify_all();
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.sending || !state.waiting.is_empty();
        let waited = self.changed.wait_timeout_while(state, left, busy);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        for body in std::mem::take(&mut state.waiting) {
            state.give_up(body.signal, body.items, "the run ended before they were accepted");
        }
    }

    pub(super) fn pushed(&self) -> Pushed {
        self.state().pushed
    }

    /// Problems, for the report.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.state();
        let (spans, points) = (state.pushed.spans.1, state.pushed.points.1);
        let why = state.trouble.as_ref()?;
        Some(format!("otlp: dropped {spans} spans and {points} metric points; last reason: {why}"))
    }

    pub(super) fn take_message(&self) -> Option<String> {
        self.state().message.take()
    }
}

impl State {
    fn count(&mut self, signal: Signal) -> &mut (u64, u64) {
        match signal {
            Signal::Traces => &mut self.pushed.spans,
            Signal::Metrics => &mut self.pushed.points,
        }
    }

    fn give_up(&mut self, signal: Signal, items: u64, why: &str) {
        self.count(signal).1 += items;
        if self.trouble.is_none() {
            self.message = Some(format!("! otlp: spans or metric points dropped: {why}"));
        }
        self.trouble = Some(why.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(signal: Signal, bytes: usize, items: u64) -> Body {
        Body { signal, json: vec![0; bytes], items, since: Instant::now() }
    }

    #[test]
    fn the_limit_per_minute_is_reset_every_minute() {
        let queue = Queue::new(10_000, 100);
        let begun = Instant::now();
        let admits = |bytes, after| {
            let dropped = queue.pushed().spans.1;
            queue.push(Body { since: begun + Duration::from_secs(after), ..body(Signal::Traces, bytes, 1) });
            queue.pushed().spans.1 == dropped
        };
        assert!(admits(60, 0) && admits(60, 1));
        assert!(!admits(1, 2) && !admits(1, 59));
        assert!(admits(500, 61) && !admits(1, 62));
        assert!(queue.trouble().is_some_and(|t| t.contains("--otlp-rate")));
    }

    #[test]
    fn overflow_is_counted_and_newer_metrics_replace_older_ones() {
        let queue = Queue::new(100, u64::MAX);
        queue.push(body(Signal::Metrics, 40, 5));
        queue.push(body(Signal::Traces, 60, 7));
        queue.push(body(Signal::Metrics, 30, 6));
        queue.push(body(Signal::Traces, 11, 3));
        assert_eq!((queue.pushed().spans, queue.pushed().points), ((0, 3), (0, 0)));
        assert!(queue.trouble().is_some_and(|t| t.contains("--otlp-queue")));
        assert!(queue.take_message().is_some() && queue.take_message().is_none());
        let first = queue.next().expect("there are two");
        assert_eq!((first.signal, first.items), (Signal::Traces, 7));
        queue.sent(&first, 2, "two were bad");
        assert_eq!(queue.pushed().spans, (5, 5));
        assert_eq!(queue.next().map(|b| b.items), Some(6));
    }

    #[test]
    fn close_waits_until_its_deadline() {
        let queue = Queue::new(100, u64::MAX);
        queue.push(body(Signal::Traces, 10, 4));
        let began = Instant::now();
        queue.close(began + Duration::from_millis(50));
        assert!(began.elapsed() >= Duration::from_millis(50) && began.elapsed() < Duration::from_secs(5));
        assert_eq!(queue.pushed().spans, (0, 4));
        assert!(queue.next().is_none());
    }
}
