//! Control of the playback of a recording: commands, position and speed.

mod player;

pub(crate) use player::Player;
pub use player::Speed;

/// Playback command of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Play {
    /// Pause or continue.
    Toggle,
    /// Play faster (positive) or slower by this many steps.
    Speed(isize),
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
pub struct Position {
    /// Time from the start of the recording.
    pub at_ns: u64,
    /// Length of the recording.
    pub whole_ns: u64,
    /// Wall clock in nanoseconds since the epoch; `None` if the recording does not contain it.
    pub wall_ns: Option<u64>,
    /// Chosen speed.
    pub speed: Speed,
    /// Current playback state.
    pub doing: PlaybackState,
    /// Start of the known part, if playback started in the middle of the recording.
    pub since_ns: Option<u64>,
}

/// Playback state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaybackState {
    /// Playing at the chosen speed.
    #[default]
    Playing,
    /// Paused by the user, or at the target of a seek.
    Paused,
    /// Seeking at maximum speed.
    Seeking,
    /// At the end of the recording.
    Ended,
}
