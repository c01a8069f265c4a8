//! Moments of a request until its first token, and the legs between those that were observed.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::request::RequestNumbers;
use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::words::names;

/// Moments of a request until its first tokens are accepted for its client, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TtftMoment {
    /// Its first bytes were in the server's socket.
    Arrived,
    /// The server had read its first bytes.
    Read,
    /// The tokenizer sent it to the scheduler.
    Dispatched,
    /// The scheduler received it.
    SchedulerReceived,
    /// It entered the scheduler's queue, by the engine's own clock.
    Queued,
    /// It first entered a batch, by the engine's own clock.
    BatchEntered,
    /// The scheduler sent its first token.
    FirstSent,
    /// The tokenizer received its first token.
    FirstReceived,
    /// The tokenizer had processed the message with its first token.
    Processed,
    /// Its first token was accepted for its client.
    FirstDelivered,
}

use TtftMoment::{
    Arrived, BatchEntered, Dispatched, FirstDelivered, FirstReceived, FirstSent, Processed, Queued, Read,
    SchedulerReceived,
};

names! {
    TtftMoment {
        Arrived = "arrived",
        Read = "read",
        Dispatched = "dispatched",
        SchedulerReceived = "scheduler_received",
        Queued = "queued",
        BatchEntered = "batch_entered",
        FirstSent = "first_sent",
        FirstReceived = "first_received",
        Processed = "processed",
        FirstDelivered = "first_delivered",
    }
}

const MOMENTS: usize = TtftMoment::ALL.len();
/// The leg that begins at each moment but the last.
pub(super) const LEG_NAMES: [&str; MOMENTS - 1] =
    ["socket", "preparation", "dispatch", "intake", "queue", "prefill", "output", "processing", "delivery"];

impl TtftMoment {
    /// Its place in the order of moments.
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Describes the moment in a reader's words, such as `scheduler received the request`.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let source = engine.source();
        let receiver = engine.receiver();
        match self {
            Arrived => "the request was in the server's socket".to_owned(),
            Read => format!("{receiver} read the request"),
            Dispatched => format!("{receiver} sent the request to the {source}"),
            SchedulerReceived => format!("{source} received the request"),
            Queued => format!("{source} queued the request"),
            BatchEntered => format!("{source} began its prefill"),
            FirstSent => format!("{source} sent its first token"),
            FirstReceived => format!("{receiver} received its first token"),
            Processed => format!("{receiver} processed its first token"),
            FirstDelivered => "first token accepted for the client".to_owned(),
        }
    }

    /// Names what is unknown if the moment is not observed.
    pub fn describe_absence(self) -> &'static str {
        match self {
            Arrived | Read => "the time before the dispatch (arrival, reading, tokenisation)",
            Dispatched => "the dispatch",
            SchedulerReceived => "the scheduler's receive of the request",
            Queued => "the entry to the queue",
            BatchEntered => "the entry to a batch",
            FirstSent => "the send of the first token",
            FirstReceived => "the receive of the first token",
            Processed => "the end of its processing",
            FirstDelivered => "the time until the first token is written to the client",
        }
    }
}

/// A part of the time to first token, between two moments. Moments between them were not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TtftLeg {
    /// Its begin.
    pub from: TtftMoment,
    /// Its end.
    pub to: TtftMoment,
}

impl TtftLeg {
    /// Names of the legs between neighbouring moments that it is made of.
    pub(super) fn parts(self) -> &'static [&'static str] {
        LEG_NAMES.get(self.from.index()..self.to.index()).unwrap_or_default()
    }

    /// Whether it ends with the first token or before, and has several parts that cannot be told apart.
    pub(crate) fn is_merged(self) -> bool {
        self.to <= FirstSent && self.parts().len() > 1
    }

    /// Describes where the time on the leg is spent, such as `waiting for the scheduler`. The descriptions of several parts are joined by
    /// ` + `.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let source = engine.source();
        let receiver = engine.receiver();
        // The moments between are often absent, so the two longest legs have shorter descriptions than the sum of their parts.
        if self.from == SchedulerReceived && self.to == FirstSent {
            return format!("inside the {source}: queue, prefill");
        }
        if self.from == FirstReceived && self.to == FirstDelivered {
            return format!("inside the {receiver}, until written");
        }
        let parts = (self.from.index()..self.to.index()).map(|index| match TtftMoment::ALL[index] {
            Arrived => "waiting in the server's socket".to_owned(),
            Read => format!("inside the {receiver}, until sent"),
            Dispatched => format!("waiting for the {source}"),
            SchedulerReceived => format!("{source}, until queued"),
            Queued => format!("{source}'s queue"),
            BatchEntered => "prefill".to_owned(),
            FirstSent => format!("output on its way to the {receiver}"),
            FirstReceived => format!("inside the {receiver}, until processed"),
            // No leg begins at the last moment; the arm only completes the match.
            Processed | FirstDelivered => format!("inside the {receiver}, until written"),
        });
        parts.collect::<Vec<String>>().join(" + ")
    }
}

