//! Missing parts of a recording.

use std::fmt;

use crate::words;

/// Missing parts: cut off, damaged, dropped or overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Records of the run before the file's first one: in an earlier file, or overwritten in the ring.
    pub records_before: u64,
    /// Records missing between its blocks: the disk was too slow, or their blocks are damaged.
    pub records_between: u64,
    /// Bytes of an incomplete last block.
    pub cut_bytes: u64,
    /// Bytes that belong to no section.
    pub damaged_bytes: u64,
    /// The file was not closed: the run was killed, or is still in progress.
    pub unfinished: bool,
    /// The recording continues in the next file.
    pub continued: bool,
    /// The recording ended before the run: it reached its size limit, or the disk was full.
    pub stopped: bool,
}

impl Missing {
    pub(super) fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.records_before > 0 {
            let records = words::plural(self.records_before, "record");
            parts.push(format!("{records} of the run precede it"));
        }
        if self.records_between > 0 {
            let records = words::plural(self.records_between, "record");
            parts.push(format!("{records} between its blocks are lost"));
        }
        if self.cut_bytes > 0 {
            parts.push(format!(
                "its last block is truncated: {} are unreadable",
                words::bytes(self.cut_bytes)
            ));
        }
        if self.damaged_bytes > 0 {
            parts.push(format!("{} are damaged", words::bytes(self.damaged_bytes)));
        }
        if self.unfinished {
            parts.push("it was not closed: observations after its last block are missing".to_owned());
        }
        if self.continued {
            parts.push("it continues in the next file".to_owned());
        }
        if self.stopped {
            parts.push("it ended before the run because of its size limit or the disk".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}
