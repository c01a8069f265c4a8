//! Names of things that events speak of.

use serde::{Deserialize, Serialize};

/// One hop of the token path, announced by [`crate::event::Hop`] before the first event that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HopId(pub u16);

/// One frame on one hop. A lane is one connection of the hop, in the order the source saw them; inside a lane frames
/// keep their order, between lanes of one receiver ZMQ promises none. `seq` counts from 0 within its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FrameId {
    /// The hop the frame crosses.
    pub hop: HopId,
    /// The connection within the hop.
    pub lane: u32,
    /// The frame's place within its lane.
    pub seq: u64,
}

/// A thread of the engine, in the pid namespace of the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// Its process.
    pub pid: u32,
    /// Its own id; that of the main thread is `pid`.
    pub tid: u32,
}
