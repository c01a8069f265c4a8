//! When the schedulers of a pair did nothing, and when they stopped: an idle scheduler is not a stopped one.

use super::PairSide;
use super::clock::ClockUse;
use super::interval::{Interval, Intervals};
use super::join::Pair;
use super::moment::PairMoment;
use super::request::ServerRequest;
use crate::clock::MonoNs;
use crate::detect::thresholds::GAP_WARNING_NS;

use PairMoment::{
    Allocated, DecodeBatch, DecodeFrame, DecodeQueued, DecodeReceived, DecodeRequest, PrefillEnded, PrefillFrame,
    PrefillQueued, PrefillReceived, PrefillRequest, PrefillStarted,
};

/// Something that a scheduler has to do for a request.
struct Task {
    from: PairMoment,
    /// It ends at the first of these that is known.
    until: &'static [PairMoment],
    /// It lasts while its end is not known and its request has not ended.
    may_last: bool,
}

impl Task {
    /// Time in which the scheduler was occupied with this task of the request, on the decode server's clock. `None` if its start or end is
    /// unknown, or if it took no time.
    fn occupied_interval(&self, request: &ServerRequest<'_>, clock: ClockUse) -> Option<Interval> {
        let from = time_on_decode_clock(request, clock, self.from)?;
        // The task ends at the first moment of `until` that is known.
        let end = self.until.iter().find_map(|moment| time_on_decode_clock(request, clock, *moment));
        let lasts_now = self.may_last && request.is_open;
        let to = match end {
            Some(end) => end,
            // The task has not ended, so it covers all later times.
            None if lasts_now => MonoNs(u64::MAX),
            None => return None,
        };
        let span = Interval { from, to };
        if span.ns() > 0 { Some(span) } else { None }
    }
}

/// What shows the activity of a scheduler.
struct SchedulerSigns {
    steps: &'static [PairMoment],
    /// It sends chunk after chunk of a request.
    sends_output: bool,
    tasks: &'static [Task],
}

/// Steps of the prefill server's scheduler, in order.
const PREFILL_STEPS: &[PairMoment] = &[PrefillReceived, PrefillQueued, PrefillStarted, PrefillEnded, PrefillFrame];
/// Steps of the decode server's scheduler, in order.
const DECODE_STEPS: &[PairMoment] = &[DecodeReceived, Allocated, DecodeQueued, DecodeBatch, DecodeFrame];

const PREFILL_SIGNS: SchedulerSigns = SchedulerSigns {
    steps: PREFILL_STEPS,
    sends_output: false,
    tasks: &[
        Task { from: PrefillRequest, until: PREFILL_STEPS, may_last: true },
        // Before its queue a request waits for the decode server's memory.
        Task { from: PrefillQueued, until: &[PrefillEnded, PrefillFrame], may_last: true },
    ],
};

const DECODE_SIGNS: SchedulerSigns = SchedulerSigns {
    steps: DECODE_STEPS,
    sends_output: true,
    tasks: &[
        Task { from: DecodeRequest, until: DECODE_STEPS, may_last: true },
        // Without an observed allocation it is not known when the request began to wait for the prefill server.
        Task { from: DecodeReceived, until: &[Allocated], may_last: false },
        Task { from: DecodeQueued, until: &[DecodeFrame, DecodeBatch], may_last: true },
    ],
};

impl SchedulerSigns {
    /// Adds the times at which the scheduler worked on a request, on the decode server's clock.
    fn add_steps_of_request(&self, steps: &mut Vec<Interval>, request: &ServerRequest<'_>, clock: ClockUse) {
        let moments = self.steps.iter().filter_map(|moment| time_on_decode_clock(request, clock, *moment));
        steps.extend(moments.map(Interval::at));
        // Only a decode server sends output of a request for some time: a prefill server ends it with the first token.
        if self.sends_output {
            steps.extend(request.steady_output);
        }
    }
}

/// Time of a moment of a request on the decode server's clock; `None` if unknown. `clock` converts the times of a prefill server.
fn time_on_decode_clock(request: &ServerRequest<'_>, clock: ClockUse, moment: PairMoment) -> Option<MonoNs> {
    if moment.is_of_prefill_server() {
        request.time_of_prefill_moment(moment).and_then(|at| clock.convert_to_decode_clock(at))
    } else {
        request.time_of_decode_moment(moment)
    }
}

