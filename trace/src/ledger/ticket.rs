//! Handle of a record in the table of requests.

use serde::{Deserialize, Serialize};

/// Handle of a record. `age` distinguishes successive records in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) slot: u32,
    pub(super) age: u32,
}

impl Ticket {
    /// Handle of no record.
    pub(crate) const NONE: Self = Self { slot: u32::MAX, age: 0 };
}
