//! The state of a run as metrics: the report's numbers under the names of docs/reference/metrics.md. Unobservable values are absent.
//! Request ids never become labels, and the number of label values is bounded ([`MAX_HOPS`], [`MAX_ROLES`]).

mod collect;
mod definition;
mod family;

pub use collect::{EndpointUse, Input, Pushed, PushedItems, collect};
pub use definition::{ALL, Definition, MetricKind, Unit};
pub use family::{Bucket, Family, Histogram, Point, Value};

/// Maximum number of hop names as labels. Others are left out and counted in `tokengap_self_labels_left_out`.
pub(crate) const MAX_HOPS: usize = 64;
/// Maximum number of thread roles as labels. Others are left out and counted in the same metric.
pub const MAX_ROLES: usize = 16;
