//! One log file: probed for its first timestamp, and opened when that time is reached.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::ImportOptions;
use super::line_prefix::{self, LinePrefixMemo};
use super::line_reader::LineReader;
use super::log_files::LogFile;
use super::text::plain_text;
use super::timestamp::TimestampParser;

/// Maximum number of lines searched for a first timestamp.
pub(super) const PROBED_LINES: usize = 200;
/// First line of a recording.
const RECORDING_MAGIC: &[u8] = b"\x89TGAP";
/// First byte of a Python pickle.
const PICKLE_MAGIC: &[u8] = b"\x80";
/// Byte order marks of UTF-16, which PowerShell writes when it redirects to a file.
const UTF_16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// A process that writes to a log.
pub(super) struct LogWriter {
    pub(super) role: Box<str>,
    /// `DP0 TP0`; empty if the line has none.
    pub(super) rank: Box<str>,
    /// Index among the writers of all files.
    pub(super) index: u16,
}

/// A file of the import, and what is known of it so far.
pub(super) struct LogSource {
    pub(super) file: LogFile,
    /// First timestamp; 0 if none was found.
    pub(super) first_ns: u64,
    /// Latest timestamp of a known line so far.
    pub(super) frontier_ns: u64,
    pub(super) parser: TimestampParser,
    pub(super) prefix_memo: LinePrefixMemo,
    /// The open file.
    pub(super) lines: Option<LineReader>,
    /// Processes that wrote lines of the file.
    pub(super) writers: Vec<LogWriter>,
}

impl LogSource {
    /// Creates the source of the lines of a file, which is opened when the import reaches the time of its first line.
    pub(super) fn new(file: LogFile, options: &ImportOptions) -> Self {
        let parser = timestamp_parser(&file, options);
        Self {
            file,
            // Both times are set when the first lines are probed.
            first_ns: 0,
            frontier_ns: 0,
            parser,
            prefix_memo: LinePrefixMemo::default(),
            lines: None,
            writers: Vec::new(),
        }
    }

    /// Whether the file may be read ahead: reading would consume data from a pipe.
    pub(super) fn is_regular(&self) -> bool {
        fs::metadata(&self.file.path).is_ok_and(|metadata| metadata.is_file())
    }

    /// Opens the file to read ahead, which does not count as progress of the import.
    pub(super) fn open_uncounted(&self, options: &ImportOptions) -> io::Result<LineReader> {
        let unused_counter = Arc::new(AtomicU64::new(0));
        LineReader::open(&self.file.path, options.max_line_bytes, unused_counter)
    }

    /// Message that names the file and the reason why it is skipped.
    fn refusal(&self, why: &str) -> String {
        format!("{}: {why}", self.file.path.display())
    }

    /// Reads the first lines of the file until one has a timestamp, which becomes the first time of the file. `Err` says why the file
    /// cannot be imported, such as a file that is not text. Does nothing with a pipe.
    pub(super) fn probe_first_lines(&mut self, options: &ImportOptions) -> Result<(), String> {
        if !self.is_regular() {
            return Ok(());
        }
        let mut lines = self.open_uncounted(options).map_err(|error| self.refusal(&error.to_string()))?;
        for _ in 0..PROBED_LINES {
            // `None`: marks are not needed here. A read error ends the loop without a report. The import reports it, after the lines that
            // precede the error.
            let Ok(Some(line)) = lines.next_line(None) else { break };
            if let Some(reason) = reason_it_is_no_log(line.text) {
                return Err(self.refusal(reason));
            }
            if let Some(stamp) = line_prefix::timestamp_of_line(&plain_text(line.text), &mut self.parser) {
                self.first_ns = stamp.wall_ns;
                break;
            }
        }
        // The frontier is the time that the import has reached in this file. Before its first line is read, that is its first time.
        self.frontier_ns = self.first_ns;
        Ok(())
    }
}

/// Why a file with this line among its first ones is no log, and what to do with it instead. `None` if it may be a log.
fn reason_it_is_no_log(line: &[u8]) -> Option<&'static str> {
    if line.starts_with(RECORDING_MAGIC) {
        Some("a recording: `tokengap report` reads it")
    } else if UTF_16_MARKS.iter().any(|mark| line.starts_with(mark)) {
        Some("UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`")
    } else if line.contains(&0) || line.starts_with(PICKLE_MAGIC) {
        Some("no text")
    } else {
        None
    }
}

/// Creates the parser of a file's timestamps. It assumes a year for timestamps without one: the year of the options, or else the year of
/// the file's last modification. In the second case, a month after that of the modification belongs to the year before.
fn timestamp_parser(file: &LogFile, options: &ImportOptions) -> TimestampParser {
    const DECEMBER: i8 = 12;
    let zone = options.zone.clone().unwrap_or(TimeZone::UTC);
    // No month is after December, so all dates are of the given year.
    if let Some(year) = options.year {
        return TimestampParser::new(zone, year, DECEMBER);
    }
    let modified = fs::metadata(&file.path).and_then(|metadata| metadata.modified()).ok();
    let last_written = modified.and_then(|time| Timestamp::try_from(time).ok());
    // A pipe has no time of modification, so its lines count as written now.
    let latest = last_written.unwrap_or_else(Timestamp::now).to_zoned(zone.clone());
    TimestampParser::new(zone, latest.year(), latest.month())
}
