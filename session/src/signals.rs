//! Signals that end a run, dump its ring or reload its configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Counts SIGINT, SIGTERM and SIGHUP: the first drains, the second exits at once. SIGUSR1 dumps the hindsight ring. With a configuration
/// file, SIGHUP reloads it instead.
#[derive(Default)]
pub struct Signals {
    counts: Arc<SignalCounts>,
}

#[derive(Default)]
struct SignalCounts {
    /// SIGHUP reloads the configuration instead of ending the run.
    reloads_on_hangup: AtomicBool,
    is_reload_requested: AtomicBool,
    end_requests: AtomicUsize,
    is_dump_requested: AtomicBool,
}

impl SignalCounts {
    /// Records what the signal asks for. Without a configuration file to reload, a hangup ends the run.
    fn record_signal(&self, signal: i32) {
        if signal == SIGUSR1 {
            self.is_dump_requested.store(true, Ordering::Relaxed);
        } else if signal == SIGHUP && self.reloads_on_hangup.load(Ordering::Relaxed) {
            self.is_reload_requested.store(true, Ordering::Relaxed);
        } else {
            self.end_requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Signals {
    /// Starts a thread that records every signal until the run loop reads it.
    pub fn install() -> std::io::Result<Self> {
        let counts = Arc::<SignalCounts>::default();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
        let thread_counts = Arc::clone(&counts);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                thread_counts.record_signal(signal);
            }
        })?;
        Ok(Self { counts })
    }

    /// Ignores signals, which are processed elsewhere.
    pub fn none() -> Self {
        Self::default()
    }

    /// Number of requests to end the run.
    pub fn end_request_count(&self) -> usize {
        self.counts.end_requests.load(Ordering::Relaxed)
    }

    /// Returns whether a dump was requested since the last call.
    pub(crate) fn take_dump(&self) -> bool {
        self.counts.is_dump_requested.swap(false, Ordering::Relaxed)
    }

    /// Sets whether SIGHUP reloads the configuration instead of ending the run.
    pub(crate) fn set_reload_on_hangup(&self, reloads: bool) {
        self.counts.reloads_on_hangup.store(reloads, Ordering::Relaxed);
    }

    /// Returns whether a reload was requested since the last call.
    pub(crate) fn take_reload(&self) -> bool {
        self.counts.is_reload_requested.swap(false, Ordering::Relaxed)
    }
}