/// Its name: `socket`, `preparation`, `dispatch`, `intake`, `queue`, `prefill`, `output`, `processing` or `delivery`, joined by `+` if the
/// moments between them were not observed.
impl fmt::Display for TtftLeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts().iter().enumerate() {
            let separator = if number == 0 { "" } else { "+" };
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }
}

/// A leg of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedLeg {
    /// Which one.
    pub leg: TtftLeg,
    /// When it began.
    pub at: MonoNs,
    /// Its length in nanoseconds.
    pub ns: u64,
}

impl TimedLeg {
    pub(super) fn end(self) -> MonoNs {
        MonoNs(self.at.0 + self.ns)
    }
}

/// The observed moments of one request until its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtftPath {
    times: [Option<MonoNs>; MOMENTS],
}

impl TtftPath {
    /// The observed moments of a request before its first token reached the client. One that contradicts the order of the others is left
    /// out.
    pub fn new(numbers: &RequestNumbers) -> Self {
        Self::with_all_moments(numbers).without_contradictions()
    }

    /// All observed moments, even if some contradict others.
    fn with_all_moments(numbers: &RequestNumbers) -> Self {
        let dispatch = numbers.dispatch;
        let arrival = numbers.arrival.and_then(Result::ok);
        let engine = numbers.engine_times.unwrap_or_default();
        Self {
            // In the order of `TtftMoment::ALL`.
            times: [
                arrival.map(|arrival| arrival.arrived),
                arrival.map(|arrival| arrival.read),
                dispatch.map(|dispatch| dispatch.sent),
                dispatch.and_then(|dispatch| dispatch.received),
                engine.queued,
                engine.batch_entered,
                numbers.sent_first,
                numbers.received_first,
                // Without a delivery, its time to first token ends with the receive.
                numbers.processed_first.filter(|_| numbers.delivered_first.is_some()),
                numbers.delivered_first,
            ],
        }
    }

    /// This path with only the moments that are in order. Of two that contradict each other, the more certain one stays.
    fn without_contradictions(self) -> Self {
        // Messages and deliveries are observed themselves. The other moments are inferred from a connection, the next call, or the
        // engine's own clock.
        let certain = [Dispatched, SchedulerReceived, FirstSent, FirstReceived, FirstDelivered];
        let less_certain = [Arrived, Read, Queued, BatchEntered, Processed];
        let mut checked = Self::default();
        // A moment is kept if it agrees with those kept before it, so the certain ones come first.
        for moment in certain.into_iter().chain(less_certain) {
            let index = moment.index();
            checked.times[index] = self.times[index].filter(|at| checked.allows(index, *at));
        }
        checked
    }

    /// Whether a moment at this time is neither before an earlier one nor behind a later one.
    fn allows(&self, index: usize, at: MonoNs) -> bool {
        let (before, after) = self.times.split_at(index);
        before.iter().flatten().all(|earlier| *earlier <= at) && after.iter().flatten().all(|later| at <= *later)
    }

    /// When a moment was; `None` if that is not known.
    pub fn time_of(&self, moment: TtftMoment) -> Option<MonoNs> {
        self.times[moment.index()]
    }

    /// The observed moments, in order.
    pub fn moments(&self) -> impl Iterator<Item = (TtftMoment, MonoNs)> {
        TtftMoment::ALL.iter().zip(self.times).filter_map(|(moment, time)| Some((*moment, time?)))
    }

    /// The legs, each from one observed moment to the next one, in order. Their lengths sum to that of [`Self::whole_leg`].
    pub fn legs(&self) -> impl Iterator<Item = TimedLeg> {
        let next = self.moments().skip(1);
        self.moments().zip(next).map(|((from, at), (to, end))| TimedLeg {
            leg: TtftLeg { from, to },
            at,
            ns: end.since(at),
        })
    }

