//! Signals that end a run, dump its ring or reload its configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Counts SIGINT, SIGTERM and SIGHUP: the first drains, the second exits at once. SIGUSR1 dumps the hindsight ring. With a configuration
/// file, SIGHUP reloads it instead.
#[derive(Default)]
pub struct Signals(Arc<Seen>);

#[derive(Default)]
struct Seen {
    reloads: AtomicBool,
    reload: AtomicBool,
    ends: AtomicUsize,
    dump: AtomicBool,
}

impl Signals {
    /// Starts to listen for signals.
    pub fn install() -> std::io::Result<Self> {
        let seen = Arc::<Seen>::default();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
        let counted = Arc::clone(&seen);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if signal == SIGUSR1 {
                    counted.dump.store(true, Ordering::Relaxed);
                } else if signal == SIGHUP && counted.reloads.load(Ordering::Relaxed) {
                    counted.reload.store(true, Ordering::Relaxed);
                } else {
                    counted.ends.fetch_add(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Self(seen))
    }

    /// Ignores signals, which are processed elsewhere.
    pub fn none() -> Self {
        Self::default()
    }

    /// Number of requests to end the run.
    pub fn seen(&self) -> usize {
        self.0.ends.load(Ordering::Relaxed)
    }

    /// Returns whether a dump was requested since the last call.
    pub(crate) fn take_dump(&self) -> bool {
        self.0.dump.swap(false, Ordering::Relaxed)
    }

    /// Sets whether SIGHUP reloads the configuration instead of ending the run.
    pub(crate) fn reloads(&self, reloads: bool) {
        self.0.reloads.store(reloads, Ordering::Relaxed);
    }

    /// Returns whether a reload was requested since the last call.
    pub(crate) fn take_reload(&self) -> bool {
        self.0.reload.swap(false, Ordering::Relaxed)
    }
}
