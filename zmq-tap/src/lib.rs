//! Connections between ZMQ sockets:
//!
//! - [`zmtp`]: frame scanner
//! - [`relay`]: byte-transparent relay
//! - [`splice`]: takeover of a socket that is in use

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
pub mod relay;
#[cfg(target_os = "linux")]
pub mod splice;
pub mod zmtp;
