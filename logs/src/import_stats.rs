//! Counters of recognised and unrecognised lines.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::Offset;
use serde::Serialize;

/// Maximum number of reasons kept.
const MAX_REASONS: usize = 8;

/// Counters of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ImportStats {
    /// Files read.
    pub files: u64,
    /// First few skipped files, each with the reason.
    pub skipped: Vec<String>,
    /// Number of skipped files.
    pub files_skipped: u64,
    /// First few files that could not be read to their end, each with the reason.
    pub broken: Vec<String>,
    /// Bytes of text, decompressed.
    pub bytes: u64,
    /// Lines.
    pub lines: u64,
    /// Lines of each known form, by its name.
    pub forms: BTreeMap<&'static str, u64>,
    /// Lines of unknown form.
    pub unknown: u64,
    /// Lines of a known form without usable content.
    pub malformed: u64,
    /// Lines of a known form without a readable time.
    pub undated: u64,
    /// Lines truncated at the length limit.
    pub cut: u64,
    /// Known records that share a line with an earlier one.
    pub joined: u64,
    /// Known lines with durations that cannot be; only the time of their end is used.
    pub impossible: u64,
    /// Known lines whose timestamp has no time zone, and none follows from the file.
    pub zone_assumed: u64,
    /// Known lines whose timestamp has no time zone, and which were read at the offset that the file's own times show.
    pub zone_derived: u64,
    /// Those offsets: `UTC+08`.
    pub offsets: BTreeSet<String>,
    /// Known lines whose timestamp has no year.
    pub year_assumed: u64,
    /// Known lines whose timestamp has whole seconds only.
    pub whole_seconds: u64,
    /// Number of events.
    pub events: u64,
    /// Events read after a later one was passed on.
    pub late: u64,
    /// Events passed on early because too many were queued.
    pub passed_early: u64,
    /// Files opened late because too many were open.
    pub opened_late: u64,
    /// Lines with a truncated rid that was completed.
    pub rids_completed: u64,
    /// Lines with a truncated rid that matches several.
    pub rids_ambiguous: u64,
    /// Lines with a truncated rid that matches no known one.
    pub rids_incomplete: u64,
    /// Complete rids evicted at the limit.
    pub rids_evicted: u64,
    /// Access lines of requests that were answered with an error status.
    pub rejected: u64,
    /// Such lines that are not counted, because it is not known that one engine wrote them all.
    pub rejected_uncounted: u64,
    /// Why that is not known.
    pub rejected_uncounted_why: Option<&'static str>,
    /// First line of unknown form, without possible prompt text.
    #[serde(skip)]
    pub first_unknown: Option<String>,
}

impl ImportStats {
    /// Lines of known forms.
    pub fn known_records(&self) -> u64 {
        self.forms.values().sum()
    }

    /// Adds an offset that a file shows, in seconds east of UTC. Leaves out one that no time zone can have.
    pub(super) fn add_utc_offset(&mut self, offset_s: i32) {
        if let Ok(offset) = Offset::from_seconds(offset_s) {
            self.offsets.insert(format!("UTC{offset}"));
        }
    }

    /// Counts a file that was not read, and keeps the first few reasons.
    pub(super) fn add_skipped_file(&mut self, reason: String) {
        self.files_skipped += 1;
        if self.skipped.len() < MAX_REASONS {
            self.skipped.push(reason);
        }
    }

    /// Keeps the first few reasons why the rest of a file was not read.
    pub(super) fn add_broken_file(&mut self, reason: String) {
        if self.broken.len() < MAX_REASONS {
            self.broken.push(reason);
        }
    }
}
