//! Signals that end a run, dump its ring or reload its configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Counts SIGINT, SIGTERM and SIGHUP: the first drains, the second exits at once. SIGUSR1 dumps the hindsight ring. With a configuration
/// file, SIGHUP reloads it instead.
pub struct Signals {
    reloads: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    ends: Arc<AtomicUsize>,
    dump: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to listen for signals.
    pub fn install() -> std::io::Result<Self> {
        let (ends, dump) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
        let (reloads, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (end_count, dump_flag) = (Arc::clone(&ends), Arc::clone(&dump));
        let (reloads_flag, reload_flag) = (Arc::clone(&reloads), Arc::clone(&reload));
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if signal == SIGUSR1 {
                    dump_flag.store(true, Ordering::Relaxed);
                } else if signal == SIGHUP && reloads_flag.load(Ordering::Relaxed) {
                    reload_flag.store(true, Ordering::Relaxed);
                } else {
                    end_count.fetch_add(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Self { reloads, reload, ends, dump })
    }

    /// Ignores signals, which are processed elsewhere.
    pub fn none() -> Self {
        Self { reloads: Arc::default(), reload: Arc::default(), ends: Arc::default(), dump: Arc::default() }
    }

    /// Number of requests to end the run.
    pub fn seen(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns whether a dump was requested since the last call.
    pub(crate) fn take_dump(&self) -> bool {
        self.dump.swap(false, Ordering::Relaxed)
    }

    /// Sets whether SIGHUP reloads the configuration instead of ending the run.
    pub(crate) fn reloads(&self, reloads: bool) {
        self.reloads.store(reloads, Ordering::Relaxed);
    }

    /// Returns whether a reload was requested since the last call.
    pub(crate) fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
