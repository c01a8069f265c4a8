//! Sources of events: each observes an engine, simulates one, or reads its recording or its log.
//!
//! - [`attach`]: eBPF probes on a running engine
//! - [`tap`]: the relay, with its messages and responses decoded
//! - [`run`]: an engine started with the relay in front of its sockets
//! - [`splice`]: a running engine whose sockets are moved behind the relay
//! - [`demo`]: a simulated engine behind the relay
//! - [`replay`]: a recording
//! - [`import`]: log files
//!
//! [`translate`] turns observations into events. All except a replay and an import need Linux.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
pub mod account;
#[cfg(target_os = "linux")]
pub mod attach;
#[cfg(target_os = "linux")]
pub mod demo;
#[cfg(target_os = "linux")]
pub mod guard;
pub mod import;
#[cfg(target_os = "linux")]
pub mod open_files;
pub mod replay;
#[cfg(target_os = "linux")]
#[allow(clippy::disallowed_methods, reason = "files of the kernel only: /proc/PID/status and comm")]
pub mod run;
#[cfg(target_os = "linux")]
#[allow(clippy::disallowed_methods, reason = "files of the kernel only: /proc/PID/task/TID/status")]
pub mod splice;
#[cfg(target_os = "linux")]
#[cfg(feature = "python-stacks")]
pub mod stacks;
#[cfg(target_os = "linux")]
pub mod tap;
#[cfg(target_os = "linux")]
pub mod tokenizer;
#[cfg(target_os = "linux")]
pub mod translate;
