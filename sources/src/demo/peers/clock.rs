//! Time of the peers: the current phase of the scenario, the pauses of the tokenizer's loop, and processing time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::report::{PeerAction, Reports};
use crate::demo::random::Random;
use crate::demo::scenario::{Script, TokenizerPhase};

/// Mean time from one pause of the tokenizer to the next, in seconds.
const MEAN_PAUSE_INTERVAL_S: f64 = 0.7;
/// Least and largest length of a pause, in microseconds.
const MIN_PAUSE_US: u32 = 40_000;
const MAX_PAUSE_US: u32 = 150_000;

/// Clock of the scenario for one tokenizer.
pub(super) struct Clock {
    script: Script,
    next_pause: Instant,
    start: Instant,
    current_index: usize,
    random: Random,
}

impl Clock {
    /// Starts the clock in the first phase.
    pub(super) fn new(script: &Script, random: Random) -> Self {
        let start = Instant::now();
        let mut clock = Self { script: script.clone(), next_pause: start, start, current_index: 0, random };
        clock.plan_pause();
        clock
    }

    /// Returns the current phase. If a new one has begun, reports its mode.
    pub(super) fn current_phase_and_report_change(&mut self, reports: &Reports) -> TokenizerPhase {
        let Script { phases, phase: phase_length, .. } = self.script;
        // At least 1 ns, so that a script without a length does not divide by 0.
        let phases_begun = (self.start.elapsed().as_nanos() / phase_length.as_nanos().max(1)) as usize;
        // The phases follow each other in a circle.
        let index = phases_begun % phases.len();
        if index != self.current_index {
            self.current_index = index;
            reports.push(PeerAction::Serves(phases[index].mode));
        }
        phases[index]
    }

    /// Returns the length of the pause that is due now, and plans the next one. Zero if no pause is due.
    pub(super) fn take_due_pause(&mut self) -> Duration {
        if !self.script.pauses || Instant::now() < self.next_pause {
            return Duration::ZERO;
        }
        self.plan_pause();
        Duration::from_micros(self.random.draw_between(MIN_PAUSE_US, MAX_PAUSE_US).into())
    }

    /// Plans the next pause, if the scenario has pauses.
    fn plan_pause(&mut self) {
        if self.script.pauses {
            self.next_pause = Instant::now() + Duration::from_secs_f64(self.random.draw_wait(MEAN_PAUSE_INTERVAL_S));
        }
    }
}

/// A thread that does one thing at a time. It sleeps instead of computing, to leave the CPU to others.
#[derive(Debug)]
pub(super) struct Busy {
    /// End of the work so far. It may lie up to a [`RESOLUTION`] in the past, so that a sleep that was too long shortens the next one.
    busy_until: Instant,
}

/// Timer resolution. Shorter work accumulates until it reaches this; an overlong sleep is compensated.
const RESOLUTION: Duration = Duration::from_millis(1);

impl Busy {
    pub(super) fn new() -> Self {
        Self { busy_until: Instant::now() }
    }

    /// Sleeps for `time`, on average over many calls.
    pub(super) async fn spend_time(&mut self, time: Duration) {
        let now = Instant::now();
        // Short times are summed up, because the runtime's timer cannot sleep for less than a millisecond. A sleep that was too long
        // shortens later ones, but idle time does not.
        let earliest_begin = now.checked_sub(RESOLUTION).unwrap_or(now);
        self.busy_until = self.busy_until.max(earliest_begin) + time;
        if self.busy_until - now >= RESOLUTION {
            sleep_until(self.busy_until).await;
        }
    }
}
