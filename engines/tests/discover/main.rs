//! Tests of discovery on fake processes, and on real pyzmq processes without root. If no Python environment can be made, each of the latter
//! prints SKIPPED.
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "pids that JSON carries as 64 bits")]

mod engines;
mod peers;
mod sglang;
mod toy;
mod unnamed;
mod views;
mod vllm;
mod watching;

use std::path::Path;

/// An ipc prefix in `folder`.
fn base(folder: &Path) -> String {
    format!("ipc://{}/", folder.display())
}

/// The first of eight consecutive free ports.
fn ports() -> u16 {
    // Each test uses its own range. All listeners are held until the whole range is known to be free.
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    loop {
        let nth = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let first = 20_000 + (std::process::id() % 1_000) as u16 * 10 + nth * 8 % 2_000;
        let free = |port| std::net::TcpListener::bind(("127.0.0.1", port));
        if (first..first + 8).map(free).collect::<Result<Vec<_>, _>>().is_ok() {
            return first;
        }
    }
}
