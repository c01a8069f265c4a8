//! Messages and the log on standard error. File names and received text may be hostile, so terminal control sequences are removed.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::OnceLock;

use outputs::report::hostile::lines;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{fmt, registry, reload};

/// Like [`eprint!`], without control characters and bidirectional or invisible characters.
macro_rules! err {
    ($($words:tt)*) => {
        $crate::log::print_message(::std::format_args!($($words)*))
    };
}

/// Like [`eprintln!`], without control characters and bidirectional or invisible characters.
macro_rules! errln {
    ($($words:tt)*) => {
        $crate::log::print_message(::std::format_args!("{}\n", ::std::format_args!($($words)*)))
    };
}

/// Prints a message for the macros above.
pub(crate) fn print_message(message: Arguments<'_>) {
    // An error cannot be reported if standard error is closed.
    let _ = std::io::stderr().write_all(lines(&message.to_string()).as_bytes());
}

/// Changes the log filter once the log is initialised.
static CHANGE: OnceLock<Box<dyn Fn(Targets) + Send + Sync>> = OnceLock::new();

/// Initialises tokengap's log on stderr, which is held back while a screen is active. It shows warnings, or more with -v; `TOKENGAP_LOG`
/// overrides the level. A second call changes the level.
pub(crate) fn init_or_change_level(verbose_flag_count: u8) {
    let level = match verbose_flag_count {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let wanted = std::env::var("TOKENGAP_LOG").ok().and_then(|text| text.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(level));
    // `CHANGE` is set by the first call.
    match CHANGE.get() {
        Some(change) => change(filter),
        None => start_log(filter),
    }
}

/// Starts the log with this filter, and sets [`CHANGE`], which can replace the filter later.
fn start_log(filter: Targets) {
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(|| tui::log::LogLineWriter).with_target(false);
    registry().with(filter).with(lines).init();
    // Fails only if the log no longer exists, and then nothing needs the filter.
    let change = move |filter: Targets| drop(handle.reload(filter));
    // Fails only if it is set already, which only this function does.
    drop(CHANGE.set(Box::new(change)));
}
