//! Ids that events refer to.

use serde::{Deserialize, Serialize};

/// One hop of the token path, announced by [`crate::event::Hop`] before the first event that refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HopId(pub u16);

/// One frame on one hop. A lane is one connection of the hop, numbered in the order observed. Frames keep their order within a lane;
/// between lanes of one receiver ZMQ guarantees none. `seq` counts from 0 within its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameId {
    /// Hop that the frame crosses.
    pub hop: HopId,
    /// Connection within the hop.
    pub lane: u32,
    /// Position of the frame within its lane.
    pub seq: u64,
}

impl FrameId {
    /// Frame `seq` of a lane.
    pub const fn new(hop: HopId, lane: u32, seq: u64) -> Self {
        Self { hop, lane, seq }
    }
}

/// A thread of the engine, in the observer's pid namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// Id of its process.
    pub pid: u32,
    /// Id of the thread; equal to `pid` for the main thread.
    pub tid: u32,
}

/// Handle of a request's record in the ledger. `age` distinguishes successive records in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket {
    /// Index of the record. Two requests have the same one only in succession.
    pub slot: u32,
    pub(crate) age: u32,
}

impl Ticket {
    /// Handle of no record.
    pub(crate) const NONE: Self = Self { slot: u32::MAX, age: 0 };
}
