//! Sources that replay what was recorded:
//!
//! - [`playback`]: a recording
//! - [`watch`]: the recordings of runs that other processes serve
//! - [`import`]: log files of an engine

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod import;
pub mod playback;
mod player;
pub mod watch;
