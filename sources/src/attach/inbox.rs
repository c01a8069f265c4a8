//! Observations of one engine's processes that another engine's run read from the shared ring.

use std::ops::Range;
use std::time::Instant;

use probe_user::egress::{Head, Kind, Record};
use probe_user::{Call, Loss, Message, Observation};

/// Index of an engine's run in this process.
pub(super) type RunId = usize;

/// Number of observations between two looks at the clock.
const CLOCK_INTERVAL: usize = 64;

/// Copied observations, in their order, until the engine's run takes them.
pub(super) struct Inbox {
    max_bytes: usize,
    payloads: Vec<u8>,
    entries: Vec<CopiedObservation>,
    /// Number of entries that were passed on.
    passed: usize,
    /// Observations that did not fit after the last entry.
    dropped: u64,
}

struct CopiedMessage {
    call: Call,
    bytes: u64,
    more: bool,
    payload: Range<usize>,
}

impl CopiedMessage {
    fn with_payload<'p>(&self, payloads: &'p [u8]) -> Message<'p> {
        Message { call: self.call, bytes: self.bytes, more: self.more, payload: &payloads[self.payload.clone()] }
    }
}

enum CopiedObservation {
    Sent(CopiedMessage),
    Received(CopiedMessage),
    Unsent(Call),
    Processed(Call),
    Returned(Call),
    Egress { pid: u32, kind: Kind, head: Head, payload: Range<usize> },
    Lost { cause: Loss, count: u64 },
    Exited { pid: u32 },
}

impl CopiedObservation {
    /// A copy of `observation`, whose bytes were copied to the range `payload` of the inbox's payloads.
    fn copy_of(observation: &Observation<'_>, payload: Range<usize>) -> Self {
        match *observation {
            Observation::Sent(Message { call, bytes, more, .. }) => {
                Self::Sent(CopiedMessage { call, bytes, more, payload })
            }
            Observation::Received(Message { call, bytes, more, .. }) => {
                Self::Received(CopiedMessage { call, bytes, more, payload })
            }
            Observation::Unsent(call) => Self::Unsent(call),
            Observation::Processed(call) => Self::Processed(call),
            Observation::Returned(call) => Self::Returned(call),
            Observation::Egress { pid, record: Record { kind, head, .. } } => Self::Egress { pid, kind, head, payload },
            Observation::Lost { cause, count } => Self::Lost { cause, count },
            Observation::Exited { pid } => Self::Exited { pid },
        }
    }

    /// The observation, with its bytes out of the inbox's payloads.
    fn to_observation<'p>(&self, payloads: &'p [u8]) -> Observation<'p> {
        match self {
            Self::Sent(copied) => Observation::Sent(copied.with_payload(payloads)),
            Self::Received(copied) => Observation::Received(copied.with_payload(payloads)),
            Self::Unsent(call) => Observation::Unsent(*call),
            Self::Processed(call) => Observation::Processed(*call),
            Self::Returned(call) => Observation::Returned(*call),
            Self::Egress { pid, kind, head, payload } => {
                let record = Record { kind: *kind, head: *head, payload: &payloads[payload.clone()] };
                Observation::Egress { pid: *pid, record }
            }
            Self::Lost { cause, count } => Observation::Lost { cause: *cause, count: *count },
            Self::Exited { pid } => Observation::Exited { pid: *pid },
        }
    }
}

impl Inbox {
    /// An empty inbox of a limited size.
    pub(super) fn with_limit(max_bytes: usize) -> Self {
        Self { max_bytes, payloads: Vec::new(), entries: Vec::new(), passed: 0, dropped: 0 }
    }

