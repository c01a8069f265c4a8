//! Time of the peers: the current phase of the scenario, the pauses of the tokenizer's loop, and processing time.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::report::{PeerAction, Reports};
use crate::demo::random::Random;
use crate::demo::scenario::{Phase, Script};

/// Clock of the scenario for one tokenizer.
pub(super) struct Clock {
    script: Script,
    next_pause: Instant,
    start: Instant,
    current: usize,
    random: Random,
}

impl Clock {
    pub(super) fn new(script: &Script, random: Random) -> Self {
        let start = Instant::now();
        let mut clock = Self { script: script.clone(), next_pause: start, start, current: 0, random };
        clock.plan_pause();
        clock
    }

    /// Current phase; reports a change of mode.
    pub(super) fn phase(&mut self, reports: &Reports) -> Phase {
        let Script { phases, phase, .. } = self.script;
        let count = (self.start.elapsed().as_nanos() / phase.as_nanos().max(1)) as usize;
        let current = count % phases.len();
        if current != self.current {
            self.current = current;
            reports.push(PeerAction::Serves(phases[current].mode));
        }
        phases[current]
    }

    /// Length of a pause due now; zero if none is.
    pub(super) fn pause(&mut self) -> Duration {
        match self.script.pauses {
            Some(pauses) if Instant::now() >= self.next_pause => {
                self.plan_pause();
                let (min, max) = (pauses.min.as_micros() as u32, pauses.max.as_micros() as u32);
                Duration::from_micros(u64::from(self.random.between(min, max)))
            }
            _ => Duration::ZERO,
        }
    }

    fn plan_pause(&mut self) {
        if let Some(pauses) = self.script.pauses {
            self.next_pause = Instant::now() + Duration::from_secs_f64(self.random.wait(pauses.every.as_secs_f64()));
        }
    }
}

/// A thread that does one thing at a time. It sleeps instead of computing, to leave the CPU to others.
#[derive(Debug)]
pub(super) struct Busy {
    until: Instant,
}

/// Timer resolution. Shorter work accumulates until it reaches this; an overlong sleep is compensated.
const RESOLUTION: Duration = Duration::from_millis(1);

impl Busy {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() }
    }

    /// Spends `time` being busy.
    pub(super) async fn spend(&mut self, time: Duration) {
        let now = Instant::now();
        self.until = self.until.max(now.checked_sub(RESOLUTION).unwrap_or(now)) + time;
        if self.until - now >= RESOLUTION {
            sleep_until(self.until).await;
        }
    }
}
