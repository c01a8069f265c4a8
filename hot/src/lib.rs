//! Traffic for benchmarks, and the hot paths by themselves: each a function that can be run any number of times, so that the
//! instructions of one lap can be counted (`cargo xtask bench count`).

pub mod paths;
pub mod traffic;