    /// Copies an observation to the end of the inbox, where it waits until its run reads it. Beyond the limit of bytes, only losses and
    /// exits are kept, and the others are counted as dropped.
    pub(super) fn push_copy(&mut self, observation: &Observation<'_>) {
        // Losses and exits are rare and small, so the limit need not count them.
        let is_record = !matches!(observation, Observation::Lost { .. } | Observation::Exited { .. });
        if is_record {
            let used_bytes = self.payloads.len() + self.entries.len() * size_of::<CopiedObservation>();
            if used_bytes + payload_of(observation).len() > self.max_bytes {
                self.dropped += 1;
                return;
            }
            // An entry for the records that were dropped before this one, so that their loss has its place in the order.
            self.push_loss_of_dropped();
        }
        // Losses in a row become one entry, because they are kept beyond the limit.
        if self.try_add_to_last_loss(observation) {
            return;
        }
        let begin = self.payloads.len();
        self.payloads.extend_from_slice(payload_of(observation));
        let payload = begin..self.payloads.len();
        self.entries.push(CopiedObservation::copy_of(observation, payload));
    }

    /// Adds a loss to the last entry, if that is a loss of the same cause. Returns whether it did.
    #[inline]
    fn try_add_to_last_loss(&mut self, observation: &Observation<'_>) -> bool {
        if let Observation::Lost { cause, count } = observation
            && let Some(CopiedObservation::Lost { cause: last_cause, count: last_count }) = self.entries.last_mut()
            && cause == last_cause
        {
            *last_count += count;
            return true;
        }
        false
    }

    /// Adds an entry for the observations that did not fit, before later ones.
    fn push_loss_of_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            // For the run, a full inbox is the same as a full ring.
            self.entries.push(CopiedObservation::Lost { cause: Loss::RingFull, count: dropped });
        }
    }

    /// Whether no observation waits.
    pub(super) fn is_empty(&self) -> bool {
        self.passed == self.entries.len() && self.dropped == 0
    }

    /// Passes the observations to `emit`, oldest first. Those that did not fit into the inbox are passed as a loss. At the `deadline`, the
    /// rest stays in the inbox. Returns the number of observations passed.
    pub(super) fn drain_until_and_count(&mut self, deadline: Instant, emit: &mut dyn FnMut(&Observation<'_>)) -> usize {
        self.push_loss_of_dropped();
        let payloads = &self.payloads;
        let passed_before = self.passed;
        for entry in &self.entries[passed_before..] {
            // The clock is read only once for `CLOCK_INTERVAL` observations, because reading it takes time.
            if self.passed.is_multiple_of(CLOCK_INTERVAL) && Instant::now() >= deadline {
                break;
            }
            // Counted first: an observation that makes the analysis panic is not passed again.
            self.passed += 1;
            emit(&entry.to_observation(payloads));
        }
        let drained = self.passed - passed_before;
        self.remove_passed_observations();
        drained
    }

    /// Frees the space of the observations that were passed on: their entries, and their bytes in the common buffer of payloads.
    fn remove_passed_observations(&mut self) {
        self.entries.drain(..self.passed);
        self.passed = 0;
        // Payloads lie in the order of their entries, so the bytes before the first one that is left are no longer needed.
        let first_kept = self.entries.iter().find_map(CopiedObservation::payload_range);
        let freed_bytes = first_kept.map_or(self.payloads.len(), |range| range.start);
        self.payloads.drain(..freed_bytes);
        // The ranges that are left move with their bytes.
        for range in self.entries.iter_mut().filter_map(CopiedObservation::payload_range_mut) {
            *range = range.start - freed_bytes..range.end - freed_bytes;
        }
    }
}

