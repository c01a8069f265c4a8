//! The probe's user side: what runs where ([`discover`]), what may be attached ([`capability`], [`degraded`], [`examine`]), and what the
//! attached programs saw ([`probe`], [`matcher`]), with CPU, socket queues and Python stacks beside it ([`cpu`],
//! [`queue`], [`python`]).
//!
//! The targets know nothing of it and are never stopped. Every link belongs to this process: the kernel takes all of them
//! away when it ends, however it ends.

mod attach;
pub mod btf;
pub mod capability;
pub mod cpu;
pub mod degraded;
mod diagnostics;
pub mod discover;
pub mod egress;
pub mod examine;
pub mod floor;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod handoff;
pub mod library;
mod load;
pub mod matcher;
pub mod observation;
pub mod peers;
pub mod place;
mod plain;
pub mod probe;
pub mod python;
pub mod queue;
mod sites;

pub use capability::{Capability, Feature, Permissions};
pub use degraded::{Degraded, Missing};
pub use matcher::{FrameRef, Matcher};
pub use observation::{Call, CpuTimes, Message, Observation, SocketId};
pub use place::Place;
pub use probe::{Options, Probe, ProbeError, Target};
pub use probe_ebpf::{Capture, Loss};
