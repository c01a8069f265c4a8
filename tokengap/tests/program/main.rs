//! The real binary: its runs, recordings, screen, and reports of pairs.
#![cfg(target_os = "linux")]

mod http_pair;
mod pair;
mod pair_recordings;
mod record;
mod screen;
#[cfg(feature = "python-stacks")]
mod stacks;
