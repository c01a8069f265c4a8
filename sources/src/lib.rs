//! Sources of events: each observes an engine, or reads what was observed.
//!
//! - [`tap`]: the relay, with its messages and responses decoded

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
pub mod tap;
