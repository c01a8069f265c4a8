//! What serving processes write to their clients' sockets: where the kernel side finds it ([`places`]), and one connection's
//! writes put in order, holes and ends included ([`Track`]).

mod listeners;
mod places;
mod track;

pub use listeners::listening;
pub use places::Unplaced;
pub(crate) use places::places;
pub use probe_ebpf::egress::{Head, Kind, Record, Serves};
pub use track::{Step, Track};

/// Most bytes copied of one write unless asked otherwise. A server without clients that stopped reading writes an event at a
/// time; a backlog may go in one call.
pub const CAPTURE: u32 = 4 << 20;

/// Most bytes copied of one read of a Dynamo worker: what its runtime asks for at a time.
pub const CAPTURE_READ: u32 = 256 << 10;
