//! What a service manager is told (`sd_notify`): nothing where none has started us.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The run has begun, or goes on after a reload.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again.
pub(crate) fn reloading() {
    // systemd takes no reload without the time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the service manager is not told of the reload: {error}"),
    }
}

/// The run is over; the report is being made.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says that the loop is alive, twice in the time the service manager allows.
pub(crate) struct Watchdog {
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self {
            every: sd_notify::watchdog_enabled().map(|most| most / 2),
            next: Instant::now(),
        }
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let Some(every) = self.every.filter(|_| now >= self.next) else {
            return;
        };
        self.next = now + every;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
