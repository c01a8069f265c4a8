//! Assumptions and limits of an import.

use jiff::tz::TimeZone;

/// Options for reading log files.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time zone of timestamps without one.
    pub zone: TimeZone,
    /// Year of timestamps without one; `None` takes it from the file's modification time.
    pub year: Option<i16>,
    /// Span of log time over which lines are sorted, in nanoseconds.
    pub window_ns: u64,
    /// Maximum number of recognised lines queued for sorting.
    pub held_lines: usize,
    /// Maximum length of a line in bytes; longer lines are truncated.
    pub line_bytes: usize,
    /// Maximum number of files.
    pub files: usize,
    /// Maximum number of open files.
    pub open_files: usize,
    /// Maximum number of complete rids kept, to complete those truncated in the log.
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
