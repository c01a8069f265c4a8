//! User side of the probe: discovery of processes and sockets ([`discover`]), permissions and environment ([`capability`], [`degraded`],
//! [`examine`]), and observations of the attached programs ([`probe`], [`matcher`]). CPU times, socket queues and Python stacks are sampled
//! separately ([`cpu`], [`queue`], [`python`]).
//!
//! The targets are neither modified nor stopped. Every link belongs to this process, so the kernel detaches all of them when it ends, for
//! any reason.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attach;
pub mod btf;
pub mod capability;
pub mod channel;
pub mod cpu;
pub mod degraded;
mod discarded_output;
pub mod discover;
pub mod egress;
pub mod empty_probes;
mod environment;
pub mod examine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod handoff;
pub mod helper;
mod kernel_side;
mod kernel_types;
pub mod library;
mod load;
pub mod locator;
mod loss_counters;
pub mod matcher;
pub mod message;
pub mod observation;
pub mod opener;
pub mod opener_client;
pub mod peers;
mod plain;
pub mod probe;
mod probe_options;
mod probe_points;
pub mod prober;
mod proc;
pub mod process_files;
mod programs;
#[cfg(feature = "python-stacks")]
pub mod python;
pub mod queue;
mod tables;

pub use capability::{Capability, Feature, KernelVersion, Permissions};
pub use degraded::{Degraded, Missing};
pub use discarded_output::discarded_output;
pub use environment::RunEnvironment;
pub use matcher::{FrameRef, Matcher};
pub use observation::{Call, Message, Observation, SocketId};
pub use probe::{Probe, ProbeError, Target};
pub use probe_ebpf::{Capture, Loss};
pub use probe_options::ProbeOptions;