    /// The leg from the first observed moment to the last one. It is the whole time to first token if no earlier or later moment exists.
    /// `None` unless two were observed.
    pub fn whole_leg(&self) -> Option<TimedLeg> {
        let (from, at) = self.moments().next()?;
        let (to, end) = self.moments().last()?;
        if from == to {
            return None;
        }
        Some(TimedLeg { leg: TtftLeg { from, to }, at, ns: end.since(at) })
    }

    /// The time to first token; `None` unless a moment before its first send, and its first receive or delivery were observed.
    pub fn ttft_ns(&self) -> Option<u64> {
        let whole = self.whole_leg()?;
        (whole.leg.from < FirstSent && whole.leg.to > FirstSent).then_some(whole.ns)
    }

    /// Length of the leg between this moment and the next one of all moments; `None` unless both were observed.
    pub(crate) fn leg_ns_from(&self, moment: TtftMoment) -> Option<u64> {
        let begin = self.time_of(moment)?;
        let end = self.times.get(moment.index() + 1).copied().flatten()?;
        Some(end.since(begin))
    }

    /// Its observed moments, without their times.
    pub(super) fn observed(&self) -> ObservedMoments {
        ObservedMoments(self.times.map(|time| time.is_some()))
    }
}

/// Which moments of a request were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedMoments([bool; MOMENTS]);

impl ObservedMoments {
    pub(super) fn has(self, moment: TtftMoment) -> bool {
        self.0[moment.index()]
    }
}

/// Numbers of a request and their path, for tests.
#[cfg(test)]
pub(super) mod test_paths {
    use super::*;
    use crate::ledger::RequestDispatch;

    /// Times of the dispatch, its receive, the first send, the first receive and the first delivery.
    pub(crate) fn numbers_of(times: [Option<u64>; 5]) -> RequestNumbers {
        let [sent, received, first_sent, first_received, delivered] = times.map(|time| time.map(MonoNs));
        let dispatch =
            sent.map(|sent| RequestDispatch { sent, received, prompt_tokens: None, room: None, arrived_unix_ns: None });
        RequestNumbers {
            dispatch,
            sent_first: first_sent,
            received_first: first_received,
            delivered_first: delivered,
            ..RequestNumbers::default()
        }
    }

    pub(crate) fn path_of(times: [Option<u64>; 5]) -> TtftPath {
        TtftPath::new(&numbers_of(times))
    }
}

#[cfg(test)]
mod tests {
    use super::test_paths::{numbers_of, path_of};
    use super::*;
    use crate::event::ArrivalTimes;

    fn legs(path: &TtftPath) -> Vec<(String, u64)> {
        path.legs().map(|timed| (timed.leg.to_string(), timed.ns)).collect()
    }

    #[test]
    fn legs_lie_between_the_observed_moments_and_sum_to_the_whole() {
        let all = path_of([Some(100), Some(130), Some(400), Some(450), Some(470)]);
        let expected = [("dispatch", 30), ("intake+queue+prefill", 270), ("output", 50), ("processing+delivery", 20)];
        assert_eq!(legs(&all), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(all.whole_leg().map(|whole| whole.ns), Some(370));
        let some = path_of([Some(100), None, Some(400), None, Some(470)]);
        let expected = [("dispatch+intake+queue+prefill", 300), ("output+processing+delivery", 70)];
        assert_eq!(legs(&some), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(path_of([None, None, Some(400), None, None]).whole_leg(), None);
    }

    #[test]
    fn an_arrival_behind_the_dispatch_is_left_out() {
        let times = |arrived, read| ArrivalTimes { arrived: MonoNs(arrived), read: MonoNs(read), connection: None };
        let with_arrival = |arrived, read| RequestNumbers {
            arrival: Some(Ok(times(arrived, read))),
            ..numbers_of([Some(100), None, Some(400), None, None])
        };
        let expected = [("socket", 20), ("preparation", 30), ("dispatch+intake+queue+prefill", 300)];
        let right = TtftPath::new(&with_arrival(50, 70));
        assert_eq!(legs(&right), expected.map(|(name, ns)| (name.to_owned(), ns)));
        let wrong = TtftPath::new(&with_arrival(150, 170));
        assert_eq!(wrong.moments().next(), Some((Dispatched, MonoNs(100))));
    }

    #[test]
    fn a_moment_before_the_previous_one_is_left_out() {
        let skewed = path_of([Some(100), Some(90), Some(400), Some(450), None]);
        let expected = [("dispatch+intake+queue+prefill", 300), ("output", 50)];
        assert_eq!(legs(&skewed), expected.map(|(name, ns)| (name.to_owned(), ns)));
    }
}
