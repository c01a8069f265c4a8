//! Writes of serving processes to their clients' sockets. [`places`] finds the kernel offsets for observing them. [`Track`] orders the
//! writes of one connection, and detects missed ones and its end.

mod listeners;
mod places;
mod track;

pub use listeners::listening;
pub use places::MissingField;
pub(crate) use places::places;
pub use probe_ebpf::egress::{Head, Kind, Record, Serves};
pub use track::{Step, Track};

/// Default capture limit of one write in bytes. A server normally writes one event at a time; a backlog may be written in one call.
pub const CAPTURE: u32 = 4 << 20;

/// Capture limit of one read of a worker in bytes: the most that the known runtimes request (`Recognise::connects_to_clients`).
pub const CAPTURE_READ: u32 = 256 << 10;
