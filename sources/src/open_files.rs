//! Limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of discovery and the probe: one per candidate process, and several per probed one.
pub const DISCOVERY: u64 = 65_536;

/// Raises the soft limit of open files to `wanted_files`, as far as the hard limit allows. A failure is only logged.
pub fn raise_open_file_limit(wanted_files: u64) {
    let limit = getrlimit(Resource::Nofile);
    // A limit of `None` is unlimited.
    let allowed = limit.maximum.map_or(wanted_files, |maximum| maximum.min(wanted_files));
    if limit.current.is_some_and(|soft| soft < allowed)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: limit.maximum })
    {
        tracing::info!("cannot raise the limit of open files: {error}");
    }
}
