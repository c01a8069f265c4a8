//! The real binary: its runs, recordings, screen, reports of pairs and comparisons.
#![cfg(target_os = "linux")]

mod diff;
mod http_pair;
mod pair;
mod pair_recordings;
mod record;
mod screen;
#[cfg(feature = "python-stacks")]
mod stacks;
