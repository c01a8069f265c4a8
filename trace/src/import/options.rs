//! Assumptions and limits of an import.

use jiff::tz::TimeZone;

/// How log files are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zone of stamps that name none.
    pub zone: TimeZone,
    /// Year of timestamps without one; `None` takes it from the file's modification time.
    pub year: Option<i16>,
    /// Lines are put in order over this much log time, in nanoseconds.
    pub window_ns: u64,
    /// Most recognised lines held back for that.
    pub held_lines: usize,
    /// Longer lines are cut here, in bytes.
    pub line_bytes: usize,
    /// Most files read in all.
    pub files: usize,
    /// Most files open at once.
    pub open_files: usize,
    /// Most whole rids remembered, to complete those that the log cut short.
    pub rids: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            zone: TimeZone::UTC,
            year: None,
            window_ns: 120_000_000_000,
            held_lines: 500_000,
            line_bytes: 64 * 1024,
            files: 10_000,
            open_files: 256,
            rids: 262_144,
        }
    }
}
