//! Live sources of events: each observes an engine, or simulates one.
//!
//! - [`attach`]: eBPF probes on a running engine
//! - [`tap`]: the relay, with its messages and responses decoded
//! - [`run`]: an engine started with the relay in front of its sockets
//! - [`splice`]: a running engine whose sockets are moved behind the relay
//! - [`demo`]: a simulated engine behind the relay
//!
//! [`translate`] turns observations into events. Sources need Linux: elsewhere, the crate is empty.

#![cfg(target_os = "linux")]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod account;
pub mod attach;
pub mod demo;
pub mod guard;
pub mod open_files;
#[allow(clippy::disallowed_methods, reason = "files of the kernel only: /proc/PID/status and comm")]
pub mod run;
#[allow(clippy::disallowed_methods, reason = "files of the kernel only: /proc/PID/task/TID/status")]
pub mod splice;
#[cfg(feature = "python-stacks")]
pub mod stacks;
pub mod tap;
pub mod tokenizer;
pub mod translate;
