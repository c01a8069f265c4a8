//! Notifications to a service manager (`sd_notify`); does nothing without one.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Reports that the run has started, or continues after a reload.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the configuration is being reloaded.
pub(crate) fn reloading() {
    // systemd rejects a reload notification without the time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot notify the service manager of the reload: {error}"),
    }
}

/// Reports that the run is over and the report is being made.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends keep-alive messages, twice per watchdog interval of the service manager.
pub(crate) struct Watchdog {
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|max| max / 2), next: Instant::now() }
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let Some(every) = self.every.filter(|_| now >= self.next) else {
            return;
        };
        self.next = now + every;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
