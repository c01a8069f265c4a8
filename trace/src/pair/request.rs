//! The requests of one server of a pair, as its ledger knows them.

use super::interval::Interval;
use super::moment::PairMoment;
use crate::clock::MonoNs;
use crate::detect::thresholds::LATE_NS;
use crate::ledger::{Ledger, PairTimes, RequestNumbers, TtftMoment, TtftPath};

/// A scheduler that sends chunks of a request with shorter pauses went on: a stop that explains a late request takes half of its time.
const MAX_STEADY_PAUSE_NS: u64 = LATE_NS / 2;

/// One attempt of a request on one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerRequest<'a> {
    pub(super) rid: &'a str,
    pub(super) room: Option<u64>,
    pub(super) prompt_tokens: Option<u32>,
    path: TtftPath,
    prefill_ended: Option<MonoNs>,
    pub(super) messages: PairTimes,
    /// Its response is streamed.
    pub(super) is_streamed: bool,
    /// It has not ended yet.
    pub(super) is_open: bool,
    /// When the scheduler sent its chunks, if no pause between two of them is long.
    pub(super) steady_output: Option<Interval>,
}

/// Whether the prefill of a request may have ended at `at`. It may if `at` is not before any known moment that precedes the end of a
/// prefill, and not after the first send.
fn may_prefill_have_ended_at(path: &TtftPath, at: MonoNs) -> bool {
    let moments_before_end =
        [TtftMoment::Dispatched, TtftMoment::SchedulerReceived, TtftMoment::Queued, TtftMoment::BatchEntered];
    let mut times_before_end = moments_before_end.into_iter().filter_map(|moment| path.time_of(moment));
    let is_behind_all = times_before_end.all(|earlier| earlier <= at);
    let is_before_first_send = path.time_of(TtftMoment::FirstSent).is_none_or(|sent| at <= sent);
    is_behind_all && is_before_first_send
}

/// The time from the first to the last send of a request; `None` if it had a long pause in between, or if that is unknown.
fn steady_output(numbers: &RequestNumbers) -> Option<Interval> {
    let longest_pause_ns = numbers.silence_ns?;
    let sends = Interval { from: numbers.sent_first?, to: numbers.sent_last? };
    (longest_pause_ns <= MAX_STEADY_PAUSE_NS).then_some(sends)
}

impl<'a> ServerRequest<'a> {
    /// A request of one server, with the times of its messages to the other server, as far as the ledger knows them. `is_open`: it has not
    /// ended.
    fn new(ledger: &Ledger, rid: &'a str, numbers: &RequestNumbers, is_open: bool) -> Self {
        let dispatch = numbers.dispatch;
        // The number by which both servers know the request. Health checks have the room 0.
        let room = dispatch.and_then(|dispatch| dispatch.room).filter(|room| *room > 0);
        let path = TtftPath::new(numbers);
        // The engine's time may be that of an earlier attempt that failed. It is used only if it fits the times of this attempt.
        let prefill_end_by_engine = numbers.engine_times.and_then(|times| times.prefill_finished);
        let prefill_ended = prefill_end_by_engine.filter(|at| may_prefill_have_ended_at(&path, *at));
        Self {
            rid,
            room,
            // Before the first output, only the message to the scheduler may contain this number.
            prompt_tokens: numbers.prompt_tokens.or(dispatch.and_then(|dispatch| dispatch.prompt_tokens)),
            path,
            prefill_ended,
            messages: room.map(|room| ledger.pair_times(room)).unwrap_or_default(),
            is_streamed: numbers.is_streamed,
            is_open,
            steady_output: steady_output(numbers),
        }
    }

    /// Requests of a server: the `finished_limit` newest of the finished ones, then all live ones, then all that have no token yet.
    pub(super) fn newest_finished_and_open_requests(ledger: &'a Ledger, finished_limit: usize) -> Vec<Self> {
        const OPEN: bool = true;
        const ENDED: bool = false;
        // The ledger lists finished requests in the order in which they ended.
        let older = ledger.finished_count().saturating_sub(finished_limit);
        let finished = ledger.finished().skip(older).map(|summary| Self::new(ledger, &summary.rid, summary, ENDED));
        let live = ledger.requests().map(|request| Self::new(ledger, &request.rid, &ledger.numbers(request), OPEN));
        // For a request without a token, the ledger knows only the dispatch.
        let waiting = ledger.waiting_requests().map(|(rid, dispatch)| {
            let numbers = RequestNumbers { dispatch: Some(dispatch), ..RequestNumbers::default() };
            Self::new(ledger, rid, &numbers, OPEN)
        });
        finished.chain(live).chain(waiting).collect()
    }

    /// Time to first token; `None` unless it is observed and the response is streamed.
    pub(super) fn ttft_ns(&self) -> Option<u64> {
        self.path.ttft_ns().filter(|_| self.is_streamed)
    }

    /// Time of a moment of the decode server. Call it only if this is a request of that server. `None` if the time is unknown, or for a
    /// moment of the prefill server.
    pub(super) fn time_of_decode_moment(&self, moment: PairMoment) -> Option<MonoNs> {
        let moment_of_server = match moment {
            PairMoment::Allocated => return self.messages.allocated,
            PairMoment::DecodeArrived => TtftMoment::Arrived,
            PairMoment::DecodeRead => TtftMoment::Read,
            PairMoment::DecodeRequest => TtftMoment::Dispatched,
            PairMoment::DecodeReceived => TtftMoment::SchedulerReceived,
            PairMoment::DecodeQueued => TtftMoment::Queued,
            PairMoment::DecodeBatch => TtftMoment::BatchEntered,
            PairMoment::DecodeFrame => TtftMoment::FirstSent,
            PairMoment::TokenReceived => TtftMoment::FirstReceived,
            PairMoment::TokenProcessed => TtftMoment::Processed,
            PairMoment::Delivered => TtftMoment::FirstDelivered,
            _ => return None,
        };
        self.path.time_of(moment_of_server)
    }

    /// Time of a moment of the prefill server, by its own clock. Call it only if this is a request of that server. `None` if the time is
    /// unknown, or for a moment of the decode server.
    pub(super) fn time_of_prefill_moment(&self, moment: PairMoment) -> Option<MonoNs> {
        let moment_of_server = match moment {
            PairMoment::Transferred => return self.messages.transferred,
            PairMoment::PrefillEnded => return self.prefill_ended,
            PairMoment::PrefillArrived => TtftMoment::Arrived,
            PairMoment::PrefillRequest => TtftMoment::Dispatched,
            PairMoment::PrefillReceived => TtftMoment::SchedulerReceived,
            PairMoment::PrefillQueued => TtftMoment::Queued,
            PairMoment::PrefillStarted => TtftMoment::BatchEntered,
            PairMoment::PrefillFrame => TtftMoment::FirstSent,
            PairMoment::PrefillDelivered => TtftMoment::FirstDelivered,
            _ => return None,
        };
        self.path.time_of(moment_of_server)
    }
}
