//! The log on standard error.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

/// Changes the log filter once the log is initialised.
static CHANGE: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Initialises tokengap's log on stderr, which is held back while a screen is active. It shows warnings, or more with -v; `TOKENGAP_LOG`
/// overrides the level. A second call changes the level.
pub(crate) fn init(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("TOKENGAP_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    if let Some(change) = CHANGE.get() {
        return change(filter);
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(tui::log::Writer)
        .with_target(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    // The reload fails only if the log no longer exists.
    drop(CHANGE.set(Box::new(move |filter| drop(handle.reload(filter)))));
}
