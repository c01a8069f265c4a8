//! The state of a run as metrics: the numbers of the report, under the names that docs/reference/metrics.md lists. What cannot be observed
//! is absent. Names of requests never become labels, and what may become one is bounded ([`HOPS`], [`ROLES`]).

mod collect;
mod definition;
mod family;
mod histogram;
mod names;

pub use collect::{Input, Pushed, collect};
pub use definition::{Definition, Kind, Unit};
pub use family::{Family, Point, Value};
pub use histogram::{COUNTS, DURATIONS_NS, Histogram};
pub use names::ALL;

/// Names of hops that become labels; further ones are left out, and counted in `tokengap_self_labels_left_out`.
pub const HOPS: usize = 64;
/// Roles of threads that do, likewise.
pub const ROLES: usize = 16;
