//! A recording played like a live run: the same loop, the same screen, and every clock is the recording's.

mod drive;
mod player;
mod recorded;

pub(crate) use drive::drive;
pub(crate) use player::{Player, Speed};
pub(crate) use recorded::Recorded;

/// What the reader wants of the playing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Play {
    /// Stand still, or go on.
    Toggle,
    /// Play so many steps faster or slower.
    Pace(isize),
    /// Go so many seconds forward or back.
    Skip(i64),
    /// Go to so many nanoseconds from the start.
    To(u64),
    /// Go to the end.
    End,
    /// Go to where the next finding begins, or the one before.
    Finding(bool),
}

/// Where the playing is, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// From the start of the recording.
    pub(crate) at_ns: u64,
    /// Length of the recording.
    pub(crate) whole_ns: u64,
    /// By the wall clock, in nanoseconds since the epoch; `None` where the recording does not say.
    pub(crate) wall_ns: Option<u64>,
    pub(crate) speed: Speed,
    pub(crate) doing: Doing,
    /// Set where the playing began in the middle: what was before is not known.
    pub(crate) since_ns: Option<u64>,
}

/// What the playing does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    #[default]
    Playing,
    Paused,
    /// On the way to another place, as fast as can be.
    Seeking,
    /// At the end.
    Ended,
}
