//! The tap and its parts:
//!
//! - [`zmtp`]: frame scanner
//! - [`relay`]: byte-transparent relay
//! - [`tap`]: relay and decoder combined into a source of events
//! - [`splice`]: takeover of a socket that is in use

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod splice;
#[cfg(target_os = "linux")]
pub mod tap;
pub mod zmtp;
