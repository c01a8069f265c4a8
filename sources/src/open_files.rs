//! Limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of discovery and the probe: one per candidate process, and several per probed one.
pub const DISCOVERY: u64 = 65_536;

/// Raises the soft limit of open files to `wanted`, as far as the hard limit allows.
pub fn raise_limit(wanted: u64) {
    let now = getrlimit(Resource::Nofile);
    let limit = |max: Option<u64>| max.unwrap_or(u64::MAX);
    let current = if wanted < limit(now.maximum) { Some(wanted) } else { now.maximum };
    let raised = Rlimit { current, maximum: now.maximum };
    if limit(now.current) < limit(raised.current)
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::info!("cannot raise the limit of open files: {error}");
    }
}