impl CopiedObservation {
    /// Range of its payload within the inbox's bytes; `None` if it has none.
    fn payload_range(&self) -> Option<&Range<usize>> {
        match self {
            Self::Sent(message) | Self::Received(message) => Some(&message.payload),
            Self::Egress { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Range of its payload, which changes when the bytes move; `None` if it has none.
    fn payload_range_mut(&mut self) -> Option<&mut Range<usize>> {
        match self {
            Self::Sent(message) | Self::Received(message) => Some(&mut message.payload),
            Self::Egress { payload, .. } => Some(payload),
            _ => None,
        }
    }
}

/// Copied bytes of an observation; empty if it has none.
fn payload_of<'o>(observation: &Observation<'o>) -> &'o [u8] {
    match observation {
        Observation::Sent(message) | Observation::Received(message) => message.payload,
        Observation::Egress { record, .. } => record.payload,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use probe_user::SocketId;
    use trace::MonoNs;

    use super::*;

    /// Adds a message and returns how it is printed.
    fn push_sent(inbox: &mut Inbox, seq: u64) -> String {
        let payload = seq.to_string();
        let message = Message { call: call(seq), bytes: 3, more: false, payload: payload.as_bytes() };
        inbox.push_copy(&Observation::Sent(message));
        format!("{:?}", Observation::Sent(message))
    }

    fn drain_all(inbox: &mut Inbox) -> Vec<String> {
        let mut passed = Vec::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        let count = inbox.drain_until_and_count(deadline, &mut |observation| passed.push(format!("{observation:?}")));
        assert!(count == passed.len() && inbox.is_empty());
        passed
    }

    fn call(seq: u64) -> Call {
        Call { at: MonoNs(seq), socket: SocketId { pid: 1, address: 2 }, tid: 1, seq, wakeup: None }
    }

    #[test]
    fn observations_are_passed_on_in_their_order_and_those_beyond_the_limit_are_counted() {
        let mut inbox = Inbox::with_limit(1_000);
        let payload = [7; 400];
        let sent = |seq| Observation::Sent(Message { call: call(seq), bytes: 400, more: false, payload: &payload });
        let head = Head { socket: 5, ..Head::default() };
        let wrote = Observation::Egress { pid: 1, record: Record { kind: Kind::Wrote, head, payload: b"HTTP" } };
        let expected = [sent(0), wrote, Observation::Processed(call(1)), Observation::Exited { pid: 1 }];
        for observation in &expected[..3] {
            inbox.push_copy(observation);
        }
        inbox.push_copy(&sent(2));
        inbox.push_copy(&sent(3));
        inbox.push_copy(&expected[3]);
        let lost = Observation::Lost { cause: Loss::RingFull, count: 2 };
        let expected: Vec<String> = expected.iter().chain([&lost]).map(|one| format!("{one:?}")).collect();
        assert_eq!(drain_all(&mut inbox), expected);
        assert!(drain_all(&mut inbox).is_empty());
    }

    #[test]
    fn what_is_left_at_the_deadline_is_passed_later_and_losses_stay_in_their_place() {
        let mut inbox = Inbox::with_limit(200 * (size_of::<CopiedObservation>() + 3));
        let mut expected: Vec<String> = (100..300).map(|seq| push_sent(&mut inbox, seq)).collect();
        (300..305).for_each(|seq| drop(push_sent(&mut inbox, seq)));
        expected.push(format!("{:?}", Observation::Lost { cause: Loss::RingFull, count: 5 }));
        let mut passed = Vec::new();
        let count = inbox.drain_until_and_count(Instant::now() + Duration::from_millis(20), &mut |observation| {
            if passed.is_empty() {
                std::thread::sleep(Duration::from_millis(20));
            }
            passed.push(format!("{observation:?}"));
        });
        assert_eq!((count, inbox.is_empty()), (CLOCK_INTERVAL, false));
        expected.extend((305..307).map(|seq| push_sent(&mut inbox, seq)));
        passed.extend(drain_all(&mut inbox));
        assert_eq!(passed, expected);
        assert!(inbox.payloads.is_empty());
    }

    #[test]
    fn losses_of_one_cause_are_added_up() {
        let mut inbox = Inbox::with_limit(1_000);
        for count in [3, 4] {
            inbox.push_copy(&Observation::Lost { cause: Loss::RingFull, count });
        }
        assert_eq!(drain_all(&mut inbox), [format!("{:?}", Observation::Lost { cause: Loss::RingFull, count: 7 })]);
    }

    #[test]
    fn an_observation_that_makes_the_analysis_fail_is_passed_once() {
        let mut inbox = Inbox::with_limit(1_000);
        for pid in [1, 2] {
            inbox.push_copy(&Observation::Exited { pid });
        }
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let deadline = Instant::now() + Duration::from_mins(1);
            inbox.drain_until_and_count(deadline, &mut |_| std::panic::resume_unwind(Box::new("a defect")));
        }));
        assert!(failed.is_err());
        assert_eq!(drain_all(&mut inbox), [format!("{:?}", Observation::Exited { pid: 2 })]);
    }
}
