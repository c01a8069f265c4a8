//! Which processes a hop joins.

use trace::HopId;
use trace::path::Ends;

/// The ends of a hop that carries output.
#[derive(Clone, Debug)]
pub(crate) struct HopEnds {
    pub(crate) id: HopId,
    pub(crate) ends: Ends<Box<str>>,
    /// Which of the processes of the receiving role receives: `worker 2`, or the endpoint.
    pub(crate) receiver: String,
}
