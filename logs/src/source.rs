//! One log file: probed for its first timestamp, and opened when that time is reached.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Options;
use super::clock::Clock;
use super::envelope::{self, PrefixMemo};
use super::files::LogFile;
use super::lines::Lines;
use super::text::clean;

/// Maximum number of lines searched for a first timestamp.
pub(super) const PROBED: usize = 200;
/// First line of a recording.
const RECORDING: &[u8] = b"\x89TGAP";
/// Byte order marks of UTF-16, which PowerShell writes when it redirects to a file.
const UTF_16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

pub(super) struct Source {
    pub(super) file: LogFile,
    /// First timestamp; 0 if none was found.
    pub(super) first_ns: u64,
    /// Latest timestamp of a known line so far.
    pub(super) frontier_ns: u64,
    pub(super) clock: Clock,
    pub(super) prefix_memo: PrefixMemo,
    pub(super) lines: Option<Lines>,
    /// Sources in the file: role, rank, and global index.
    pub(super) writers: Vec<(Box<str>, Box<str>, u16)>,
}

impl Source {
    pub(super) fn new(file: LogFile, options: &Options) -> Self {
        let clock = clock(&file, options);
        Self {
            file,
            first_ns: 0,
            frontier_ns: 0,
            clock,
            prefix_memo: PrefixMemo::default(),
            lines: None,
            writers: Vec::new(),
        }
    }

    /// Whether the file may be read ahead: reading would consume data from a pipe.
    pub(super) fn is_regular(&self) -> bool {
        fs::metadata(&self.file.path).is_ok_and(|m| m.is_file())
    }

    pub(super) fn open_unread(&self, options: &Options) -> io::Result<Lines> {
        Lines::open(&self.file.path, options.line_bytes, Arc::new(AtomicU64::new(0)))
    }

    /// Reads a file's first lines. Returns the reason if it is not text.
    pub(super) fn probe(&mut self, options: &Options) -> Result<(), String> {
        if !self.is_regular() {
            return Ok(());
        }
        let refuse = |why: &str| format!("{}: {why}", self.file.path.display());
        let mut lines = self.open_unread(options).map_err(|error| refuse(&error.to_string()))?;
        for _ in 0..PROBED {
            // An error is reported when the file is imported, after everything before the error.
            let Ok(Some(line)) = lines.next(None) else { break };
            if line.text.starts_with(RECORDING) {
                return Err(refuse("a recording: `tokengap report` reads it"));
            }
            if UTF_16.iter().any(|mark| line.text.starts_with(mark)) {
                return Err(refuse("UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"));
            }
            if line.text.contains(&0) || line.text.starts_with(&[0x80]) {
                return Err(refuse("no text"));
            }
            if let Some(stamp) = envelope::line_stamp(&clean(line.text), &mut self.clock) {
                self.first_ns = stamp.wall_ns;
                break;
            }
        }
        self.frontier_ns = self.first_ns;
        Ok(())
    }
}

/// Clock with the given year, or that of the file's last modification.
fn clock(file: &LogFile, options: &Options) -> Clock {
    let changed = fs::metadata(&file.path).and_then(|m| m.modified()).ok();
    let changed = changed.and_then(|at| Timestamp::try_from(at).ok()).unwrap_or_else(Timestamp::now);
    let zone = options.zone.clone().unwrap_or(TimeZone::UTC);
    let changed = changed.to_zoned(zone.clone());
    match options.year {
        Some(year) => Clock::new(zone, year, 12),
        None => Clock::new(zone, changed.year(), changed.month()),
    }
}
