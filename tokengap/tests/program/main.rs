//! The real binary: its runs, recordings, screen, comparisons, reports of pairs, and what none of its outputs may contain.
//!
//! These tests mostly wait for a demo, so they are one program whose tests run at once.
#![cfg(target_os = "linux")]

mod canaries;
mod diff;
mod http_pair;
mod pair;
mod pair_recordings;
mod record;
mod screen;
#[cfg(feature = "python-stacks")]
mod stacks;
