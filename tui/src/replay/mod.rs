//! Playback of a recording like a live run: same loop and screen, with the clocks of the recording.

mod drive;
mod player;
mod recorded;

pub(crate) use drive::drive;
pub(crate) use player::{Player, Speed};
pub(crate) use recorded::Recorded;

/// Playback command of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Play {
    /// Pause or continue.
    Toggle,
    /// Play faster (positive) or slower by this many steps.
    Pace(isize),
    /// Seek forward or back by this many seconds.
    Skip(i64),
    /// Seek to this time in nanoseconds from the start.
    To(u64),
    /// Seek to the end.
    End,
    /// Seek to the start of the next finding, or of the previous one.
    Finding(bool),
}

/// Playback position, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Time from the start of the recording.
    pub(crate) at_ns: u64,
    /// Length of the recording.
    pub(crate) whole_ns: u64,
    /// Wall clock in nanoseconds since the epoch; `None` if the recording does not contain it.
    pub(crate) wall_ns: Option<u64>,
    pub(crate) speed: Speed,
    pub(crate) doing: Doing,
    /// Start of the known part, if playback started in the middle of the recording.
    pub(crate) since_ns: Option<u64>,
}

/// Playback state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    #[default]
    Playing,
    Paused,
    /// Seeking at maximum speed.
    Seeking,
    Ended,
}
