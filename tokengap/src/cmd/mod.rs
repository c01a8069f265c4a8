//! One file per command, with its flags and their execution.

#[cfg(target_os = "linux")]
pub(crate) mod attach;
#[cfg(target_os = "linux")]
pub(crate) mod broker;
pub(crate) mod bundle;
pub(crate) mod decode;
#[cfg(target_os = "linux")]
pub(crate) mod demo;
pub(crate) mod diff;
#[cfg(target_os = "linux")]
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod generate;
#[cfg(target_os = "linux")]
pub(crate) mod guard;
pub(crate) mod import;
pub(crate) mod live_pairs;
#[cfg(target_os = "linux")]
pub(crate) mod locator;
#[cfg(target_os = "linux")]
pub(crate) mod opener;
pub(crate) mod pair;
#[cfg(target_os = "linux")]
pub(crate) mod pick;
#[cfg(target_os = "linux")]
pub(crate) mod prober;
pub(crate) mod replay;
pub(crate) mod report;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod saved;
#[cfg(target_os = "linux")]
pub(crate) mod splice;
#[cfg(all(target_os = "linux", feature = "python-stacks"))]
pub(crate) mod stacks;
#[cfg(target_os = "linux")]
pub(crate) mod tap;
pub(crate) mod watch;

/// Ignores the signals that end tokengap, for a process that ends with the one that started it.
#[cfg(target_os = "linux")]
fn ignore_ending_signals() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        // Setting a flag that nobody reads replaces the default action.
        signal_hook::flag::register(signal, std::sync::Arc::default())?;
    }
    Ok(())
}
