//! Limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of discovery and the probe: one per candidate process, and several per probed one.
pub const DISCOVERY: u64 = 65_536;

/// Raises the soft limit of open files to `wanted`, as far as the hard limit allows.
pub fn raise_limit(wanted: u64) {
    let now = getrlimit(Resource::Nofile);
    // `None` is unlimited.
    let current = now.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if now.current.is_some_and(|soft| soft < current)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum })
    {
        tracing::info!("cannot raise the limit of open files: {error}");
    }
}
