//! Synthetic traffic for benchmarks and the hot paths in isolation. Each path runs any number of times, so that `cargo xtask bench count`
//! can count the instructions of one lap.

pub mod paths;
pub mod traffic;
