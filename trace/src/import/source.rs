//! One log file: probed for its first timestamp, and opened when that time is reached.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;

use super::Options;
use super::clock::Clock;
use super::envelope;
use super::files::LogFile;
use super::lines::Lines;
use super::text::clean;

/// Maximum number of lines searched for a first timestamp.
const PROBED: usize = 200;

pub(super) struct Source {
    pub(super) file: LogFile,
    /// First timestamp; 0 if none was found.
    pub(super) first_ns: u64,
    /// Latest timestamp of a known line so far.
    pub(super) frontier_ns: u64,
    pub(super) clock: Clock,
    pub(super) lines: Option<Lines>,
    /// Sources in the file: role, rank, and global index.
    pub(super) writers: Vec<(Box<str>, Box<str>, u16)>,
}

impl Source {
    /// Reads a file's first lines. Returns the reason if it is not text.
    pub(super) fn probe(file: LogFile, options: &Options) -> Result<Self, String> {
        let mut clock = clock(&file, options);
        let refuse = |why: &str| format!("{}: {why}", file.path.display());
        let unread = Arc::new(AtomicU64::new(0));
        let mut first_ns = 0;
        // Reading ahead would consume data from a pipe.
        if fs::metadata(&file.path).is_ok_and(|m| m.is_file()) {
            let failed = |error: std::io::Error| refuse(&error.to_string());
            let mut lines = Lines::open(&file.path, options.line_bytes, unread).map_err(failed)?;
            for _ in 0..PROBED {
                // An error is reported when the file is imported, after everything before the error.
                let Ok(Some(line)) = lines.next() else { break };
                if line.text.contains(&0) || line.text.starts_with(&[0x80]) {
                    return Err(refuse("no text"));
                }
                if let Some(stamp) = envelope::open(&clean(line.text), &mut clock).stamp {
                    first_ns = stamp.wall_ns;
                    break;
                }
            }
        }
        Ok(Self { file, first_ns, frontier_ns: first_ns, clock, lines: None, writers: Vec::new() })
    }
}

/// Clock with the given year, or that of the file's last modification.
fn clock(file: &LogFile, options: &Options) -> Clock {
    let changed = fs::metadata(&file.path).and_then(|m| m.modified()).ok();
    let changed = changed.and_then(|at| Timestamp::try_from(at).ok()).unwrap_or_else(Timestamp::now);
    let changed = changed.to_zoned(options.zone.clone());
    match options.year {
        Some(year) => Clock::new(options.zone.clone(), year, 12),
        None => Clock::new(options.zone.clone(), changed.year(), changed.month()),
    }
}
