//! Resource use of this process.

use std::sync::atomic::{AtomicU64, Ordering};

/// CPU time in nanoseconds used before this process became tokengap. `exec` keeps the count, so `cargo run` would otherwise add the
/// compiler's time.
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// Starts the count; must be called first in `main`.
pub fn start() {
    BEFORE.store(process_ns(), Ordering::Relaxed);
}

/// CPU time of this run so far, in nanoseconds.
pub fn cpu_ns() -> u64 {
    process_ns().saturating_sub(BEFORE.load(Ordering::Relaxed))
}

/// CPU time of this process since it was created, in nanoseconds.
fn process_ns() -> u64 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

/// Resident memory of this process, from /proc/self/statm. `None` on systems without that file.
pub fn rss_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    // The first field is the virtual size, the second the resident one, both in pages.
    let resident_pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(resident_pages * rustix::param::page_size() as u64)
}