/// When one scheduler did nothing for any request.
#[derive(Debug, Default)]
struct SchedulerActivity {
    pauses: Intervals,
    /// Parts of the pauses in which it had something to do.
    stops: Intervals,
}

impl SchedulerActivity {
    /// Derives the pauses and stops of one scheduler from its requests. In a step, the scheduler worked on a request. In a task, it had
    /// work to do for a request. A pause is the time between two steps. A stop is the part of a pause in which the scheduler had a task.
    fn new(requests: &[ServerRequest<'_>], clock: ClockUse, signs: &SchedulerSigns) -> Self {
        let mut steps = Vec::new();
        let mut tasks = Vec::new();
        for request in requests {
            signs.add_steps_of_request(&mut steps, request, clock);
            tasks.extend(signs.tasks.iter().filter_map(|task| task.occupied_interval(request, clock)));
        }
        let shows_steps = !steps.is_empty();
        let pauses = Intervals::pauses_between(steps);
        // Without any step, for example because the clocks cannot be compared, the scheduler may have stopped at any time.
        let stops = if shows_steps { pauses.intersection_with(&Intervals::merged_from(tasks)) } else { pauses.clone() };
        Self { pauses, stops }
    }
}

/// The activity of all schedulers of a pair.
pub(super) struct PairActivity {
    decode: SchedulerActivity,
    prefill: Vec<SchedulerActivity>,
}

impl PairActivity {
    /// Activity of the schedulers of all servers of a pair.
    pub(super) fn new(pair: &Pair<'_>) -> Self {
        let limit = pair.finished_limit();
        let decode = ServerRequest::newest_finished_and_open_requests(pair.decode_ledger(), limit);
        let prefill = pair.prefill_ledgers().zip(pair.clock_uses()).map(|(ledger, clock)| {
            SchedulerActivity::new(
                &ServerRequest::newest_finished_and_open_requests(ledger, limit),
                *clock,
                &PREFILL_SIGNS,
            )
        });
        Self { decode: SchedulerActivity::new(&decode, ClockUse::Same, &DECODE_SIGNS), prefill: prefill.collect() }
    }

    /// Activity of the decode server's scheduler, or of that of the prefill server with this index; `None` if there is no such server.
    fn activity_of_side(&self, side: PairSide, prefill_server_index: usize) -> Option<&SchedulerActivity> {
        match side {
            PairSide::Prefill => self.prefill.get(prefill_server_index),
            PairSide::Decode => Some(&self.decode),
        }
    }

    /// Whether a stop of this side's scheduler explains a wait. The stop must take more than half of `wait`, and the rest of the wait must
    /// be too short to matter. A stop is a time in which the scheduler did nothing although it had work to do.
    pub(super) fn is_wait_explained_by_stop(&self, side: PairSide, prefill_server: usize, wait: Interval) -> bool {
        let Some(activity) = self.activity_of_side(side, prefill_server) else { return true };
        // A long prefill looks like a stop. Requests that still wait for memory after it have a long rest, which the prefill does not
        // explain.
        let rest_ns = wait.ns().saturating_sub(activity.stops.longest_within_ns(wait));
        takes_most(&activity.stops, wait) && rest_ns < GAP_WARNING_NS
    }

    /// Whether it did nothing for more than half of a span.
    pub(super) fn has_paused(&self, side: PairSide, prefill_server: usize, span: Interval) -> bool {
        self.activity_of_side(side, prefill_server).is_none_or(|activity| takes_most(&activity.pauses, span))
    }
}

/// Whether one of the intervals takes more than half of a span.
fn takes_most(intervals: &Intervals, span: Interval) -> bool {
    intervals.longest_within_ns(span) > span.ns() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_without_steps_is_not_known_to_go_on() {
        let activity = SchedulerActivity::new(&[], ClockUse::Drifting { by_ns: 1 }, &PREFILL_SIGNS);
        assert!(takes_most(&activity.stops, Interval { from: MonoNs(5), to: MonoNs(9) }));
    }
}
